"""What a rule does not restart: an engine of whose requests nobody knows, or that just started."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.core import (
    GENERATION,
    NAME,
    Story,
    http,
    metrics,
    of_box,
    process,
    rule,
    serving,
)
from tests.support.rules import DEFAULT_RULES, when
from watchdog.core.model import (
    Cause,
    EngineSpawned,
    HoldReason,
    ProcessState,
    Reading,
    Seconds,
    Severity,
    Verb,
    Verdict,
    engine_subject,
)
from watchdog.core.state import Restart
from watchdog.daemon.engines import requests_in

ENGINE = engine_subject(NAME)
NEXT = "0000000b"
BAD = when("it.x > 5", x=float)
WORSE = when("it.y > 5", y=float)
RESTARTS = rule("mine", BAD, actions=("restart_engine",))
NOT_KNOWN = "how many requests are in the engine is not known"
FULL = tuple(Restart(float(at)) for at in range(5))
"""A restart budget that is spent."""


def bad(at: Seconds, x: float = 9.0) -> Reading:
    """What a probe of the box says of the engine."""
    return of_box(at, (ENGINE, "x", x))


def holds(story: Story) -> list[tuple[HoldReason | None, str]]:
    """What was decided, in order, and in words."""
    return [(one.hold, one.detail) for one in story.decisions]


def test_a_load_that_was_never_read_is_not_none() -> None:
    """FACT: an engine whose counters nobody has read may be full: it is left as it is."""
    story = serving(rule_set=(RESTARTS,))
    for at in range(1, 100):
        story.read(process(float(at)), http(float(at), canary="ok", status=200))
    story.read(bad(100.0))
    assert holds(story) == [(HoldReason.STALE, NOT_KNOWN)]
    story.read(metrics(101.0, 1.0))
    assert [act.at for act in story.acts] == [101.0]


def adopted() -> Story:
    """An engine of an earlier watchdog, of which nothing was read yet."""
    story = Story(rule_set=(RESTARTS,))
    event = EngineSpawned(
        0.0,
        NAME,
        GENERATION,
        1,
        Cause.UNKNOWN,
        adopted=True,
        ready=True,
        spawned_at=-100.0,
        ready_at=-90.0,
    )
    story.take(event)
    return story


@pytest.mark.parametrize(("requests", "acts"), [(0.0, 1), (3.0, 0)])
def test_an_adopted_engine_is_looked_at_first(requests: float, acts: int) -> None:
    """FACT: until its counters are read nobody knows what an earlier watchdog's engine does."""
    story = adopted().read(bad(1.0))
    assert holds(story) == [(HoldReason.STALE, NOT_KNOWN)]
    story.read(metrics(2.0, 1.0, running=requests))
    assert len(story.acts) == acts


def test_requests_in_a_degraded_engine_count() -> None:
    """FACT: it need not be proven busy: one request that is in it is enough."""
    story = serving(rule_set=(RESTARTS,))
    for at in range(1, 6):
        story.read(process(float(at)), metrics(float(at), float(at), running=5.0))
        story.read(http(float(at), "status"))
    story.read(bad(6.0))
    assert story.engine.health is not Verdict.READY
    assert holds(story) == [(HoldReason.INHIBITED, "the engine is busy")]
    story.read(metrics(7.0, 9.0))
    assert len(story.acts) == 1


def test_what_was_counted_before_a_stop_proves_nothing() -> None:
    """FACT: a drain ends at counters that were read since it began; a request may have come."""
    engine = serving().read(metrics(5.0, 1.0)).engine
    assert requests_in(engine, since=5.0) == 0.0
    assert requests_in(engine, since=5.1) is None
    assert requests_in(None, since=0.0) is None


def test_nothing_is_in_an_engine_that_never_answered() -> None:
    """FACT: a stop during the load does not wait for requests that cannot be there."""
    story = Story()
    story.tick(0.0)
    story.spawned(1.0)
    assert requests_in(story.engine, since=2.0) == 0.0


def test_requests_that_wait_count() -> None:
    """FACT: what waits in the queue would be lost as well."""
    story = serving(rule_set=(RESTARTS,)).read(metrics(1.0, 1.0, waiting=1.0), bad(1.5))
    assert holds(story) == [(HoldReason.INHIBITED, "the engine is busy")]


@pytest.mark.parametrize(("at", "acts"), [(15.0, 1), (15.1, 0)])
def test_old_counters_say_nothing_of_now(at: float, acts: int) -> None:
    """FACT: fifteen seconds after the last look the load is not known any more."""
    story = serving(rule_set=(RESTARTS,)).read(process(10.0), bad(at))
    assert len(story.acts) == acts
    assert holds(story)[-1] == ((None, "mine is so") if acts else (HoldReason.STALE, NOT_KNOWN))


