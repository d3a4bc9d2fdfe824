"""`python -m tests.perf.restart [ROUNDS]`: what the watchdog adds to a restart after a crash.

A leader with a child that outlives it is killed with SIGKILL. Zero is a bare respawn of the same
command: wait for the exit and spawn, in a loop. Both are told by the first line that the new leader
runs. Nothing is asserted: a number belongs to one machine and one moment.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.perf.table import head, line, percentile
from tests.support.daemon import Daemon, running
from tests.support.simulated import alive, free_port

ROUNDS = 40
SETTLE = 0.3
"""Seconds between two rounds: what the last one left to do is done by then."""
PATIENCE = 30.0

WORKER = """
import os, sys, time
at = time.monotonic()
child = os.fork()
if child == 0:
    time.sleep(3600)
with open(sys.argv[1], "a") as starts:
    starts.write(f"{at} {os.getpid()} {child}\\n")
time.sleep(3600)
"""

UNLIMITED = """
[policy]
backoff = { initial = "1ms", max = "1ms", jitter = 0.0 }
restart_budget = { count = 1000, window = "1h" }
boot_budget = { count = 1000, window = "1h" }
"""
"""The first restart of a row is immediate, the others wait for 1 ms: every round is alike."""

STAGES = ("engine.exited", "decision.act", "action.started", "engine.started")


@dataclass(frozen=True, slots=True)
class Start:
    """What a leader wrote: the time of its first line (monotonic), its pid and its child's."""

    at: float
    pid: int
    child: int


@dataclass(slots=True)
class Series:
    """One value a round in milliseconds, and the rounds in which the old child still lived."""

    milliseconds: list[float] = field(default_factory=list)
    overlaps: int = 0
    kills: list[float] = field(default_factory=list)


def main() -> None:
    """Measure and print two tables."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, ", end="")
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, {rounds} rounds\n")
    head("SIGKILL of the leader to the next start", "median ms", "p95 ms", "max ms", "old child")
    bare = bare_respawn(rounds)
    _row("bare respawn", bare)
    ours, stages = supervised(rounds)
    _row("under the watchdog", ours)
    _added(bare, ours)
    print()
    head("SIGKILL of the leader to", "median ms", "p95 ms", "max ms")
    for stage, values in stages.items():
        line(stage, *_figures(values))


def _row(what: str, series: Series) -> None:
    rounds = len(series.milliseconds)
    line(what, *_figures(series.milliseconds), f"alive {series.overlaps}/{rounds}")


def _added(bare: Series, ours: Series) -> None:
    zero = statistics.median(bare.milliseconds)
    line("added", *_figures([value - zero for value in ours.milliseconds]), "")


def _figures(values: list[float]) -> tuple[str, str, str]:
    figures = (statistics.median(values), percentile(values, 0.95), max(values))
    return tuple(f"{value:.1f}" for value in figures)  # type: ignore[return-value]  # three


# --- the rounds -----------------------------------------------------------------------------------


def bare_respawn(rounds: int) -> Series:
    """The zero: a thread that waits for the exit and spawns again."""
    with tempfile.TemporaryDirectory() as folder, _respawning(Path(folder) / "starts"):
        return _rounds(Path(folder) / "starts", rounds)


@contextlib.contextmanager
def _respawning(starts: Path) -> Iterator[None]:
    over = threading.Event()
    argv = [*_worker(), str(starts)]

    def loop() -> None:
        while not over.is_set():
            subprocess.Popen(argv, start_new_session=True).wait()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        _end(starts)
        thread.join()


def supervised(rounds: int) -> tuple[Series, dict[str, list[float]]]:
    """The same below the real daemon, and when each line of its log was written."""
    with tempfile.TemporaryDirectory() as folder:
        starts, config = Path(folder) / "starts", Path(folder) / "watchdog.toml"
        config.write_text(UNLIMITED)
        command = [*_worker(), str(starts), "--port", str(free_port())]
        with running(Path(folder) / "state", command, 0, config=config) as daemon:
            try:
                series = _rounds(starts, rounds)
                return series, _stages(daemon, series)
            finally:
                _end(starts)


def _worker() -> list[str]:
    return [sys.executable, "-ISc", WORKER]


def _rounds(path: Path, rounds: int) -> Series:
    series = Series()
    for number in range(rounds):
        old = _started(path, number)
        time.sleep(SETTLE)
        began, wall = time.monotonic(), time.time()
        os.kill(old.pid, signal.SIGKILL)
        new = _started(path, number + 1)
        series.overlaps += alive(old.child)
        series.milliseconds.append((new.at - began) * 1000)
        series.kills.append(wall)
        with contextlib.suppress(ProcessLookupError):
            os.kill(old.child, signal.SIGKILL)
    return series


def _started(path: Path, number: int) -> Start:
    deadline = time.monotonic() + PATIENCE
    while len(found := _starts(path)) <= number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"start {number} never came")
        time.sleep(0.001)
    return found[number]


def _starts(path: Path) -> list[Start]:
    with contextlib.suppress(OSError):
        rows = [row.split() for row in path.read_text().splitlines(keepends=True) if "\n" in row]
        return [Start(float(at), int(pid), int(child)) for at, pid, child in rows]
    return []


def _end(path: Path) -> None:
    """Kill what may be left; not the pids of earlier rounds, which may be others' by now."""
    for start in _starts(path)[-1:]:
        for pid in (start.child, start.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _stages(daemon: Daemon, series: Series) -> dict[str, list[float]]:
    """Milliseconds from each kill to each line of the log that came of it."""
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    ends = [*series.kills[1:], float("inf")]
    for stage in STAGES:
        stamps = [_seconds(event) for event in daemon.events(stage)]
        for kill, end in zip(series.kills, ends, strict=True):
            # The log has whole milliseconds: a line may seem to come before its cause.
            found[stage] += [(s - kill) * 1000 for s in stamps if kill - 0.001 <= s < end][:1]
    return found


def _seconds(event: dict[str, object]) -> float:
    return dt.datetime.fromisoformat(str(event["timestamp"])).timestamp()


if __name__ == "__main__":
    main()
