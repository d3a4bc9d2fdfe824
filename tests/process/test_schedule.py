"""The schedule calls jobs at their periods, and nothing that they do stops it."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.simulated import ROOT, until
from watchdog.schedule import Schedule


@contextmanager
def scheduled() -> Iterator[tuple[Schedule, list[tuple[str, str]]]]:
    """A schedule that is stopped afterwards, and the failures it told."""
    failures: list[tuple[str, str]] = []
    schedule = Schedule(lambda name, error: failures.append((name, error)))
    try:
        yield schedule, failures
    finally:
        schedule.stop()


def test_jobs_are_called_again_and_again() -> None:
    """FACT: two jobs with different periods both run more than once, before and after start."""
    counts = {"a": 0, "b": 0}

    def count(name: str) -> None:
        counts[name] += 1

    with scheduled() as (schedule, failures):
        schedule.every(0.02, lambda: count("a"), "a")
        schedule.start()
        schedule.every(0.03, lambda: count("b"), "b", phase=0.01)
        until(lambda: min(counts.values()) >= 3)
    assert not failures


def test_a_job_that_raises_is_told_and_called_again() -> None:
    """FACT: an error names its job in one line and ends nothing."""
    with scheduled() as (schedule, failures):
        schedule.every(0.02, lambda: 1 / 0, "bad")
        schedule.start()
        until(lambda: len(failures) >= 2)
    assert failures[0] == ("bad", "ZeroDivisionError: division by zero")


def test_a_late_job_runs_once_for_all_it_missed() -> None:
    """FACT: after a long job the others run once, not once for each time they missed."""
    go, missed = threading.Event(), [0]

    def count() -> None:
        missed[0] += 1

    with scheduled() as (schedule, _):
        schedule.every(0.02, lambda: go.wait(60), "slow")
        schedule.every(0.02, count, "counted")
        schedule.start()
        threading.Event().wait(0.3)
        before = missed[0]
        go.set()
        until(lambda: missed[0] > before)
        assert missed[0] - before < 10


def test_a_dropped_job_is_never_called_again() -> None:
    """FACT: drop ends one job, and says so when there is none."""
    counts = {"a": 0, "b": 0}

    def count(name: str) -> None:
        counts[name] += 1

    with scheduled() as (schedule, _):
        schedule.every(0.02, lambda: count("a"), "a")
        schedule.every(0.02, lambda: count("b"), "b")
        schedule.start()
        until(lambda: counts["a"])
        schedule.drop("a")
        left, b = counts["a"], counts["b"]
        until(lambda: counts["b"] > b + 3)
        assert counts["a"] == left
        with pytest.raises(KeyError):
            schedule.drop("a")


HANG = """
import threading, sys
from watchdog.schedule import Schedule
began = threading.Event()
def hang():
    began.set()
    threading.Event().wait()
schedule = Schedule(lambda name, error: None)
schedule.every(0.02, hang, "hang")
schedule.every(0.02, lambda: 1 / 0, "bad")
schedule.start()
began.wait()
schedule.stop()
print("stopped")
"""


def test_stop_does_not_wait_for_a_hung_job() -> None:
    """FACT: stop returns and the process ends although a job hangs, with nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", HANG],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")


def test_a_period_must_be_above_zero() -> None:
    """FACT: a period of zero is an error when it is asked for, not a busy loop."""
    with scheduled() as (schedule, _), pytest.raises(ValueError, match="above zero"):
        schedule.every(0, lambda: None, "never")