def test_counters_of_before_a_gap_say_nothing() -> None:
    """FACT: that it was idle before nobody looked does not tell that it is."""
    story = serving(rule_set=(RESTARTS,))
    story.asleep(1000.0)
    story.read(process(1001.0), http(1001.2, canary="ok", status=200), bad(1002.0))
    assert not story.acts
    assert holds(story)[-1] == (HoldReason.STALE, NOT_KNOWN)


def test_what_has_failed_is_restarted_whatever_its_load() -> None:
    """FACT: requests in a dead engine are lost already."""
    story = serving(rule_set=(*DEFAULT_RULES, RESTARTS)).read(metrics(1.0, 1.0, running=4.0))
    story.exited(2.0)
    assert [act.action for act in story.acts] == ["restart_engine"]


def test_a_second_rule_looks_at_the_new_start() -> None:
    """FACT: what it had found of the engine before the first rule's restart is old."""
    first = replace(RESTARTS, severity=Severity.CRITICAL)
    second = rule("other", WORSE, actions=("restart_engine",))
    story = serving(rule_set=(first, second))
    both = ((ENGINE, "x", 9.0), (ENGINE, "y", 9.0))
    story.read(of_box(1.0, *both)).restarted(3.0, NEXT)
    story.tick(5.0)
    assert [act.rule for act in story.acts] == ["mine"]
    assert {one.rule: one.hold for one in story.decisions}["other"] is HoldReason.STALE
    story.read(of_box(6.0, (ENGINE, "x", 1.0), (ENGINE, "y", 9.0)))
    assert [act.rule for act in story.acts] == ["mine", "other"]


def test_a_rule_looks_at_what_an_operator_has_restarted() -> None:
    """FACT: also when its ``for`` ends after that restart."""
    story = serving(rule_set=(replace(RESTARTS, hold_for=5.0),)).read(bad(1.0))
    story.command(Verb.RESTART, 2.0)
    story.restarted(3.0, NEXT)
    story.tick(7.0)
    story.tick(9.0)
    assert [act.rule for act in story.acts] == ["operator"]
    story.read(bad(10.0))
    assert [act.rule for act in story.acts] == ["operator", "mine"]


def test_starts_and_stops_by_rules_are_bounded() -> None:
    """FACT: a stop rests for five minutes, and what starts it again does so five times an hour."""
    hot = rule("hot", BAD, actions=("stop_engine",))
    cool = rule("cool", when("it.x <= 5", x=float), actions=("start_engine",))
    story = serving(rule_set=(hot, cool))
    for turn in range(340):
        at, generation = 10.0 * turn + 1.0, f"{turn + 16:08x}"
        if story.engine.process is ProcessState.RUNNING:
            story.serve(at, story.engine.generation).read(bad(at))
        if story.engine.in_flight:
            story.finished(at + 1.0, "stop_engine")
        story.read(bad(at + 2.0, x=1.0))
        if story.engine.in_flight:
            story.spawned(at + 3.0, generation)
            story.finished(at + 3.0, "start_engine")
            story.serve(at + 3.5, generation)
    assert [act.action for act in story.acts].count("start_engine") == 5
    assert story.engine.history.breaker_open


def test_restarts_of_what_serves_wait_in_between() -> None:
    """FACT: 1, 2, 4 seconds after the last one, as if it had failed."""
    story = serving(rule_set=(RESTARTS,))
    for turn in range(200):
        at = 1.0 + 0.25 * turn
        story.serve(at, story.engine.generation).read(bad(at))
        if story.engine.in_flight:
            story.spawned(at, f"{turn + 16:08x}", Cause.RULE)
            story.finished(at, "restart_engine")
    ats = [act.at for act in story.acts]
    waits = [later - at for at, later in pairwise(ats)]
    assert all(wait >= least for wait, least in zip(waits, (1.0, 2.0, 4.0, 8.0), strict=True))


def test_what_has_served_is_not_barred_by_its_boots() -> None:
    """FACT: three starts that never got ready do not open the breaker of one that did."""
    story = serving()
    boots = tuple(Restart(float(at), boot=True) for at in range(3))
    history = replace(story.engine.history, restarts=boots)
    story.state = story.state.with_engine(replace(story.engine, history=history))
    story.exited(100.0)
    assert [act.action for act in story.acts] == ["restart_engine"]
    assert not story.engine.history.breaker_open


@pytest.mark.parametrize("action", ["stop_engine", "dump"])
def test_what_starts_nothing_opens_no_breaker(action: str) -> None:
    """FACT: the budget is one of starts: a stop and a harmless action are done without it."""
    story = serving(rule_set=(rule("mine", BAD, actions=(action,)),))
    history = replace(story.engine.history, restarts=FULL)
    story.state = story.state.with_engine(replace(story.engine, history=history))
    story.read(bad(6.0))
    assert [act.action for act in story.acts] == [action]
    assert not story.engine.history.breaker_open
    assert story.engine.history.restarts == FULL
