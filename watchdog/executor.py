"""Carries decisions out: one thread an engine, one action at a time, every outcome reported.

Nobody else starts or stops an engine, so that two wishes can never meet in the middle of one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from watchdog.contracts import Action, ActionError, ActionSpec, EngineControl, Order
from watchdog.core.lifecycle import LIFE
from watchdog.core.model import ActionFinished, Cause, Decision, Event, Outcome, Value

_CALM = frozenset({Cause.OPERATOR, Cause.RULE})
"""The engine may well serve: what is in it is let finish."""


class _NoHands:
    """What an action that is done beside has of an engine: its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def stop(self, *, drain: bool, cause: Cause) -> None:  # noqa: ARG002 - the contract
        """Raises ``ActionError``: two pairs of hands could start one engine on top of another."""
        raise ActionError("cannot stop the engine: only stop_engine and restart_engine may")

    def start(self, cause: Cause) -> None:  # noqa: ARG002 - the contract
        """Raises ``ActionError``, as ``stop``."""
        raise ActionError("cannot start the engine: only start_engine and restart_engine may")


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
        self._limits = {name: spec.timeout for name, spec in actions.items()}
        self._stuck: threading.Thread | None = None
        self._post = post
        self._clock = clock
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"actor-{engine.name}", daemon=True)
        self._thread.start()

    def submit(self, decision: Decision) -> None:
        """Queue what ``decision`` says. Returns at once.

        What neither starts nor stops the engine is done beside: it never delays a restart.
        """
        order = Order(
            action=decision.action,
            target=decision.target,
            cause=decision.cause,
            incident=decision.incident,
            drain=decision.cause in _CALM,
        )
        if order.action in LIFE:
            self._orders.put(order)
        else:
            name = f"aside-{self._engine.name}"
            threading.Thread(target=self._do_aside, args=(order,), name=name, daemon=True).start()

    def close(self) -> None:
        """Take no more orders; the one that runs is not waited for."""
        self._orders.put(None)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            began = self._clock()
            self._post(ActionFinished(self._clock(), self._outcome(order, began, self._engine)))

    def _do_aside(self, order: Order) -> None:
        """Give up on an action that does not end; while it lives no other is begun."""
        began, limit = self._clock(), self._limits[order.action]
        found: list[Outcome] = []
        if self._stuck is not None and self._stuck.is_alive():
            text = f"cannot {order.action}: an earlier action still runs"
        else:
            hands = _NoHands(self._engine.name)

            def work() -> None:
                found.append(self._outcome(order, began, hands))

            self._stuck = threading.Thread(target=work, name="aside", daemon=True)
            self._stuck.start()
            self._stuck.join(limit)
            text = f"cannot {order.action}: it still runs after {limit:g} s"
        outcome = found[0] if found else _failed(order, self._clock() - began, text)
        self._post(ActionFinished(self._clock(), outcome))

    def _outcome(self, order: Order, began: float, engine: EngineControl) -> Outcome:
        ok, explanation, cause, unkillable = False, "", Cause.UNKNOWN, False
        evidence: tuple[tuple[str, Value], ...] = ()
        try:
            self._actions[order.action].run(order, engine)
            ok = True
        except ActionError as error:
            explanation, cause, unkillable = str(error), error.cause, error.unkillable
            evidence = error.evidence
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
            evidence=evidence,
        )


def _failed(order: Order, took: float, text: str) -> Outcome:
    return Outcome(order.action, order.target, ok=False, took=took, explanation=text)
