"""The only module that imports apscheduler: calls short jobs at their periods, in one thread.

Jobs only hand work to threads that wait for it, so they run in the scheduler's own thread, which
saves a hop through a pool. Jobs of one period fall due in the same moment, on purpose: an idle
daemon costs wake-ups, and five jobs in one wake-up cost little more than one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from watchdog.core.model import Seconds

_STOP_WAIT = 1.0
"""Seconds that ``stop`` grants to a job that is just running."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Schedule:
    """Periodic jobs. A job that was late runs once, not once for every time it missed.

    ``failed`` is told the name of a job that raised, and its error in one line.
    """

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        _quieten()
        self._failed = failed
        self._scheduler = BackgroundScheduler(
            timezone=_Monotonic(),
            executors={"default": DebugExecutor()},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def every(
        self, period: Seconds, job: Callable[[], object], name: str, *, phase: Seconds = 0.0
    ) -> None:
        """Call ``job`` every ``period`` seconds, first within one period, ``phase`` later."""
        self._scheduler.add_job(self._guarded(job, name), _Every(period, phase), id=name, name=name)

    def drop(self, name: str) -> None:
        """Never call the job again. Raises ``KeyError`` when there is none of that name."""
        self._scheduler.remove_job(name)

    def start(self) -> None:
        """Begin; returns at once."""
        self._scheduler.start()

    def stop(self) -> None:
        """Call no further job. Returns soon even when a job hangs, at once when never started."""
        if not self._scheduler.running:
            return

        def shut_down() -> None:
            self._scheduler.shutdown(wait=False)

        # apscheduler joins its thread, which a hung job would hold for ever.
        ending = threading.Thread(target=shut_down, name="schedule-stop", daemon=True)
        ending.start()
        ending.join(_STOP_WAIT)

    def _guarded(self, job: Callable[[], object], name: str) -> Callable[[], None]:
        def call() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - one job's bug must not end the others
                self._failed(name, " ".join(f"{type(error).__name__}: {error}".split()))

        return call


def _quieten() -> None:
    """Without this, late runs and tracebacks go to standard error when nobody listens."""
    logger = logging.getLogger("apscheduler")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    logger.setLevel(logging.CRITICAL)


class _Monotonic(tzinfo):
    """A time zone in which ``datetime.now`` reads CLOCK_MONOTONIC.

    apscheduler plans in wall time only: set back by an hour, it would sleep for an hour.
    """

    def utcoffset(self, _: datetime | None, /) -> timedelta:
        return timedelta(0)

    def dst(self, _: datetime | None, /) -> timedelta:
        return timedelta(0)

    def tzname(self, _: datetime | None, /) -> str:
        return "monotonic"

    def fromutc(self, _: datetime, /) -> datetime:
        return (_EPOCH + timedelta(seconds=time.monotonic())).replace(tzinfo=self)


class _Every(BaseTrigger):  # type: ignore[misc]  # apscheduler ships no types
    """Multiples of the period, so that all jobs of one period share their wake-ups."""

    def __init__(self, period: Seconds, phase: Seconds) -> None:
        if period <= 0:
            raise ValueError("cannot schedule: the period must be above zero")
        self._period, self._phase = period, phase

    def get_next_fire_time(self, _: datetime | None, now: datetime) -> datetime:
        """The first multiple after ``now``; those that were missed are gone."""
        since = (now - _EPOCH).total_seconds() - self._phase
        due = (math.floor(since / self._period + 1e-6) + 1) * self._period + self._phase
        return (_EPOCH + timedelta(seconds=due)).replace(tzinfo=now.tzinfo)
