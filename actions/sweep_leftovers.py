"""Removes what dead engines left in shared memory and temporary directories."""

from __future__ import annotations

from watchdog.contracts import ActionSpec, BoxControl, NoSettings, Order, SideAction
from watchdog.core.model import SubjectKind


class SweepLeftovers:
    """Only vLLM's known names that nobody holds, and directories of starts that have ended."""

    def run(self, order: Order, box: BoxControl) -> str:
        """Sweep. Raises ``ActionError`` when it cannot be known what is held."""
        return box.sweep(order.deadline)


def _build(_: NoSettings) -> SideAction:
    return SweepLeftovers()


ACTION = ActionSpec(
    "sweep_leftovers",
    "remove what dead engines left behind and no process holds",
    _build,
    subjects=frozenset({SubjectKind.HOST}),
)
