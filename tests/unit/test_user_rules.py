"""Rules of a user's own that start, stop and restart engines, and what even they may not do."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from tests.support.acting import Box, repertoire, spec
from tests.support.core import GENERATION, NAME, Story, metrics, process, reading, rule, serving
from tests.support.rules import DEFAULT_RULES, when
from watchdog.contracts import EngineControl, Order
from watchdog.core.model import (
    Cause,
    Decision,
    Event,
    HoldReason,
    Mode,
    ProcessState,
    Reading,
    Seconds,
    Verb,
    Verdict,
    engine_subject,
)
from watchdog.core.state import (
    Budget,
    EngineSettings,
    EngineState,
    RestartHistory,
    State,
    StoppedBy,
)
from watchdog.executor import Actor

NEXT = "0000000b"
ASKED = when("it.asked", asked=bool)


def story(action: str, *, defaults: bool = False, **changes: object) -> Story:
    """A serving engine under a rule that does ``action`` when it is asked for."""
    mine = rule("mine", ASKED, **{"actions": (action,), **changes})  # type: ignore[arg-type]
    return serving(rule_set=(*(DEFAULT_RULES if defaults else ()), mine))


def asked(at: Seconds, *, so: bool = True, generation: str = GENERATION) -> Reading:
    """What the user's own probe says."""
    return reading("it", at, ("asked", so), generation=generation)


class Engine:
    """Does nothing when it is asked to."""

    name = NAME

    def stop(self, *, drain: bool, cause: Cause, generation: str = "") -> None:
        """Nothing to stop."""

    def start(self, cause: Cause) -> None:
        """Nothing to start."""


class Kept:
    """An action that keeps its orders."""

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def run(self, order: Order, engine: EngineControl) -> None:  # noqa: ARG002 - the contract
        """Keep it."""
        self.orders.append(order)


def order_of(decision: Decision) -> Order:
    """What the engine's hands are told to do."""
    kept, done = Kept(), queue.SimpleQueue[Event]()
    actor = Actor(Engine(), repertoire(spec(decision.action, kept)), done.put, Box())
    try:
        actor.submit(decision)
        done.get(timeout=10)
    finally:
        actor.close()
    return kept.orders[0]


def test_a_rule_that_restarts_what_serves_lets_it_finish() -> None:
    """FACT: the cause is the rule's, and the order is to drain: nothing had failed."""
    seen = story("restart_engine").read(asked(1.0))
    (act,) = seen.acts
    assert (act.action, act.cause, act.rule) == ("restart_engine", Cause.RULE, "mine")
    order = order_of(act)
    assert (order.drain, order.cause, order.target) == (True, Cause.RULE, engine_subject(NAME))


def test_a_rule_that_restarts_what_has_failed_does_not_wait() -> None:
    """FACT: of an engine that crashed the cause is the crash, and there is nothing to drain."""
    mine = rule("mine", when('engine.health == "dead"'), actions=("restart_engine",))
    seen = serving(rule_set=(mine,))
    seen.exited(1.0)
    (act,) = seen.acts
    assert act.cause is Cause.CRASH
    assert not order_of(act).drain


def busy(seen: Story, first: int, last: int) -> Story:
    """The engine works on requests from ``first`` to ``last``."""
    for at in range(first, last):
        seen.read(process(float(at), cpu_seconds=float(at)))
        seen.read(metrics(float(at), float(at), running=2.0))
    return seen


@pytest.mark.parametrize("action", ["restart_engine", "stop_engine"])
def test_no_rule_interrupts_requests(action: str) -> None:
    """FACT: while an engine works on requests it is let be; as soon as it is idle the rule acts."""
    seen = busy(story(action), 1, 5)
    assert seen.engine.verdict is Verdict.BUSY
    seen.read(asked(5.0))
    busy(seen, 6, 300)
    assert not seen.acts
    (hold,) = seen.decisions
    assert (hold.hold, hold.detail) == (HoldReason.INHIBITED, "the engine is busy")
    seen.read(metrics(300.0, 300.0))
    assert [(act.at, act.action) for act in seen.acts] == [(300.0, action)]


def test_a_stall_is_not_spared_as_busy() -> None:
    """FACT: requests in an engine that makes no tokens are no reason to leave it as it is."""
    mine = rule("mine", when('engine.health == "stalled"'), actions=("restart_engine",))
    seen = serving(rule_set=(mine,))
    for at in range(3, 200, 3):
        seen.read(process(float(at)), metrics(float(at), 0.0, running=1.0))
        seen.read(reading("engine_http", float(at), ("health", "ok"), ("canary", "timeout")))
    assert [act.cause for act in seen.acts][:1] == [Cause.STALLED]


