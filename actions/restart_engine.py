"""Stops the whole set of an engine's processes, proves it gone, and starts a new generation."""

from __future__ import annotations

from watchdog.contracts import Action, ActionSpec, EngineControl, NoSettings, Order


class RestartEngine:
    """Never starts on top: ``stop`` raises when anything of the old generation survives."""

    def run(self, order: Order, engine: EngineControl) -> None:
        """Stop, then start. Raises ``ActionError`` from whichever of the two fails."""
        engine.stop(drain=order.drain, cause=order.cause, generation=order.generation)
        engine.start(order.cause)


def _build(_: NoSettings) -> Action:
    return RestartEngine()


ACTION = ActionSpec("restart_engine", "stop every process of the engine and start anew", _build)
