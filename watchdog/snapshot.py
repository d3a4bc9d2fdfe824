"""One published moment: what metrics, health and status are rendered from, without a lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from watchdog.core.model import Finding, Seconds, Subject
from watchdog.core.state import State


@dataclass(frozen=True, slots=True)
class ProbeStats:
    """How one probe fares, over all engines it looks at. ``last_success`` is wall time."""

    period: Seconds
    timeout: Seconds
    success: bool
    took: Seconds | None
    last_success: Seconds | None
    abandoned: int


@dataclass(frozen=True, slots=True)
class Point:
    """One card over a few seconds that ended at ``at`` (CLOCK_MONOTONIC). None is not known.

    ``utilization`` is percent, the mean; ``memory`` the used share of the card's memory, 0 to 1;
    ``temperature`` degrees Celsius, the highest; ``slowed`` why its clocks were held down.
    """

    at: Seconds
    utilization: float | None = None
    memory: float | None = None
    temperature: float | None = None
    slowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``at`` is CLOCK_MONOTONIC of the last step, ``wall`` the same moment since the epoch.

    ``budget`` is how many restarts each engine has left, of ``budgets``; ``retries`` the moments
    that its backoff lets the next ones happen. ``logs`` are the paths of
    the engines' logs, ``models`` what those that were given up should serve. ``outranked`` are
    findings, by rule and subject, that say the same as a louder one, with that other one.
    ``state_dir`` is "" where commands find us without it.
    ``waiting`` is what starts wait for, by engine; ``recent`` the last ten minutes of each card,
    by the name of its subject, the oldest point first. ``bundles`` are the directories with the
    evidence of each incident. ``lacks`` says what this daemon cannot keep or see where it runs.
    ``lines_lost`` of the log, ``events_lost`` of the recording and ``inbox_depth`` are None when
    nobody counts them.
    """

    state: State
    at: Seconds
    wall: Seconds
    version: str
    config_hash: str = ""
    pids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    budget: Mapping[str, int] = field(default_factory=dict)
    budgets: Mapping[str, int] = field(default_factory=dict)
    retries: Mapping[str, Seconds] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    outranked: Mapping[tuple[str, Subject], Finding] = field(default_factory=dict)
    state_dir: str = ""
    waiting: Mapping[str, str] = field(default_factory=dict)
    probes: Mapping[str, ProbeStats] = field(default_factory=dict)
    recent: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    bundles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    lines_lost: int | None = None
    events_lost: int | None = None
    inbox_depth: int | None = None

    def stamp(self, at: Seconds | None) -> str | None:
        """A monotonic time as RFC 3339 in UTC."""
        if at is None:
            return None
        moment = datetime.fromtimestamp(self.wall - (self.at - at), UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