def test_a_rules_stop_is_sticky() -> None:
    """FACT: what a rule has stopped is not wanted any more, and no other rule starts it again."""
    seen = story("stop_engine", defaults=True).read(asked(1.0))
    seen.exited(2.0, Cause.SIGNAL)
    seen.finished(3.0, "stop_engine")
    seen.tick(600.0)
    assert [(act.action, act.cause) for act in seen.acts] == [("stop_engine", Cause.RULE)]
    assert not seen.engine.history.wanted
    assert seen.engine.process is ProcessState.STOPPED
    assert not seen.engine.history.restarts


def test_no_rule_restarts_what_a_person_has_stopped() -> None:
    """FACT: a stop is sticky whatever a rule makes of an engine without processes."""
    mine = rule("mine", when("engine.members == 0.0"), actions=("restart_engine",))
    seen = serving(rule_set=(*DEFAULT_RULES, mine))
    seen.command(Verb.STOP, 10.0)
    seen.exited(11.0, Cause.SIGNAL)
    seen.finished(12.0, "stop_engine")
    seen.tick(60.0)
    assert [(act.rule, act.action) for act in seen.acts] == [("operator", "stop_engine")]


def test_a_person_may_start_what_a_rule_has_stopped() -> None:
    """FACT: a command says what is wanted from then on."""
    seen = story("stop_engine", defaults=True).read(asked(1.0))
    seen.finished(3.0, "stop_engine")
    seen.command(Verb.START, 10.0)
    assert [act.action for act in seen.acts] == ["stop_engine", "start_engine"]
    assert seen.engine.history.wanted


UNWANTED = when('engine.process == "stopped" && !engine.wanted')
STARTS = rule("mine", UNWANTED, actions=("start_engine",), hold_for=60.0)
"""Starts after a minute what is stopped and not wanted."""


def standby() -> Story:
    """An engine that nobody has ever stopped, and that is not wanted until a rule says so."""
    kept = EngineState(EngineSettings(NAME), history=RestartHistory(wanted=False))
    seen = Story(State({NAME: kept}), rule_set=(*DEFAULT_RULES, STARTS))
    seen.tick(2.0)
    return seen


def stopped_by_rule() -> Story:
    """An engine that another rule has stopped."""
    stops = rule("stops", ASKED, actions=("stop_engine",))
    seen = serving(rule_set=(*DEFAULT_RULES, stops, STARTS)).read(asked(1.0))
    seen.finished(2.0, "stop_engine")
    assert seen.engine.history.stopped_by is StoppedBy.RULE
    return seen


@pytest.mark.parametrize("begin", [standby, stopped_by_rule])
def test_a_rule_may_start_what_no_person_has_stopped(begin: Callable[[], Story]) -> None:
    """FACT: it is wanted from then on, and restarted like any other when it dies."""
    seen = begin()
    before = len(seen.acts)
    seen.tick(61.9)
    assert len(seen.acts) == before
    seen.tick(62.0)
    started = [(act.rule, act.action, act.cause) for act in seen.acts[before:]]
    assert started == [("mine", "start_engine", Cause.RULE)]
    assert seen.engine.history.wanted
    assert seen.engine.history.stopped_by is StoppedBy.NOBODY
    seen.spawned(63.0, NEXT, Cause.RULE)
    seen.finished(63.1, "start_engine")
    seen.serve(70.0, NEXT)
    seen.exited(80.0, generation=NEXT)
    assert seen.decisions[-1].hold is HoldReason.BACKOFF  # the start was on its account
    seen.tick(82.0)
    assert seen.acts[-1].action == "restart_engine"


@pytest.mark.parametrize("first", ["person", "rule"])
def test_no_rule_starts_what_a_person_has_stopped(first: str) -> None:
    """FACT: not even when a rule had stopped it before: a person's stop is the last word."""
    seen = stopped_by_rule() if first == "rule" else serving(rule_set=(STARTS,))
    seen.command(Verb.STOP, 3.0)
    if first == "person":
        seen.finished(4.0, "stop_engine")
    before = len(seen.acts)
    seen.tick(900.0)
    assert len(seen.acts) == before
    assert seen.engine.history.stopped_by is StoppedBy.OPERATOR
    assert _last_of(seen, "mine") == (HoldReason.INHIBITED, BY_OPERATOR)


BY_OPERATOR = "the engine was stopped by an operator"


def _last_of(seen: Story, ruled: str) -> tuple[HoldReason | None, str]:
    one = [decision for decision in seen.decisions if decision.rule == ruled][-1]
    return one.hold, one.detail


def test_a_first_start_is_the_operators_whoever_decides_it() -> None:
    """FACT: an engine that is wanted was asked for by whoever configured it."""
    mine = rule("mine", when('engine.process == "stopped"'), actions=("start_engine",))
    seen = Story(rule_set=(mine,))
    seen.tick(1.0)
    assert [(act.action, act.cause) for act in seen.acts] == [("start_engine", Cause.OPERATOR)]


