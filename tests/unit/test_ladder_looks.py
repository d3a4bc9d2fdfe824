"""Which looks a ladder waits for before it takes the next rung."""

from __future__ import annotations

from tests.support.core import NAME, Story, reading, rule, serving
from tests.support.rules import when
from watchdog.core.model import HoldReason

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
