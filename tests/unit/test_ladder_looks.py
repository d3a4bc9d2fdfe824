"""Which looks a ladder waits for before it takes the next rung."""

from __future__ import annotations

from dataclasses import replace

from tests.support.core import GENERATION, NAME, Story, reading, rule, serving
from tests.support.rules import when
from watchdog.core.model import HoldReason, Reading, Verb

OTHER = "00000009"


def _story() -> Story:
    """A serving engine under a ladder over two probes, of which one is off."""
    either = when("it.bad || it.worse", bad=bool, worse=bool)
    return serving(rule_set=(rule("mine", either, actions=("nudge", "shake")),))


def test_a_probe_that_never_tells_is_not_waited_for() -> None:
    """FACT: one of two probes decides alone when the other has never looked."""
    seen = _story().read(reading("it", 1.0, ("bad", True)))
    seen.finished(2.0, "nudge")
    assert seen.decisions[-1].hold is HoldReason.STALE
    seen.read(reading("it", 3.0, ("bad", True)))
    assert [act.action for act in seen.acts] == ["nudge", "shake"]


def test_a_look_at_another_start_is_no_look() -> None:
    """FACT: a reading of a generation that is gone does not tell whether an action has helped."""
    seen = _story().read(reading("it", 1.0, ("bad", True)))
    seen.finished(2.0, "nudge")
    seen.read(reading("it", 3.0, ("bad", True), generation=OTHER, name=NAME))
    assert [act.action for act in seen.acts] == ["nudge"]


def _twice(at: float, x: float, generation: str = GENERATION) -> Reading:
    return reading("it", at, ("x", x), generation=generation)


LEVELS = rule("mine", when("it.x > 5", x=float), actions=("restart_engine", "stop_engine"))


def _healthy(seen: Story, first: int, last: int) -> Story:
    for at in range(first, last, 10):
        generation = seen.engine.generation
        seen.serve(float(at), generation).read(_twice(at + 1.0, 0.0, generation))
    return seen


def test_after_our_own_restart_healthy_time_begins_the_ladder_anew() -> None:
    """FACT: that the finding cleared unseen, between two watchdogs, does not make it climb."""
    before = serving(rule_set=(LEVELS,)).read(_twice(1.0, 9.0)).restarted(3.0, OTHER)
    after = serving(rule_set=(LEVELS,))
    after.state = replace(after.state, tracks=before.state.tracks)
    _healthy(after, 10, 3000).serve(3000.0).read(_twice(3001.0, 9.0))
    assert [act.action for act in after.acts] == ["restart_engine"]


def test_what_heals_in_a_pause_begins_the_ladder_anew() -> None:
    """FACT: an hour of health is an hour of health, whatever was held meanwhile."""
    seen = serving(rule_set=(LEVELS,)).read(_twice(1.0, 9.0)).restarted(3.0, OTHER)
    seen.command(Verb.PAUSE, 5.0)
    seen.read(_twice(6.0, 9.0, OTHER), reading("it", 6.5, generation=OTHER))
    seen.command(Verb.RESUME, 7.0)
    _healthy(seen, 10, 3600).serve(3600.0, OTHER).read(_twice(3601.0, 9.0, OTHER))
    assert [act.action for act in seen.acts] == ["restart_engine", "restart_engine"]
