"""The probes that look, and when. A reload replaces those that changed and no other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from watchdog.core.model import Seconds
from watchdog.core.state import State
from watchdog.daemon.wiring import RunKey
from watchdog.runner import ProbeRun
from watchdog.schedule import Schedule
from watchdog.snapshot import ProbeStats


@dataclass(frozen=True, slots=True)
class Looking:
    """One run and how many seconds lie between its looks."""

    run: ProbeRun
    period: Seconds


class Lookout:
    """``switch`` and ``drop`` are for the loop's thread and return at once; ``settle`` may wait."""

    def __init__(self, schedule: Schedule, looking: Mapping[RunKey, Looking]) -> None:
        self.looking = looking
        self._schedule = schedule
        self._scheduled: dict[RunKey, Looking] = {}
        self._settling = threading.Lock()
        self._over = False

    def settle(self) -> None:
        """Schedule what is to look, and no longer what is not; from any thread but the loop's."""
        with self._settling:
            if self._over:
                return
            gone = self._rescheduled()
        _close(gone)

    def _rescheduled(self) -> list[ProbeRun]:
        wanted, before = self.looking, self._scheduled
        for key, one in before.items():
            if wanted.get(key) != one:
                self._schedule.drop("/".join(key))
        for key, one in wanted.items():
            if before.get(key) != one:
                self._schedule.every(one.period, one.run.begin, "/".join(key))
        self._scheduled = dict(wanted)
        kept = {id(one.run) for one in wanted.values()}
        return [one.run for one in before.values() if id(one.run) not in kept]

    def begin(self) -> None:
        """The first look of those that look the most often: it need not wait for its turn.

        To be called before the schedule starts.
        """
        soonest = min((one.period for one in self._scheduled.values()), default=0.0)
        for one in self._scheduled.values():
            if one.period == soonest:
                one.run.begin()

    def switch(self, looking: Mapping[RunKey, Looking]) -> None:
        """Look with these from the next ``settle`` on."""
        self.looking = looking

    def drop(self, engine: str) -> None:
        """Look at ``engine`` no longer."""
        self.looking = {key: one for key, one in self.looking.items() if key[1] != engine}

    def expire(self) -> None:
        """Report the reads that are overdue."""
        for one in self.looking.values():
            one.run.expire()

    def close(self) -> None:
        """Close all probes; nothing is settled any more."""
        self._over = True
        _close(one.run for one in {**self._scheduled, **self.looking}.values())

    def stats(self, state: State) -> dict[str, ProbeStats]:
        """How each probe fares: the worst of all engines that it looks at."""
        found: dict[str, ProbeStats] = {}
        for (name, subject), one in self.looking.items():
            reading = state.readings.get((name, subject))
            stats = ProbeStats(
                period=one.period,
                timeout=one.run.timeout,
                success=reading is not None and reading.error is None,
                took=one.run.last_took,
                last_success=one.run.last_success,
                abandoned=one.run.abandoned_total,
            )
            found[name] = stats if name not in found else _worse(found[name], stats)
        return found


def in_background(work: Callable[[], object], name: str) -> threading.Thread:
    """Do ``work``, which may wait, in a short-lived thread."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _close(runs: Iterator[ProbeRun] | list[ProbeRun]) -> None:
    for run in runs:
        with contextlib.suppress(Exception):  # a plug-in's bug must not keep the others open
            run.close()


def _worse(one: ProbeStats, other: ProbeStats) -> ProbeStats:
    lasts = [x for x in (one.last_success, other.last_success) if x is not None]
    return replace(
        one,
        success=one.success and other.success,
        took=max(one.took or 0.0, other.took or 0.0),
        last_success=min(lasts, default=None),
        abandoned=one.abandoned + other.abandoned,
    )
