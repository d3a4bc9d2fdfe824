"""Gaps: a time in which nobody looked proves nothing, neither sickness nor health."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.box import gpu, lost
from tests.support.core import (
    Is,
    Story,
    http,
    metrics,
    process,
    reading,
    restarting,
    rule,
    serving,
)
from watchdog.core.engine import GAP, firing
from watchdog.core.model import Cause, HoldReason, Reading, SubjectKind, Tick, Verb, Verdict
from watchdog.core.state import Restart, RestartHistory

LATER = 3700.0
SAD = rule("sad", Is("custom.sad", (True,)), hold_for=60.0, clear_for=60.0)
RESTARTS = rule("sad", Is("custom.sad", (True,)), actions=("restart_engine",))


def sad(at: float, *, so: bool = True) -> Reading:
    """What a probe of the test says of the engine."""
    return reading("custom", at, ("sad", so))


def fired(story: Story) -> bool:
    """Whether the rule fires."""
    return bool(firing(story.state))


@pytest.mark.parametrize(("gap", "told"), [(GAP, 0), (GAP + 0.1, 1), (86400.0, 1)])
def test_a_gap_is_told_with_its_length(gap: float, told: int) -> None:
    """FACT: a loop that turns every second is late by then, and the journal says by how much."""
    story = serving()
    story.asleep(gap)
    records = story.events("watchdog.gap")
    assert len(records) == told
    assert [dict(record.keys)["seconds"] for record in records] == [round(gap, 3)] * told


def test_a_beginning_is_no_gap() -> None:
    """FACT: before the first event nobody was expected to look."""
    story = Story()
    story.take(Tick(1e6))
    assert not story.events("watchdog.gap")
    assert story.state.gap_at is None


def test_events_out_of_order_are_no_gap() -> None:
    """FACT: a reading that took long is stamped before the tick that was taken first."""
    story = serving()
    story.tick(10.0)
    story.take(Tick(2.0))
    story.take(Tick(24.0))
    assert not story.events("watchdog.gap")
    assert story.state.at == 24.0


def test_trouble_must_hold_anew_after_a_gap() -> None:
    """FACT: ``for`` counts from the first look after it."""
    story = serving(rule_set=(SAD,)).read(sad(1.0))
    story.asleep(LATER)
    story.serve(LATER + 0.5).read(sad(LATER + 1))
    assert not fired(story)
    story.tick(LATER + 61.0)
    assert not fired(story)  # one look does not show that it lasts
    story.read(sad(LATER + 61.1))
    assert fired(story)


def test_health_must_hold_anew_after_a_gap() -> None:
    """FACT: ``clear_for`` too; the finding itself stays."""
    story = serving(rule_set=(SAD,)).read(sad(1.0), sad(61.0), sad(70.0, so=False))
    story.asleep(LATER)
    assert fired(story)
    story.tick(LATER + 500.0)
    assert fired(story)  # what was seen before says nothing of now
    story.read(process(LATER + 501.0), sad(LATER + 501.0, so=False))
    story.tick(LATER + 560.0)
    assert fired(story)
    story.tick(LATER + 561.0)
    assert not fired(story)


def test_a_gap_about_the_box_is_no_time_either() -> None:
    """FACT: what a card showed before does not fire because a night went by."""
    hot = rule("hot", Is("gpu.state", ("lost",)), SubjectKind.GPU, hold_for=60.0)
    story = serving(rule_set=(hot,)).read(gpu(0.0), lost(1.0))
    story.asleep(LATER)
    assert not fired(story)
    story.read(lost(LATER + 1.0), lost(LATER + 60.9))
    assert not fired(story)
    story.tick(LATER + 61.0)
    assert not fired(story)
    story.read(lost(LATER + 61.1))
    assert fired(story)


def test_nobody_is_restarted_for_what_was_known_before_a_gap() -> None:
    """FACT: it is held as stale until the probe that found it and the load were read again."""
    story = serving(rule_set=(RESTARTS,))
    story.command(Verb.PAUSE, 1.0, until=LATER - 1)
    story.read(sad(2.0))
    story.asleep(LATER)
    story.tick(LATER + 1.0)
    assert not story.acts
    assert story.decisions[-1].hold is HoldReason.STALE
    story.read(process(LATER + 2.0), metrics(LATER + 2.0, 0.0))
    assert not story.acts
    assert story.decisions[-1].hold is HoldReason.STALE
    story.read(sad(LATER + 3.0))
    assert [(act.at, act.cause) for act in story.acts] == [(LATER + 3.0, Cause.RULE)]


def stalled() -> Story:
    """An engine that is stalled, and not restarted because of a pause."""
    story = serving()
    story.command(Verb.PAUSE, 1.0)
    story.read(process(2.0, stopped_members=1), process(5.0, stopped_members=1))
    story.read(http(9.0, canary="timeout", took=4.0))
    assert story.engine.health is Verdict.STALLED
    return story


@pytest.mark.parametrize("alive", [True, False])
def test_a_stall_of_before_a_gap_is_looked_at_first(alive: bool) -> None:  # noqa: FBT001
    """FACT: after the gap an engine that serves is left alone, one that does not is restarted."""
    story = stalled()
    story.asleep(LATER)
    story.command(Verb.RESUME, LATER + 1.0)
    story.tick(LATER + 2.0)
    assert not story.acts
    if alive:
        story.read(process(LATER + 3.0), metrics(LATER + 3.0, 9.0))
    else:
        for at in range(3, 12, 3):
            story.read(process(LATER + at, stopped_members=1))
            story.read(http(LATER + at, canary="timeout", took=3.0))
    assert [act.cause for act in story.acts] == ([] if alive else [Cause.STALLED])


def test_what_is_gone_needs_no_look() -> None:
    """FACT: an engine that exited is dead however long nobody looked, and is restarted at once."""
    story = serving()
    story.asleep(LATER)
    story.exited(LATER + 1.0)
    assert len(story.acts) == 1


def test_a_backoff_goes_on_over_a_gap() -> None:
    """FACT: time to wait is time, also when nobody looked."""
    story = restarting()
    story.finished(11.0, "restart_engine", ok=False, cause=Cause.PORT_IN_USE)
    assert story.decisions[-1].hold is HoldReason.BACKOFF
    story.asleep(LATER)
    assert len(story.acts) == 2


def test_a_readings_own_time_is_what_ends_the_staleness() -> None:
    """FACT: a probe that began before the gap and came back after it has not looked since."""
    story = serving(rule_set=(RESTARTS,))
    story.command(Verb.PAUSE, 1.0, until=LATER - 1)
    story.read(sad(2.0))
    story.asleep(LATER)
    story.serve(LATER + 1.0).read(sad(LATER - 100.0))
    assert not story.acts
    assert story.decisions[-1].hold is HoldReason.STALE
    story.read(sad(LATER + 2.0))
    assert len(story.acts) == 1


LONG = rule("sad", Is("custom.sad", (True,)), actions=("restart_engine",), hold_for=60.0)


def sad_for_long(story: Story, first: int, last: int) -> Story:
    """The engine serves and is sad, each second."""
    for at in range(first, last):
        story.serve(float(at), story.engine.generation)
        story.read(reading("custom", at + 0.5, ("sad", True), generation=story.engine.generation))
    return story


def test_what_was_held_in_flight_during_a_pause_is_no_debt() -> None:
    """FACT: whatever held a finding while we were paused, it must hold again for its time."""
    story = serving(rule_set=(LONG,))
    story.command(Verb.PAUSE, 1.0)
    story.command(Verb.RESTART, 2.0)
    story.spawned(3.0, "0000000b")
    for at in range(4, 100):
        story.read(reading("custom", float(at), ("sad", True), generation="0000000b"))
    story.finished(99.5, "restart_engine")
    story.command(Verb.RESUME, 100.0)
    sad_for_long(story, 101, 160)
    assert [act.rule for act in story.acts] == ["operator"]
    assert story.decisions[-1].hold is HoldReason.STALE
    sad_for_long(story, 160, 170)
    assert [act.rule for act in story.acts] == ["operator", "sad"]


def test_what_was_held_in_backoff_before_a_gap_is_no_debt() -> None:
    """FACT: after the gap a finding that goes on firing must hold for its time to be acted upon."""
    story = serving(rule_set=(LONG,))
    history = RestartHistory(restarts=(Restart(0.0),), failures=9)
    story.state = story.state.with_engine(replace(story.engine, history=history))
    sad_for_long(story, 1, 100)
    assert fired(story)
    assert story.decisions[-1].hold is HoldReason.BACKOFF
    story.asleep(500.0)
    sad_for_long(story, 501, 560)
    assert not story.acts
    assert fired(story)
    sad_for_long(story, 560, 570)
    assert len(story.acts) == 1
    assert len(story.events("finding.firing")) == 1


def test_a_paused_finding_goes_on_firing() -> None:
    """FACT: the end of a pause resolves nothing: it is told once, and acted upon when it holds."""
    story = serving(rule_set=(LONG,))
    story.command(Verb.PAUSE, 1.0, until=80.0)
    sad_for_long(story, 2, 139)
    assert not story.acts
    sad_for_long(story, 139, 145)
    assert len(story.acts) == 1
    assert len(story.events("finding.firing")) == 1
    assert not story.events("finding.resolved")
