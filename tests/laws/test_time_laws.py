"""Laws of what nobody saw: pauses that end during an outage, and gaps in which nobody looked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.lawful import lawful
from tests.laws.world import (
    GAPS,
    SETTINGS,
    Fate,
    Look,
    Moment,
    Seen,
    World,
    moments,
    own_acts,
)
from tests.support.core import Story, serving
from tests.support.rules import DEFAULT_RULES
from watchdog.core.engine import step
from watchdog.core.model import Commanded, Seconds, Tick, Verb

FIRST = Moment(0.0, (Look.IDLE,), (Fate.DONE,))
SICK = (
    Look.QUIET,
    Look.STOPPED,
    Look.SPINNING,
    Look.UNHEALTHY,
    Look.REFUSED,
    Look.CORE_GONE,
    Look.FAILING,
)
_TURN: Seconds = 10.0


def _awake(story: Story, until: Seconds) -> None:
    """The loop turns to ``until``, at every moment that the core asked for."""
    while True:
        assert story.last is not None
        wake, turn = story.last.wake_at, (story.state.at or 0.0) + _TURN
        due = turn if wake is None else min(wake, turn)
        if due > until:
            return
        story.take(Tick(due))


@lawful
@given(
    st.sampled_from([0.0, 1.0, 10.0, 60.0]),
    st.sampled_from([5.0, 30.0, 61.0]),
    st.sampled_from([0.0, 4.0, 29.5, 30.0, 30.5]),
    st.sampled_from([None, 0.0, 0.5, 100.0]),
)
def test_w9_a_pause_that_ends_in_an_outage_leaves_no_debts(
    hold_for: float, lasts: float, dies_after: float, asleep: float | None
) -> None:
    """Once the pause is over the condition must hold anew for its `for` before anything is done.

    Also when nobody looked at the moment at which it ended (``asleep`` seconds beyond it).
    """
    rules = [replace(r, hold_for=hold_for) if r.name == "engine-dead" else r for r in DEFAULT_RULES]
    story = serving(rule_set=rules)
    paused, begins = 10.0, 10.0 + lasts
    story.command(Verb.PAUSE, paused, until=begins)
    died = paused + min(dies_after, lasts - 0.5)
    _awake(story, died)
    story.exited(died)
    if asleep is not None:
        begins += asleep
        story.asleep(begins)
    _awake(story, begins + hold_for + 20.0)
    assert [act.at for act in story.acts] == [begins + hold_for]


def _after(trace: list[Seen], since: int) -> list[Seconds]:
    return [act.at - trace[since].event.at for act in own_acts(trace[since:])]


@cache
def _endured(sick: Look) -> int:
    """How many looks at a healthy engine that is ``sick`` now are not acted upon; ten at most."""
    world = World().live([FIRST])
    since = len(world.trace)
    for count in range(11):
        world.live([_look(sick)])
        if own_acts(world.trace[since:]):
            return count
    return 10


def _look(sick: Look) -> Moment:
    return Moment(1.0, (sick,), (Fate.DONE,))


@pytest.mark.parametrize("sick", SICK)
@settings(lawful, max_examples=8)
@given(st.floats(0.0, 1.0), st.sampled_from([15.5, 60.0, 600.0]), st.sampled_from([1, 3, 40]))
def test_nothing_is_decided_from_before_a_gap(
    sick: Look, share: float, gap: float, after: int
) -> None:
    """What was seen before a gap never brings a restart nearer than it is for a healthy engine."""
    late = Moment(gap, (sick,), (Fate.DONE,), times=after)
    fresh = World().live([FIRST])
    since = len(fresh.trace)
    fresh.live([late])
    tired = World().live([FIRST, *[_look(sick)] * round(share * _endured(sick))])
    assert not own_acts(tired.trace[since:])
    since_gap = len(tired.trace)
    tired.live([late])
    allowed, taken = _after(fresh.trace, since), _after(tired.trace, since_gap)
    assert not taken or (allowed and taken[0] >= allowed[0])


@lawful
@given(moments(2), st.floats(0.0, 1.0))
def test_replay_from_any_point_gives_the_same_story(story: list[Moment], where: float) -> None:
    """Whoever begins in the middle, from the state of that moment, sees the same to the end."""
    world = World(("a", "b")).live(story)
    start = int(where * (len(world.trace) - 1))
    state = world.trace[start].before
    for seen in world.trace[start:]:
        done = step(state, seen.event, world.rules, SETTINGS)
        assert (done.state, done.decisions) == (seen.done.state, seen.done.decisions)
        state = done.state


@lawful
@given(moments(), st.lists(st.tuples(st.integers(0, 10_000), st.floats(0.01, 0.99)), max_size=20))
def test_time_alone_changes_nothing_before_the_announced_moment(
    story: list[Moment], probes: list[tuple[int, float]]
) -> None:
    """Once a step's own decisions are judged, a tick before ``wake_at`` finds and tells nothing."""
    world = World().live(story)
    for number, share in probes:
        seen = world.trace[number % len(world.trace)]
        at = max(seen.event.at, seen.done.state.at or 0.0)
        settled = step(seen.done.state, Tick(at), world.rules, SETTINGS)
        until = at + 15.0 if settled.wake_at is None else min(settled.wake_at, at + 15.0)
        done = step(settled.state, Tick(at + (until - at) * share), world.rules, SETTINGS)
        assert (done.decisions, done.findings, done.records) == ((), (), ())


@lawful
@given(st.lists(st.tuples(GAPS, st.sampled_from([Verb.PAUSE, Verb.RESUME])), max_size=12))
def test_a_pause_lasts_exactly_as_long_as_it_was_asked_to(
    asked: list[tuple[float, Verb]],
) -> None:
    """Until its end, or until somebody resumes, and not a step longer."""
    story, at, until = serving(), 10.0, None
    paused = False
    for lasts, verb in asked:
        at += 7.0
        if paused and until is not None and at >= until:
            paused = False
        story.tick(at)
        assert (story.state.pause is not None) is paused
        until = at + lasts
        story.take(Commanded(at, verb, until=until if verb is Verb.PAUSE else None))
        paused = verb is Verb.PAUSE
        assert (story.state.pause is not None) is paused
