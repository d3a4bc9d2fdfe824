"""Who sees an order before it is carried out, and cannot keep it from that."""

from __future__ import annotations

import queue
from dataclasses import replace

import pytest

from tests.support.acting import Box, repertoire, spec
from tests.support.core import http, serving
from tests.support.evidence import Control
from watchdog.contracts import EngineControl, Order
from watchdog.core.lifecycle import set_out
from watchdog.core.model import ActionFinished, Cause, Decision, Event, engine_subject
from watchdog.evidence.collector import serves
from watchdog.executor import Actor


class Notes:
    """An action, and who looks before it: both write down that they were there."""

    def __init__(self, error: Exception | None) -> None:
        self.lines: list[str] = []
        self._error = error

    def run(self, order: Order, engine: EngineControl) -> None:
        """The action."""
        self.lines.append(f"{order.action} {engine.name}")

    def before(self, order: Order, engine: EngineControl) -> None:
        """Looks, and fails when it was told to."""
        self.lines.append(f"before {order.action} {engine.name} of {order.incident}")
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [None, OSError(28, "No space left on device"), KeyError("x")])
def test_the_order_is_seen_first_and_carried_out_whatever_happens(error: Exception | None) -> None:
    """FACT: who looks comes before the action, and a failure there is none of the action."""
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    notes = Notes(error)
    actions = repertoire(spec("stop_engine", notes))
    actor = Actor(Control(), actions, posted.put, Box(), before=notes.before)
    try:
        target = engine_subject("main")
        actor.submit(
            Decision(1.0, "rule", target, "stop_engine", Cause.CRASH, incident="inc-000001")
        )
        finished = posted.get(timeout=10)
    finally:
        actor.close()
    assert isinstance(finished, ActionFinished)
    assert finished.outcome.ok
    assert notes.lines == ["before stop_engine main of inc-000001", "stop_engine main"]


def test_whether_it_served_is_known_although_it_is_under_way_by_now() -> None:
    """FACT: a serving engine did, however its state says ``stopping``; a failed or new one not."""
    story = serving()
    going = set_out(story.engine, "restart_engine", 1.0)
    assert serves(going, 1.0)
    assert not serves(replace(going, ready_at=None), 1.0)
    assert not serves(replace(going, leader=None), 1.0)
    story.read(http(2.0, health="refused", canary="refused"))
    assert not serves(set_out(story.engine, "restart_engine", 13.0), 13.0)
