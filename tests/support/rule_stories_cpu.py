"""What makes the default rules about processors fire and clear."""

from __future__ import annotations

from tests.support.core import NAME, of_box
from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Seconds, Subject, engine_subject


def _told(at: Seconds, subject: Subject, sample: str, value: float) -> Reading:
    return of_box(at, (subject, sample, value), probe="cpu")


def _throttled(rule: str, subject: Subject, sample: str) -> Tale:
    """Of each ten seconds two are withheld, and then none."""
    return Tale(
        rule,
        fires=tuple(_told(at, subject, sample, 0.2 * at) for at in times(0.0, 220.0, 10.0)),
        clears=tuple(_told(at, subject, sample, 44.0) for at in times(230.0, 800.0, 10.0)),
        blind=((f"cpu.{sample}",),),
        drains=True,
    )


def _always(rule: str, sample: str, much: float) -> Tale:
    """So much at each look of five minutes."""
    return Tale(
        rule,
        fires=tuple(_told(at, HOST, sample, much) for at in times(0.0, 300.0, 10.0)),
        clears=tuple(_told(at, HOST, sample, 1.0) for at in times(310.0, 610.0, 10.0)),
        blind=((f"cpu.{sample}",),),
    )


CPU_TALES = (
    _throttled("cpu-throttled", HOST, "throttled_seconds"),
    _throttled("engine-cpu-throttled", engine_subject(NAME), "engine_throttled_seconds"),
    _always("cpu-stolen", "steal_percent", 12.0),
    _always("cpu-starved", "pressure_percent", 85.0),
)
"""Of the rules about processors."""
