"""What rules that act make of windows: only of what was seen, and not of what piled up unseen."""

from __future__ import annotations

import pytest

from tests.support.core import NAME, Story, of_box, rule, serving
from tests.support.rules import when
from watchdog.core.model import Reading, Seconds, Verb, engine_subject

ENGINE = engine_subject(NAME)
RISES = 'increase(it.x, "5m") > 50'
HIGH = 'avg_over(it.x, "5m") > 50'
LOW = 'max_over(it.x, "5m") < 1'


def restarts(text: str) -> Story:
    """A serving engine that is restarted on that condition."""
    return serving(rule_set=(rule("mine", when(text, x=float), actions=("restart_engine",)),))


def x(at: Seconds, value: float) -> Reading:
    """What a probe of the box says of the engine."""
    return of_box(at, (ENGINE, "x", value))


def told(story: Story, first: int, last: int, value: float, step: int = 5) -> Story:
    """The engine serves, and the probe says the same, every ``step`` seconds."""
    for at in range(first, last, step):
        story.serve(at - 0.5).read(x(float(at), value))
    return story


@pytest.mark.parametrize("step", [1, 5, 10])
def test_a_window_that_was_seen_as_a_whole_is_acted_upon(step: int) -> None:
    """FACT: whatever the period of the probe, five minutes of it are five minutes."""
    story = told(restarts(HIGH), 1, 301, 100.0, step)
    assert not story.acts
    told(story, 301, 312, 100.0, step)
    assert len(story.acts) == 1


def test_an_average_over_a_gap_is_not_known() -> None:
    """FACT: what was high before nobody looked may have been low since."""
    story = told(restarts(HIGH), 1, 61, 100.0)
    story.asleep(300.0)
    told(story, 301, 320, 100.0)
    assert not story.acts
    told(story, 320, 620, 100.0)
    assert len(story.acts) == 1


def test_what_rose_in_a_gap_is_not_acted_upon() -> None:
    """FACT: a counter is compared with its first look after the gap."""
    story = told(restarts(RISES), 1, 61, 0.0)
    story.asleep(300.0)
    told(story, 301, 320, 100.0)
    assert not story.acts
    story.read(x(320.0, 151.0))
    assert len(story.acts) == 1


@pytest.mark.parametrize("until", [None, 61.0])
def test_what_rose_in_a_pause_is_not_acted_upon(until: float | None) -> None:
    """FACT: neither when a person ends it nor when it expires."""
    story = restarts(RISES)
    story.command(Verb.PAUSE, 1.0, until)
    told(told(story, 2, 10, 0.0, 1), 10, 61, 100.0, 1)
    if until is None:
        story.command(Verb.RESUME, 61.0)
    else:
        story.tick(61.0)
    told(story, 62, 90, 100.0)
    assert not story.acts
    story.read(x(90.0, 151.0))
    assert len(story.acts) == 1


def test_a_window_with_a_hole_begins_anew() -> None:
    """FACT: a probe that failed for most of the window did not see it."""
    story = restarts(LOW).read(x(1.0, 0.0))
    for at in range(5, 301, 5):
        story.serve(float(at)).read(of_box(at + 0.5, error="cannot read"))
    story.read(x(301.0, 0.0))
    assert not story.acts
    told(story, 305, 611, 0.0)
    assert len(story.acts) == 1


def test_a_moment_out_of_sight_is_no_hole() -> None:
    """FACT: a sixtieth of the window may be missing."""
    story = told(restarts(LOW), 1, 200, 0.0)
    story.read(of_box(200.0, error="cannot read"))
    told(story, 201, 307, 0.0)
    assert len(story.acts) == 1


def test_what_rose_in_a_hole_counts() -> None:
    """FACT: a counter that goes on was counted on while nobody could read it."""
    story = told(restarts(RISES), 1, 20, 0.0)
    for at in range(20, 100, 5):
        story.serve(float(at)).read(of_box(at + 0.5, error="cannot read"))
    story.read(x(101.0, 60.0))
    assert len(story.acts) == 1
