"""Standbys: what they know of the others, when they are started and stopped, and what bounds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from tests.support.core import (
    GENERATION,
    NAME,
    Of,
    Story,
    http,
    metrics,
    of_box,
    process,
    reading,
    rule,
)
from tests.support.rule_stories import fires
from tests.support.rule_stories_standby import (
    FIRST,
    LIFE,
    NEEDED,
    helping,
    joined,
    load,
    quiet,
    standing_by,
)
from tests.support.rules import DEFAULT_RULES, when
from watchdog.core import rule_set, views
from watchdog.core.model import (
    HOST,
    Cause,
    Commanded,
    Decision,
    EngineSpawned,
    HoldReason,
    ProcessState,
    Reading,
    ReadingTaken,
    Tick,
    Value,
    Verb,
)
from watchdog.core.state import StoppedBy
from watchdog.replay.calm import Calm


def seen(story: Story, name: str = NAME) -> dict[str, Value]:
    """What rules can ask about the others in the view of ``name``."""
    parts = views.of_engine(story.state, story.state.engines[name]).parts["engine"]
    return {key: value for key, value in parts.items() if key.startswith("engine.others_")}


def told(serving: int, running: float, waiting: float) -> dict[str, Value]:
    """As ``seen``."""
    return {
        "engine.others_serving": serving,
        "engine.others_running": running,
        "engine.others_waiting": waiting,
    }


def did(story: Story, *names: str) -> list[tuple[str, str, str]]:
    """What was done about ``names``: the rule, the action, the engine."""
    wanted = names or (NAME,)
    acts = [(act.rule, act.action, act.target.name) for act in story.acts]
    return [act for act in acts if act[2] in wanted]


def last(story: Story, ruled: str, name: str = NAME) -> Decision:
    """The last decision of that rule about the engine."""
    found = [one for one in story.decisions if (one.rule, one.target.name) == (ruled, name)]
    return found[-1]


# --- what is known ------------------------------------------------------------------------------


def test_a_standby_knows_what_the_others_do() -> None:
    """FACT: sums of the engines that serve, and of nobody else; others have no such samples."""
    story = standing_by("main", "spare")
    story.read(metrics(1.0, 1.0, running=3.0, waiting=2.0, name=FIRST))
    assert seen(story) == seen(story, "spare") == told(1, 3.0, 2.0)
    assert seen(story, FIRST) == {}
    joined(story, 2.0, "spare")
    story.read(metrics(4.0, 4.0, running=1.0, waiting=1.0, name="spare", generation=LIFE))
    assert seen(story) == told(2, 4.0, 3.0)
    assert seen(story, "spare") == told(1, 3.0, 2.0)


def test_what_one_of_the_others_does_not_tell_is_not_known_of_all() -> None:
    """FACT: counters that are 15 s old are no part of a sum, and then there is no sum."""
    story = standing_by("main", "spare")
    joined(story, 1.0, "spare")
    story.read(metrics(3.0, 3.0, running=3.0, name=FIRST))
    story.read(metrics(10.0, 10.0, waiting=2.0, name="spare", generation=LIFE))
    story.tick(18.0)
    assert seen(story) == told(2, 3.0, 2.0)
    story.tick(18.1)
    assert seen(story) == {"engine.others_serving": 2}


def test_nobody_who_serves_is_no_load() -> None:
    """FACT: an engine that died has no part in the sums, although its last counters are fresh."""
    story = standing_by().read(*load(1.0, 2.0, waiting=50.0))
    story.exited(3.0, name=FIRST)
    assert seen(story) == {"engine.others_serving": 0}


def test_the_load_of_another_is_news_to_a_standby() -> None:
    """FACT: its rules answer at the reading of the other engine, not at the next turn of time."""
    mine = rule("mine", when("engine.others_waiting > 2.0"))
    story = standing_by(rules=(mine,))
    story.read(metrics(1.0, 1.0, waiting=3.0, name=FIRST))
    assert ("mine", story.engine.subject) in story.state.watches
    story.read(metrics(1.5, 1.5, waiting=2.0, name=FIRST))
    assert ("mine", story.engine.subject) not in story.state.watches


def test_what_is_decided_of_another_is_news_to_a_standby() -> None:
    """FACT: another that a rule restarts serves no more, as the next event finds out."""
    bad = rule("bad", when("it.bad", bad=bool), actions=("restart_engine",))
    alone = rule("alone", when("engine.others_serving == 0"))
    story = standing_by(rules=(bad, alone))
    story.read(metrics(0.5, 0.5, name=FIRST), reading("it", 1.0, ("bad", True), name=FIRST))
    assert did(story, FIRST) == [("bad", "restart_engine", FIRST)]
    assert not fires(story, "alone")
    story.read(of_box(1.1))
    assert fires(story, "alone")


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_goes_around_the_core_with_a_standby_too(seed: int) -> None:
    """FACT: where the core is not asked, the state is the one that it would have."""
    chance, around = Random(seed), 0  # noqa: S311
    mine = (
        rule("queue", when("engine.others_waiting > 2.0"), hold_for=3.0),
        rule("lone", when("engine.standby && !known(engine.others_running)")),
        rule("bad", when("it.bad", bad=bool), actions=("restart_engine",)),
    )
    story = standing_by(rules=(*DEFAULT_RULES, *mine) if seed % 2 else mine)
    book, life = rule_set.of(story.rule_set), GENERATION
    calm = Calm(book, story.settings)
    for at in range(1, 300):
        if story.state.engines[FIRST].in_flight:
            life = f"{at:08x}"
            story.restarted(at, life, name=FIRST)
        for one in _looks(float(at), chance, Of(name=FIRST, generation=life)):
            event = ReadingTaken(one.at, one)
            found = calm.around(story.state, event)
            done = story.take(event)
            if found is not None:
                around += 1
                assert found == (done.state, done.wake_at)
                assert not done.decisions
        story.take(Tick(float(at)))
    assert around > 300


def _looks(at: float, chance: Random, of: Of) -> Iterator[Reading]:
    """One engine that serves, with a queue at times, and counters that at times are not read."""
    yield of_box(at, (HOST, "x", 1))
    yield process(at, cpu_seconds=at, **of)
    if at % 100 < 80:
        waiting = float(chance.choice([0, 0, 0, 9])) if at % 50 > 40 else 0.0
        yield metrics(at, at, running=9.0 - waiting, waiting=waiting, **of)
    if chance.random() < 0.01:
        yield reading("it", at, ("bad", True), **of)
        yield of_box(at, (HOST, "x", 1))
        yield reading("it", at, ("bad", False), **of)
    yield http(at, canary="ok", status=200, **of)


# --- when it is started -------------------------------------------------------------------------


def test_a_queue_starts_the_standby() -> None:
    """FACT: as the rule's own start, wanted from then on, and on the account of its restarts."""
    story = standing_by().read(*load(1.0, NEEDED, waiting=5.0))
    assert not did(story)
    story.read(*load(NEEDED + 1.0, NEEDED + 1.0, waiting=5.0))
    assert did(story) == [("standby-needed", "start_engine", NAME)]
    assert last(story, "standby-needed").cause is Cause.RULE
    assert story.engine.history.wanted
    assert len(story.engine.history.restarts) == 1


