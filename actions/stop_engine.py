"""Stops the whole set of an engine's processes and proves it gone."""

from __future__ import annotations

from watchdog.contracts import Action, ActionSpec, EngineControl, NoSettings, Order


class StopEngine:
    """Ends at zero living processes, or raises."""

    def run(self, order: Order, engine: EngineControl) -> None:
        """Run the stop ladder. Raises ``ActionError`` when something survives it."""
        engine.stop(drain=order.drain, cause=order.cause, generation=order.generation)


def _build(_: NoSettings) -> Action:
    return StopEngine()


ACTION = ActionSpec("stop_engine", "stop every process of the engine", _build)