def held_once(seen: Story, words: str) -> bool:
    """Whether all that the rule ``mine`` came to is one hold with these words."""
    by_rule = [decision for decision in seen.decisions if decision.rule == "mine"]
    return [(one.hold, one.detail) for one in by_rule] == [(HoldReason.INHIBITED, words)]


def test_what_runs_is_not_started_again() -> None:
    """FACT: it is held, once, with the reason."""
    seen = story("start_engine").read(asked(3.0))
    seen.tick(60.0)
    assert held_once(seen, "the engine is not stopped")


@pytest.mark.parametrize("action", ["stop_engine", "restart_engine"])
@pytest.mark.parametrize("by", [StoppedBy.NOBODY, StoppedBy.RULE, StoppedBy.OPERATOR])
def test_what_is_stopped_is_not_stopped_again(action: str, by: StoppedBy) -> None:
    """FACT: nor restarted, whoever stopped it; it is held, once, with the reason."""
    history = RestartHistory(wanted=False, stopped_by=by)
    mine = rule("mine", when('engine.process == "stopped"'), actions=(action,))
    kept = EngineState(EngineSettings(NAME), history=history)
    seen = Story(State({NAME: kept}), rule_set=(mine,))
    seen.tick(1.0)
    seen.tick(60.0)
    assert held_once(seen, BY_OPERATOR if by is StoppedBy.OPERATOR else "the engine is stopped")


def test_a_rules_restarts_spend_the_budget() -> None:
    """FACT: five an hour and no more: then the breaker opens, and the engine serves on."""
    seen = story("restart_engine")
    for n in range(1, 10):
        generation = f"{n:08x}"
        seen.serve(100.0 * n, seen.engine.generation)
        seen.read(asked(100.0 * n, generation=seen.engine.generation))
        if seen.engine.in_flight:
            seen.spawned(100.0 * n + 1, generation, Cause.RULE)
            seen.finished(100.0 * n + 2, "restart_engine")
            seen.read(asked(100.0 * n + 3, so=False, generation=generation))
            seen.serve(100.0 * n + 4, generation)
    assert len(seen.acts) == 5
    assert [restart.boot for restart in seen.engine.history.restarts] == [False] * 5
    assert seen.engine.history.breaker_open
    assert seen.engine.process is ProcessState.RUNNING
    assert seen.decisions[-1].hold is HoldReason.BREAKER_OPEN
    assert len(seen.events("breaker.opened")) == 1


def test_a_start_by_a_rule_is_on_the_account_and_its_stop_is_not() -> None:
    """FACT: what may be done for ever costs nothing; what leads to a start is bounded."""
    seen = stopped_by_rule()
    assert not seen.engine.history.restarts
    seen.tick(62.0)
    assert [act.action for act in seen.acts] == ["stop_engine", "start_engine"]
    assert [restart.at for restart in seen.engine.history.restarts] == [62.0]


def test_the_first_start_of_what_is_wanted_is_free() -> None:
    """FACT: whoever configured the engine asked for it: it is on nobody's account."""
    seen = Story()
    seen.tick(1.0)
    assert [act.action for act in seen.acts] == ["start_engine"]
    assert not seen.engine.history.restarts


@pytest.mark.parametrize(
    ("mode", "paused", "reason"),
    [
        (Mode.OBSERVE, False, HoldReason.OBSERVE),
        (Mode.OBSERVE, True, HoldReason.OBSERVE),
        (Mode.ACT, True, HoldReason.PAUSED),
    ],
)
def test_a_rule_on_trial_says_what_it_would_do(
    mode: Mode,
    paused: bool,  # noqa: FBT001
    reason: HoldReason,
) -> None:
    """FACT: with mode "observe", and while paused, the decision is to hold, and nothing else."""
    seen = story("restart_engine", mode=mode)
    if paused:
        seen.command(Verb.PAUSE, 0.5)
    seen.read(asked(1.0))
    assert [(one.action, one.hold) for one in seen.decisions] == [("restart_engine", reason)]
    assert seen.engine.process is ProcessState.RUNNING


def test_a_rule_that_is_off_says_nothing() -> None:
    """FACT: neither finding nor decision."""
    seen = story("restart_engine", mode=Mode.OFF).read(asked(1.0))
    assert not seen.decisions
    assert not seen.events("finding.firing")


def test_a_rule_on_trial_opens_incidents_like_any_other() -> None:
    """FACT: whoever tries a rule wants to see what it would have found."""
    seen = story("restart_engine", mode=Mode.OBSERVE).read(asked(1.0))
    assert [incident.rule for incident in seen.state.incidents] == ["mine"]


def test_the_budget_of_a_box_with_little_of_it() -> None:
    """FACT: a budget of none lets no rule restart anything."""
    mine = rule("mine", ASKED, actions=("restart_engine",))
    seen = serving(rule_set=(mine,), restart_budget=Budget(0, 3600.0)).read(asked(1.0))
    assert not seen.acts
    assert seen.decisions[-1].hold is HoldReason.BUDGET