def test_a_queue_that_drains_starts_nobody() -> None:
    """FACT: one look with less than five an engine, and the half minute begins anew."""
    story = standing_by().read(*load(1.0, 26.0, waiting=50.0))
    story.read(*load(29.0, 29.0, waiting=4.0), *load(30.0, 55.0, waiting=50.0))
    assert not did(story)


def test_an_engine_that_is_none_is_started_by_no_queue() -> None:
    """FACT: what is stopped and no standby stays so."""
    story = standing_by()
    stopped = replace(story.engine, settings=replace(story.engine.settings, standby=False))
    story.state = story.state.with_engine(stopped)
    story.read(*load(1.0, 120.0, waiting=50.0))
    assert not did(story)


def test_standbys_start_one_after_the_other() -> None:
    """FACT: the second waits for what the first takes over, and starts if that is not enough."""
    story = standing_by("main", "spare").read(*load(1.0, 60.0, waiting=50.0))
    assert did(story, "main", "spare") == [("standby-needed", "start_engine", "main")]
    held = last(story, "standby-needed", "spare")
    assert (held.hold, held.detail) == (HoldReason.INHIBITED, "the standby main starts already")
    joined(story, 61.0)
    story.read(*load(65.0, 65.0, waiting=50.0))
    assert did(story, "spare") == [("standby-needed", "start_engine", "spare")]


