"""Starts an engine that does not run."""

from __future__ import annotations

from watchdog.contracts import Action, ActionSpec, EngineControl, NoSettings, Order


class StartEngine:
    """Passes the release gate first: a leftover of an earlier generation blocks the start."""

    def run(self, order: Order, engine: EngineControl) -> None:
        """Start a generation. Raises ``ActionError`` when the gate refuses or the spawn fails."""
        engine.start(order.cause)


def _build(_: NoSettings) -> Action:
    return StartEngine()


ACTION = ActionSpec("start_engine", "start the engine", _build)
