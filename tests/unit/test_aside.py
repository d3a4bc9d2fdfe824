"""Actions that neither start nor stop an engine: done beside, and never in the way of a restart."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.acting import Box, repertoire, spec
from tests.support.core import NAME, reading, rule, serving
from tests.support.rules import DEFAULT_RULES, when
from watchdog.contracts import ActionSpec, BoxControl, EngineControl, Order
from watchdog.core.model import (
    ActionFinished,
    Cause,
    Decision,
    Event,
    HoldReason,
    Reading,
    Seconds,
    Verb,
    engine_subject,
)
from watchdog.executor import Actor

DUMPS = rule("mine", when("it.x > 5", x=float), actions=("dump",))


def bad(at: Seconds) -> Reading:
    """What the user's own probe says."""
    return reading("it", at, ("x", 9.0))


def test_a_crash_is_not_kept_waiting() -> None:
    """FACT: while an action hangs beside it, a dead engine is restarted at once."""
    story = serving(rule_set=(DUMPS, *DEFAULT_RULES)).read(bad(1.0))
    assert story.engine.aside == "dump"
    story.exited(2.0)
    assert [act.action for act in story.acts] == ["dump", "restart_engine"]
    assert (story.engine.aside, story.engine.in_flight) == ("dump", "restart_engine")


def test_an_operator_is_not_kept_waiting() -> None:
    """FACT: nor is a command."""
    story = serving(rule_set=(DUMPS,)).read(bad(1.0))
    story.command(Verb.RESTART, 86400.0)
    assert [act.action for act in story.acts] == ["dump", "restart_engine"]
    assert story.engine.pending is None


def test_one_action_beside_at_a_time() -> None:
    """FACT: another rule's waits for its end."""
    other = rule("other", when("it.y > 5", y=float), actions=("profile",))
    both = reading("it", 1.0, ("x", 9.0), ("y", 9.0))
    story = serving(rule_set=(DUMPS, other)).read(both)
    assert [act.action for act in story.acts] == ["dump"]
    assert {one.rule: one.hold for one in story.decisions}["other"] is HoldReason.IN_FLIGHT
    story.finished(2.0, "dump")
    story.read(reading("it", 3.0, ("x", 1.0), ("y", 9.0)))
    assert [act.action for act in story.acts] == ["dump", "profile"]


def test_what_costs_nothing_rests_for_five_minutes() -> None:
    """FACT: trouble that lasts an hour is dumped a dozen times, and not each second."""
    story = serving(rule_set=(DUMPS,))
    for at in range(1, 3600):
        story.read(bad(float(at)))
        if story.engine.aside:
            story.finished(at + 0.5, "dump")
    waits = [b.at - a.at for a, b in zip(story.acts, story.acts[1:], strict=False)]
    assert len(story.acts) == 12
    assert min(waits) >= 300.0


class Engine:
    """Says that it was started or stopped."""

    name = NAME

    def __init__(self) -> None:
        self.touched: list[str] = []

    def stop(self, *, drain: bool, cause: Cause, generation: str = "") -> None:  # noqa: ARG002
        """Remember it."""
        self.touched.append("stop")

    def start(self, cause: Cause) -> None:  # noqa: ARG002 - the contract
        """Remember it."""
        self.touched.append("start")


class Does:
    """An action beside that calls what it was given."""

    def __init__(self, what: Callable[[Order, BoxControl], str]) -> None:
        self._what = what

    def run(self, order: Order, box: BoxControl) -> str:
        """Call it."""
        return self._what(order, box)


class Starts:
    """An action that starts the engine."""

    def run(self, order: Order, engine: EngineControl) -> None:
        """Start it."""
        engine.start(order.cause)


Hands = tuple[Actor, Engine, "queue.SimpleQueue[Event]"]


@contextmanager
def hands(*specs: ActionSpec) -> Iterator[Hands]:
    """A real actor with real threads."""
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine = Engine()
    actor = Actor(engine, repertoire(*specs), posted.put, Box())
    try:
        yield actor, engine, posted
    finally:
        actor.close()


def order(actor: Actor, action: str) -> None:
    """Let it be done."""
    actor.submit(Decision(1.0, "mine", engine_subject(NAME), action, Cause.RULE))


def ended(posted: queue.SimpleQueue[Event]) -> ActionFinished:
    """The next outcome."""
    event = posted.get(timeout=20)
    assert isinstance(event, ActionFinished)
    return event


def test_a_restart_overtakes_what_hangs_beside_it() -> None:
    """FACT: each has a thread of its own."""
    gate = threading.Event()
    hangs = spec("dump", Does(lambda *_: str(gate.wait(30))))
    restarts = spec("restart_engine", Starts())
    with hands(hangs, restarts) as (actor, engine, posted):
        order(actor, "dump")
        order(actor, "restart_engine")
        assert ended(posted).outcome.action == "restart_engine"
        assert engine.touched == ["start"]
        gate.set()
        assert ended(posted).outcome.ok


def test_what_does_not_end_is_given_up_after_its_time() -> None:
    """FACT: the outcome says so, and while it lives no other is begun."""
    gate = threading.Event()
    hangs = spec("dump", Does(lambda *_: str(gate.wait(30))), timeout=0.05)
    with hands(hangs) as (actor, _, posted):
        order(actor, "dump")
        first = ended(posted).outcome
        order(actor, "dump")
        second = ended(posted).outcome
        gate.set()
    assert (first.ok, first.explanation) == (False, "cannot dump: it still runs after 0.05 s")
    assert (second.ok, second.explanation) == (
        False,
        "cannot dump: an earlier action still runs",
    )


def test_what_is_done_beside_has_the_box() -> None:
    """FACT: it learns what its rule has chosen, and says what it did."""

    def poke(order: Order, box: BoxControl) -> str:
        return f"{order.choice} of {order.rule}: {box.run([order.action], {}, 1.0)}"

    with hands(spec("poke", Does(poke))) as (actor, engine, posted):
        order(actor, "poke:eye")
        outcome = ended(posted).outcome
    assert not engine.touched
    assert (outcome.action, outcome.ok) == ("poke:eye", True)
    assert outcome.explanation == "eye of mine: ran"


def test_what_cannot_begin_has_an_outcome_too() -> None:
    """FACT: without a thread for it, or without such an action, it has failed: others are begun.

    A stack larger than the address space stands for a limit of tasks that is reached.
    """
    dumps = spec("dump", Does(lambda *_: "dumped"))
    with hands(dumps) as (actor, _, posted):
        before = threading.stack_size(1 << 47)
        try:
            order(actor, "dump")
        finally:
            threading.stack_size(before)
        assert ended(posted).outcome.explanation == "cannot dump: can't start new thread"
        order(actor, "unheard")
        assert not ended(posted).outcome.ok
        order(actor, "dump")
        assert ended(posted).outcome.ok