def test_the_next_standby_takes_the_place_of_one_that_cannot_start() -> None:
    """FACT: a start that failed is over: it keeps no other standby from being started."""
    story = standing_by("main", "spare").read(*load(1.0, 31.0, waiting=50.0))
    story.finished(32.0, "start_engine", ok=False, cause=Cause.BAD_ARGUMENTS)
    assert did(story, "spare") == [("standby-needed", "start_engine", "spare")]


def test_what_an_operator_stopped_no_queue_starts() -> None:
    """FACT: a person's stop is the last word, until a person starts it."""
    story = helping()
    story.take(Commanded(40.0, Verb.STOP, NAME))
    story.finished(41.0, "stop_engine")
    story.read(*load(45.0, 120.0, waiting=50.0))
    assert did(story) == [("operator", "stop_engine", NAME)]
    assert last(story, "standby-needed").detail == "the engine was stopped by an operator"


# --- when it cannot be started ------------------------------------------------------------------


def test_a_standby_whose_command_is_wrong_is_tried_once() -> None:
    """FACT: it is given up with the cause, the queue goes on, and nothing is tried again."""
    story = standing_by().read(*load(1.0, 31.0, waiting=50.0))
    story.finished(32.0, "start_engine", ok=False, cause=Cause.BAD_ARGUMENTS)
    story.read(*load(35.0, 1800.0, waiting=50.0))
    assert story.engine.process is ProcessState.GIVEN_UP
    assert did(story) == [("standby-needed", "start_engine", NAME)]
    assert story.engine.cause is Cause.BAD_ARGUMENTS
    (incident,) = [one for one in story.state.incidents if one.subject == story.engine.subject]
    assert (incident.rule, incident.resolved_at) == ("engine-dead", None)


def test_a_standby_that_dies_while_it_starts_has_a_budget() -> None:
    """FACT: the first start counts too: three in an hour never got ready, and that is the end."""
    story = standing_by().read(*load(1.0, 31.0, waiting=50.0))
    at = 31.0
    for life in range(16, 40):
        if story.engine.in_flight:
            action, generation = story.engine.in_flight, f"{life:08x}"
            story.spawned(at + 1.0, generation, Cause.RULE, name=NAME)
            story.finished(at + 1.0, action)
            story.exited(at + 2.0, Cause.CRASH, generation)
        at += 15.0
        story.read(*load(at - 11.0, at, waiting=50.0))
    assert [act[1] for act in did(story)] == ["start_engine", "restart_engine", "restart_engine"]
    assert story.engine.history.breaker_open
    assert story.engine.process is ProcessState.GIVEN_UP


def test_a_gpu_that_is_taken_is_looked_at_less_and_less_often() -> None:
    """FACT: a refusal costs no budget; the waits double up to five minutes, and all is told."""
    story = standing_by().read(*load(1.0, 31.0, waiting=50.0))
    refused = []
    for at in range(32, 3600, 5):
        if story.engine.in_flight:
            refused.append(float(at))
            story.finished(at, story.engine.in_flight, ok=False, cause=Cause.GPU_MEMORY_SHORT)
        story.read(*load(at + 1.0, at + 1.0, waiting=50.0))
    assert len(refused) < 25
    assert refused[-1] - refused[-2] > 250.0
    assert story.engine.cause is Cause.GPU_MEMORY_SHORT
    assert story.engine.process in {ProcessState.BACKOFF, ProcessState.STOPPING}


# --- when it is stopped -------------------------------------------------------------------------


def test_an_idle_standby_is_stopped_when_it_is_empty() -> None:
    """FACT: while a request is in it the stop is held; without one it is made, as a rule's own."""
    story = helping().read(*quiet(40.0, 940.0))
    story.read(metrics(941.0, 941.0, running=1.0, generation=LIFE))
    assert did(story) == [("standby-idle", "stop_engine", NAME)]
    story.finished(942.0, "stop_engine")
    assert story.engine.process is ProcessState.STOPPED
    assert story.engine.history.stopped_by is StoppedBy.RULE
    story.read(*load(945.0, 980.0, waiting=50.0))
    assert did(story)[-1] == ("standby-needed", "start_engine", NAME)


