"""Vital signs: what one reading adds to what is known of a generation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import http, metrics, process, reading
from watchdog.core.model import Reading
from watchdog.core.state import FusionSettings, Vitals
from watchdog.core.vitals import absorb, begin

MIB = 1 << 20


def absorbed(*readings: Reading, vitals: Vitals | None = None) -> Vitals:
    """What ``readings`` add up to."""
    vitals = begin(0.0) if vitals is None else vitals
    for one in readings:
        vitals = absorb(vitals, one, FusionSettings())
    return vitals


def _with(at: float, change: dict[str, int | float]) -> Reading:
    usual = process(at)
    return replace(
        usual,
        samples=tuple(replace(s, value=change.get(s.sample, s.value)) for s in usual.samples),
    )


@pytest.mark.parametrize("probe", ["engine_process", "engine_http", "engine_metrics", "gpu"])
def test_an_empty_reading_is_no_news(probe: str) -> None:
    """A reading without samples leaves everything as it was."""
    known = absorbed(process(1.0), http(1.0, canary="ok", status=200), metrics(1.0, 5.0))
    assert absorbed(reading(probe, 2.0), vitals=known) == known


def test_a_core_is_gone_only_after_it_was_seen() -> None:
    """An engine whose EngineCore was never seen has not lost it; the first look without counts."""
    assert absorbed(process(1.0, cores=0)).core_gone_since is None
    gone = absorbed(process(1.0), process(2.0, cores=0), process(3.0, cores=0))
    assert gone.core_gone_since == 2.0
    assert absorbed(process(4.0), vitals=gone).core_gone_since is None


def test_a_worker_is_gone_only_after_it_was_seen() -> None:
    """One fewer than were seen below one EngineCore is a loss, from the first look without on."""
    assert absorbed(process(1.0), process(2.0, workers=1)).worker_gone_since is None
    had = absorbed(process(1.0, workers=1), process(2.0, workers=2))
    gone = absorbed(process(3.0, workers=1), process(4.0, workers=1), vitals=had)
    assert (had.worker_gone_since, gone.worker_gone_since) == (None, 3.0)
    assert absorbed(process(5.0, workers=2), vitals=gone).worker_gone_since is None
    assert absorbed(process(5.0, workers=2, cores=0), vitals=gone).worker_gone_since is None


def test_a_loss_that_nobody_watched_begins_anew() -> None:
    """After a gap a loss counts from the first look behind it."""
    had = absorbed(process(1.0, workers=2), process(2.0, workers=1))
    late = absorbed(process(200.0, workers=1), vitals=had)
    assert (had.worker_gone_since, late.worker_gone_since) == (2.0, 200.0)


def test_an_engine_that_scales_loses_no_worker() -> None:
    """Ranks come and go in the life of an engine that has more than one: nothing is told of it."""
    scaled = absorbed(process(1.0, cores=2, workers=4), process(2.0, cores=1, workers=2))
    assert scaled.worker_gone_since is None


def test_stopped_since_the_first_look_that_saw_it() -> None:
    """A process that runs again in between starts the time anew."""
    seen = absorbed(process(1.0, stopped_members=1), process(2.0, stopped_members=2))
    assert (seen.stopped_since, seen.stopped_members) == (1.0, 2)
    assert absorbed(process(3.0), vitals=seen).stopped_since is None


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ({"log_bytes": 101}, True),
        ({"members": 4}, True),
        ({"rss_bytes": (1 << 30) + 2 * MIB}, True),
        ({"rss_bytes": (1 << 30) + MIB}, False),
        ({"rss_bytes": 1 << 20}, False),
        ({"members": 2}, False),
        ({"cpu_seconds": 500.0}, False),
    ],
)
def test_signs_of_a_start(change: dict[str, int | float], sign: bool) -> None:  # noqa: FBT001
    """Log, children and memory that grow are progress; CPU time alone, or noise, is none."""
    seen = absorbed(process(1.0), _with(9.0, change))
    assert seen.start_sign_at == (9.0 if sign else 1.0)


def test_slow_growth_of_memory_adds_up() -> None:
    """Half a mebibyte a look is progress at the third look, not never."""
    readings = [process(float(i), rss_bytes=(1 << 30) + i * MIB // 2) for i in range(1, 5)]
    assert absorbed(*readings).start_sign_at == 4.0


def test_quiet_is_little_cpu_over_the_time_between_two_looks() -> None:
    """Below a fifth of a core the set is quiet since the earlier look; above it is not."""
    quiet = absorbed(process(1.0, cpu_seconds=5.0), process(3.0, cpu_seconds=5.3))
    assert quiet.quiet_since == 1.0
    assert absorbed(process(5.0, cpu_seconds=5.5), vitals=quiet).quiet_since == 1.0
    assert absorbed(process(5.0, cpu_seconds=5.8), vitals=quiet).quiet_since is None
    assert absorbed(process(1.0, cpu_seconds=5.0)).quiet_since is None


def test_health_since_the_answer_changed() -> None:
    """The same answer keeps its time, another one starts anew."""
    seen = absorbed(http(1.0), http(3.0), http(5.0, "status"), http(7.0, "status"))
    assert (seen.health, seen.health_since, seen.health_at) == ("status", 5.0, 7.0)


def test_completions_fail_from_the_moment_they_were_sent() -> None:
    """The first time-out of a row says when it began; the count follows."""
    seen = absorbed(http(10.0, canary="timeout", took=4.0), http(16.0, canary="timeout", took=4.0))
    assert (seen.failing_since, seen.timeouts) == (6.0, 2)


@pytest.mark.parametrize("canary", ["ok", "failed", "unauthorized", "rejected", "refused"])
def test_any_answer_ends_a_row_of_timeouts(canary: str) -> None:
    """An answer of any kind shows that somebody is there."""
    seen = absorbed(http(4.0, canary="timeout", took=4.0), http(6.0, canary=canary))
    assert (seen.failing_since, seen.timeouts) == (None, 0)
    assert seen.progressed_at == (6.0 if canary == "ok" else None)


def test_a_skipped_canary_is_no_news() -> None:
    """A completion that was not asked for keeps the row as it is."""
    seen = absorbed(http(4.0, canary="timeout", took=4.0), http(6.0))
    assert (seen.canary, seen.timeouts, seen.failing_since) == ("timeout", 1, 0.0)


def test_counters_that_rise_are_progress() -> None:
    """The first sight, a still counter and one that fell are none."""
    assert absorbed(metrics(1.0, 100.0)).progressed_at is None
    assert absorbed(metrics(1.0, 100.0), metrics(2.0, 100.0)).progressed_at is None
    assert absorbed(metrics(1.0, 100.0), metrics(2.0, 50.0)).progressed_at is None
    assert absorbed(metrics(1.0, 100.0), metrics(2.0, 101.0)).progressed_at == 2.0


def test_a_new_rank_is_not_progress() -> None:
    """A rank seen for the first time has not moved yet."""
    rank = (("rank", "1"),)
    both = reading(
        "engine_metrics", 2.0, ("progress", 1.0, (("rank", "0"),)), ("progress", 9.0, rank)
    )
    assert absorbed(metrics(1.0, 1.0), both).progressed_at is None


def test_a_page_without_our_counters_is_no_page() -> None:
    """A page that has no progress counter does not make the counters readable."""
    assert absorbed(reading("engine_metrics", 1.0, ("running", 5.0))).metrics_at is None


def test_load_and_sleep_are_the_last_seen() -> None:
    """Requests are summed, sleep follows the page."""
    seen = absorbed(metrics(1.0, 1.0, running=2.0, waiting=3.0, sleeping=True))
    assert (seen.running, seen.waiting, seen.sleeping) == (2.0, 3.0, True)
    assert not absorbed(metrics(2.0, 1.0), vitals=seen).sleeping
