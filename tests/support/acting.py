"""What real actors need in a test: a box that says what it was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from watchdog.contracts import Action, ActionSpec, SideAction
from watchdog.core.model import Seconds, SubjectKind
from watchdog.executor import Repertoire


@dataclass
class Box:
    """Implements ``contracts.BoxControl``: removes and runs nothing."""

    asked: list[str] = field(default_factory=list)

    def sweep(self, deadline: Seconds) -> str:  # noqa: ARG002 - the contract
        """Remember it."""
        self.asked.append("sweep")
        return "swept nothing"

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],  # noqa: ARG002 - the contract
        timeout: Seconds,  # noqa: ARG002 - the contract
    ) -> str:
        """Remember the command."""
        self.asked.append(" ".join(command))
        return "ran"


def spec(
    name: str,
    action: Action | SideAction,
    timeout: Seconds = 60.0,
    subjects: frozenset[SubjectKind] = frozenset({SubjectKind.ENGINE}),
) -> ActionSpec:
    """An action of that name."""
    return ActionSpec(name, "", lambda _: action, subjects, timeout)


def repertoire(*specs: ActionSpec) -> Repertoire:
    """These actions and no other, with their default settings."""
    return Repertoire({one.name: one for one in specs})
