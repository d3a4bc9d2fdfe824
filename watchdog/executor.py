"""Carries decisions out: one thread an engine, one action at a time, every outcome reported.

Nobody else starts or stops an engine, so that two wishes can never meet in the middle of one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from watchdog.contracts import Action, ActionError, ActionSpec, EngineControl, Order
from watchdog.core.model import ActionFinished, Cause, Decision, Event, Outcome

_CALM = frozenset({Cause.OPERATOR, Cause.RULE})
"""The engine may well serve: what is in it is let finish."""


class Actor:
    """The serial hands of one engine. ``post`` takes the outcome of every order."""

    def __init__(
        self,
        engine: EngineControl,
        actions: Mapping[str, ActionSpec],
        post: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._actions: dict[str, Action] = {name: spec.build() for name, spec in actions.items()}
        self._post = post
        self._clock = clock
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"actor-{engine.name}", daemon=True)
        self._thread.start()

    def submit(self, decision: Decision) -> None:
        """Queue what ``decision`` says. Returns at once."""
        self._orders.put(
            Order(
                action=decision.action,
                target=decision.target,
                cause=decision.cause,
                incident=decision.incident,
                drain=decision.cause in _CALM,
            )
        )

    def close(self) -> None:
        """Take no more orders; the one that runs is not waited for."""
        self._orders.put(None)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            self._post(self._carry_out(order))

    def _carry_out(self, order: Order) -> ActionFinished:
        began = self._clock()
        outcome = self._outcome(order, began)
        return ActionFinished(self._clock(), outcome)

    def _outcome(self, order: Order, began: float) -> Outcome:
        ok, explanation, cause, unkillable = False, "", Cause.UNKNOWN, False
        try:
            self._actions[order.action].run(order, self._engine)
            ok = True
        except ActionError as error:
            explanation, cause, unkillable = str(error), error.cause, error.unkillable
        except Exception as error:  # noqa: BLE001 - a broken plug-in must not end the actor
            explanation = f"cannot {order.action}: {type(error).__name__}: {error}"
        return Outcome(
            action=order.action,
            target=order.target,
            ok=ok,
            took=self._clock() - began,
            explanation=explanation,
            cause=cause,
            unkillable=unkillable,
        )
