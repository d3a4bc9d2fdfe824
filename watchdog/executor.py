"""Carries decisions out: one thread an engine, one action at a time, every outcome reported.

Nobody else starts or stops an engine, so that two wishes can never meet in the middle of one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import cast

from watchdog.contracts import (
    Action,
    ActionError,
    ActionSpec,
    BoxControl,
    EngineControl,
    Order,
    SideAction,
)
from watchdog.core.lifecycle import LIFE
from watchdog.core.model import ActionFinished, Cause, Decision, Event, Outcome, Seconds, Value

_CALM = frozenset({Cause.OPERATOR, Cause.RULE})
"""The engine may well serve: what is in it is let finish."""
_CHOICE = ":"

Before = Callable[[Order, EngineControl], object]
"""Sees an order before it is carried out, which waits for it. Whatever it raises is dropped."""


class Repertoire:
    """Every action, built with its settings. Safe from any thread."""

    def __init__(
        self, specs: Mapping[str, ActionSpec], settings: Mapping[str, object] | None = None
    ) -> None:
        self._specs = specs
        self.configure(settings or {})

    def configure(self, settings: Mapping[str, object]) -> None:
        """Build all of them anew; what runs goes on as it was. Not named: the defaults."""
        self._built = {
            name: spec.build(settings.get(name, spec.settings()))
            for name, spec in self._specs.items()
        }

    def of_engine(self, name: str) -> Action:
        """What starts or stops an engine. Raises KeyError."""
        return cast("Action", self._built[name])

    def beside(self, name: str) -> SideAction:
        """What does neither. Raises KeyError."""
        return cast("SideAction", self._built[name])

    def limit(self, name: str) -> Seconds:
        """After so many seconds an action beside is given up."""
        return self._specs[name].timeout


class Beside:
    """Does what neither starts nor stops an engine, for one engine or for the box.

    What does not end is given up, and while it lives no other is begun. ``post`` takes the outcome
    of every order.
    """

    def __init__(
        self,
        name: str,
        repertoire: Repertoire,
        box: BoxControl,
        post: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._repertoire, self._box = name, repertoire, box
        self._post, self._clock = post, clock
        self._stuck: threading.Thread | None = None

    def submit(self, decision: Decision) -> None:
        """Begin what ``decision`` says. Returns at once, and never raises: more was decided.

        Where the limit of tasks is reached no thread can be started, and that is the outcome.
        """
        name = f"beside-{self._name}"
        work = threading.Thread(target=self._do, args=(decision,), name=name, daemon=True)
        try:
            work.start()
        except (RuntimeError, MemoryError) as error:
            order = _order(decision)
            failed = _failed(order, 0.0, f"cannot {order.action}: {error}")
            self._post(ActionFinished(self._clock(), failed))

    def _do(self, decision: Decision) -> None:
        began = self._clock()
        try:
            outcome = self._done(decision, began)
        except Exception as error:  # noqa: BLE001 - without an outcome nothing is done beside again
            text = f"cannot {decision.action}: {error}"
            outcome = _failed(_order(decision), self._clock() - began, text)
        self._post(ActionFinished(self._clock(), outcome))

    def _done(self, decision: Decision, began: Seconds) -> Outcome:
        action = decision.action.partition(_CHOICE)[0]
        limit = self._repertoire.limit(action)
        order = _order(decision, deadline=began + limit)
        if self._stuck is not None and self._stuck.is_alive():
            text = f"cannot {order.action}: an earlier action still runs"
            return _failed(order, self._clock() - began, text)
        run = self._repertoire.beside(action).run
        found: list[Outcome] = []

        def work() -> None:
            found.append(_outcome(order, lambda: run(order, self._box), self._clock))

        self._stuck = threading.Thread(target=work, name="beside", daemon=True)
        self._stuck.start()
        self._stuck.join(limit)
        text = f"cannot {order.action}: it still runs after {limit:g} s"
        return found[0] if found else _failed(order, self._clock() - began, text)


class Actor:
    """The serial hands of one engine. ``post`` takes the outcome of every order.

    ``before`` sees what starts or stops the engine before that is done.
    """

    def __init__(  # noqa: PLR0913 - all it touches is handed in
        self,
        engine: EngineControl,
        repertoire: Repertoire,
        post: Callable[[Event], None],
        box: BoxControl,
        clock: Callable[[], float] = time.monotonic,
        *,
        before: Before = lambda _order, _engine: None,
    ) -> None:
        self._engine, self._repertoire = engine, repertoire
        self._post, self._clock, self._before = post, clock, before
        self._beside = Beside(engine.name, repertoire, box, post, clock)
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"actor-{engine.name}", daemon=True)
        self._thread.start()

    def submit(self, decision: Decision) -> None:
        """Queue what ``decision`` says. Returns at once.

        What neither starts nor stops the engine is done beside: it never delays a restart.
        """
        if decision.action in LIFE:
            self._orders.put(_order(decision))
        else:
            self._beside.submit(decision)

    def close(self) -> None:
        """Take no more orders; the one that runs is not waited for."""
        self._orders.put(None)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            outcome = self._done(order)
            self._post(ActionFinished(self._clock(), outcome))

    def _done(self, order: Order) -> Outcome:
        def work() -> None:
            self._repertoire.of_engine(order.action).run(order, self._engine)

        with contextlib.suppress(Exception):  # no evidence is worth an engine that stays down
            self._before(order, self._engine)
        return _outcome(order, work, self._clock)


def _order(decision: Decision, deadline: Seconds = 0.0) -> Order:
    return Order(
        action=decision.action,
        target=decision.target,
        cause=decision.cause,
        incident=decision.incident,
        drain=decision.cause in _CALM,
        rule=decision.rule,
        choice=decision.action.partition(_CHOICE)[2],
        deadline=deadline,
        generation=decision.generation,
    )


def _outcome(order: Order, work: Callable[[], str | None], clock: Callable[[], float]) -> Outcome:
    """Do it, and say how it ended. What an action of ours says it has done explains a success."""
    began = clock()
    ok, explanation, cause, unkillable = False, "", Cause.UNKNOWN, False
    evidence: tuple[tuple[str, Value], ...] = ()
    untouched = False
    try:
        explanation = work() or ""
        ok = True
    except ActionError as error:
        explanation, cause, unkillable = str(error), error.cause, error.unkillable
        evidence, untouched = error.evidence, error.untouched
    except Exception as error:  # noqa: BLE001 - a broken plug-in must not end the actor
        explanation = f"cannot {order.action}: {type(error).__name__}: {error}"
    return Outcome(
        action=order.action,
        target=order.target,
        ok=ok,
        took=clock() - began,
        explanation=explanation,
        cause=cause,
        unkillable=unkillable,
        evidence=evidence,
        untouched=untouched,
    )


def _failed(order: Order, took: float, text: str) -> Outcome:
    return Outcome(order.action, order.target, ok=False, took=took, explanation=text)