def test_a_standby_in_use_is_held_as_busy() -> None:
    """FACT: the finding is there, and nothing is done before it is known that nobody is in it."""
    story = helping()
    for at in range(40, 960, 5):
        story.read(*load(at, at, running=1.0), metrics(at, at, running=1.0, generation=LIFE))
    assert not did(story)
    held = last(story, "standby-idle")
    assert (held.hold, held.detail) == (HoldReason.INHIBITED, "the engine is busy")


@pytest.mark.parametrize("running", [8.0, 40.0])
def test_what_the_others_cannot_take_keeps_the_standby(running: float) -> None:
    """FACT: nine requests in all are more than the eight of the one other engine."""
    story = helping()
    for at in range(40, 1800, 5):
        story.read(*load(at, at, running=running), metrics(at, at, running=1.0, generation=LIFE))
    assert not [one for one in story.decisions if one.rule == "standby-idle"]


def test_standbys_stop_one_after_the_other() -> None:
    """FACT: what two could each leave to the others is too much for one: the second stays."""
    story = standing_by("main", "spare").read(*load(1.0, 31.0, waiting=50.0))
    joined(story, 32.0)
    story.read(*load(34.0, 65.0, waiting=50.0))
    joined(story, 66.0, "spare")
    story.decisions.clear()
    mine = Of(generation=LIFE)
    for at in range(70, 1000, 5):
        story.read(*load(at, at, running=12.0), metrics(at, at, **mine))
        story.read(metrics(at, at, generation=LIFE, name="spare"))
    assert [act[1] for act in did(story, "main", "spare")] == ["stop_engine"]
    left = did(story, "main", "spare")[0][2]
    story.finished(1001.0, "stop_engine", name=left)
    for at in range(1005, 1100, 5):
        story.read(*load(at, at, running=12.0), metrics(at, at, **mine))
        story.read(metrics(at, at, generation=LIFE, name="spare"))
    assert len(did(story, "main", "spare")) == 1


@pytest.mark.parametrize("who", list(StoppedBy))
def test_a_standby_that_is_found_running_is_stopped_for_a_known_reason(who: StoppedBy) -> None:
    """FACT: a stop that was not done is done; where the memory is lost its requests go on."""
    story = standing_by()
    history = replace(story.engine.history, stopped_by=who)
    story.state = story.state.with_engine(replace(story.engine, history=history))
    story.take(EngineSpawned(1.0, NAME, LIFE, 9, Cause.UNKNOWN, adopted=True, ready=True))
    assert bool(did(story)) is (who is not StoppedBy.NOBODY)
    assert story.engine.history.wanted is (who is StoppedBy.NOBODY)


def test_a_standby_that_is_alone_is_kept() -> None:
    """FACT: while nobody else serves it is not known what others could take."""
    story = helping().read(*quiet(40.0, 60.0))
    story.exited(61.0, Cause.BAD_ARGUMENTS, name=FIRST)
    for at in range(62, 1800, 5):
        story.read(metrics(at, at, generation=LIFE))
    assert not did(story)


def test_what_an_operator_started_is_kept_for_the_time_of_the_rule() -> None:
    """FACT: it is handed to the rules with that; they stop it 15 quiet minutes after it serves."""
    story = standing_by()
    story.take(Commanded(1.0, Verb.START, NAME))
    joined(story, 2.0)
    story.decisions.clear()
    story.read(*quiet(5.0, 900.0))
    assert not did(story)
    story.read(*quiet(905.0, 915.0))
    assert did(story) == [("standby-idle", "stop_engine", NAME)]


def test_load_that_comes_and_goes_does_not_open_the_breaker() -> None:
    """FACT: as often as both rules allow, an hour has fewer starts than its budget."""
    story, at = standing_by(), 1.0
    for _ in range(8):
        story.read(*load(at, at + NEEDED, waiting=5.0))
        joined(story, at + NEEDED)
        story.read(*quiet(at + NEEDED + 1.0, at + NEEDED + 906.0))
        story.finished(at + NEEDED + 907.0, "stop_engine")
        at += NEEDED + 908.0
    assert [act[1] for act in did(story)] == ["start_engine", "stop_engine"] * 8
    assert not story.engine.history.breaker_open
