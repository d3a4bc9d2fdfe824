"""What makes the default rules about open files and tasks fire and clear."""

from __future__ import annotations

from tests.support.core import NAME, of_box
from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Sampled, Seconds, engine_subject


def _host(at: Seconds, name: str, percent: float) -> Reading:
    """What ``files`` reads of a share of a limit."""
    return of_box(at, (HOST, name, percent), probe="files")


def _engine(at: Seconds, percent: float) -> Reading:
    """What ``files`` reads of an engine's fullest process."""
    subject, labels = engine_subject(NAME), (("engine", NAME),)
    values = (("engine_used_percent", percent), ("engine_fullest_pid", 4242))
    samples = tuple(Sampled(subject, name, value, labels) for name, value in values)
    return Reading("files", at, 0.0, samples)


def _of_host(rule: str, name: str) -> Tale:
    """At 80 percent for twenty seconds, then below it for a minute."""
    return Tale(
        rule,
        fires=tuple(_host(at, name, 80.0) for at in times(1, 21, 10)),
        clears=tuple(_host(at, name, 79.0) for at in times(31, 91, 10)),
        blind=((f"files.{name}",),),
    )


def _of_engine(rule: str, percent: float, last: Seconds) -> Tale:
    """At ``percent`` until ``last``, then below it for a minute."""
    return Tale(
        rule,
        fires=tuple(_engine(at, percent) for at in times(1, last, 10)),
        clears=tuple(_engine(at, percent - 1) for at in times(31, 91, 10)),
        blind=(("files.engine_used_percent",),),
    )


FILES_TALES = (
    _of_host("files-box-filling", "used_percent"),
    _of_host("files-own-filling", "own_used_percent"),
    _of_host("tasks-filling", "tasks_percent"),
    _of_engine("files-engine-filling", 80.0, 21),
    _of_engine("files-engine-full", 95.0, 11),
)
"""Of the rules about open files and tasks."""
