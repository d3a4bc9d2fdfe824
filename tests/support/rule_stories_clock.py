"""What makes the default rules about the clocks fire and clear."""

from __future__ import annotations

from tests.support.core import of_box
from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Seconds


def _jumped(at: Seconds, by: float) -> Reading:
    return of_box(at, (HOST, "jump_seconds", by), probe="clock")


def _kept(at: Seconds, *, right: bool) -> Reading:
    return of_box(at, (HOST, "synchronised", right), probe="clock")


def _set(by: float) -> Tale:
    """Set by so many seconds, which is told until it is forgotten."""
    return Tale(
        "clock-jumped",
        fires=(_jumped(1.0, 1.0), _jumped(2.0, -1.0), _jumped(3.0, by)),
        clears=(_jumped(4.0, 0.0),),
        blind=(("clock.jump_seconds",),),
    )


CLOCK_TALES = (
    _set(86400.0),
    _set(-86400.0),
    Tale(
        "clock-unsynchronised",
        fires=tuple(_kept(at, right=False) for at in times(1, 601)),
        clears=tuple(_kept(at, right=True) for at in times(610, 670)),
        blind=(("clock.synchronised",),),
    ),
)
"""Of the rules about clocks."""
