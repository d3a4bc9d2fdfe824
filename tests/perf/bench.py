"""`make bench`: the promised numbers, measured here and now. Prints medians with ranges.

Nothing is asserted: a number belongs to one machine and one moment. The table is Markdown, for
docs/measurements/.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.perf import core, gpu, hung, rules  # noqa: E402
from tests.perf.table import children, cpu, head, percentile, pss, row, single, timed  # noqa: E402
from tests.support.daemon import Daemon, running, simulated_command  # noqa: E402
from tests.support.simulated import free_port, until  # noqa: E402

WORKER = """
import os, sys, time
open(sys.argv[1], "a").write(f"{time.monotonic()} {os.getpid()}\\n")
if os.fork() == 0:
    time.sleep(3600)
time.sleep(3600)
"""
"""Leader with a child that outlives its SIGKILL; writes when it runs its first line."""

ROUNDS = 20
IDLE_SECONDS = 45
SCRAPES = 300


def main() -> None:
    """Run everything; one line of the table after the other."""
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, ", end="")
    print(f"{os.cpu_count()} cores, Linux {platform.release()}\n")
    head("what", "n", "median", "min", "max")
    bare = row("bare respawn: SIGKILL to first line of the new worker, ms", bare_respawn())
    ours, noticed = crash_to_start()
    added = row("under the watchdog, orphan killed and proven gone, ms", ours)
    single("added by the watchdog, ms", ROUNDS, added - bare)
    row("exit of the leader noticed after, ms", noticed)
    row("EngineCore stopped to restart decision, s", hang_to_decision())
    idle()
    rules.rules()
    core.steps()
    core.growth()
    hung.hangs()
    gpu.sweeps()


def _starts(path: Path) -> list[tuple[float, int]]:
    with contextlib.suppress(OSError):
        lines = path.read_text().splitlines()
        return [(float(a), int(b)) for a, b in (line.split() for line in lines)]
    return []


def bare_respawn() -> list[float]:
    """Milliseconds of the zero: wait for the exit, spawn again, nothing else."""
    values = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "starts"
        argv = [sys.executable, "-c", WORKER, str(path)]
        child = subprocess.Popen(argv, start_new_session=True)
        for round_ in range(ROUNDS):
            until(lambda n=round_: len(_starts(path)) > n)  # type: ignore[misc]
            time.sleep(0.05)
            killed = time.monotonic()
            child.kill()
            child.wait()
            old = child.pid
            child = subprocess.Popen(argv, start_new_session=True)
            until(lambda n=round_: len(_starts(path)) > n + 1)  # type: ignore[misc]
            values.append((_starts(path)[-1][0] - killed) * 1000)
            with contextlib.suppress(OSError):
                os.killpg(old, signal.SIGKILL)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return values


def crash_to_start() -> tuple[list[float], list[float]]:
    """Milliseconds from SIGKILL to the new worker's first line, and to the noticed exit.

    Budgets are lifted and backoff is 1 ms, so that every round measures the same thing.
    """
    values, noticed = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "starts"
        config = Path(folder) / "watchdog.toml"
        config.write_text(
            '[policy]\nbackoff = { initial = "1ms", max = "1ms", jitter = 0.0 }\n'
            'restart_budget = { count = 1000, window = "1h" }\n'
            'boot_budget = { count = 1000, window = "1h" }\n'
        )
        command = [sys.executable, "-c", WORKER, str(path), "--port", str(free_port())]
        with running(Path(folder) / "s", command, 0, config=config) as daemon:
            for round_ in range(ROUNDS):
                until(lambda n=round_: len(_starts(path)) > n)  # type: ignore[misc]
                time.sleep(0.5)
                killed, wall = time.monotonic(), time.time()
                os.kill(_starts(path)[-1][1], signal.SIGKILL)
                until(lambda n=round_: len(_starts(path)) > n + 1)  # type: ignore[misc]
                values.append((_starts(path)[-1][0] - killed) * 1000)
                time.sleep(0.2)
                noticed.append((_stamp(daemon.events("engine.exited")[-1]) - wall) * 1000)
    return values, noticed


def _stamp(line: dict[str, object]) -> float:
    return dt.datetime.fromisoformat(str(line["timestamp"])).timestamp()


@contextlib.contextmanager
def _simulated() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        with running(Path(folder), simulated_command(port), port) as daemon:
            daemon.wait_ready(30)
            yield daemon


def hang_to_decision() -> list[float]:
    """Seconds from SIGSTOP of EngineCore to the decision to restart, default settings."""
    values = []
    for _ in range(3):
        with _simulated() as daemon:
            time.sleep(3)
            core = _core(daemon)
            wall = time.time()
            os.kill(core, signal.SIGSTOP)
            act = daemon.wait_event("decision.act", 60, lambda e: e["rule"] == "engine-stalled")
            values.append(_stamp(act) - wall)
    return values


def _core(daemon: Daemon) -> int:
    for pid in daemon.engine()["pids"]:
        if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise RuntimeError("no EngineCore")


def idle() -> None:
    """CPU and memory of the watchdog and its own children beside one idle engine; scrapes."""
    with _simulated() as daemon:
        time.sleep(10)
        pids = _own(daemon)
        before, began = cpu(pids), time.monotonic()
        time.sleep(IDLE_SECONDS)
        share = (cpu(pids) - before) / (time.monotonic() - began) * 100
        single("idle CPU with one engine, % of a core", 1, share, 2)
        single("PSS of watchdog and its children, MiB", 1, pss(pids))
        times = [timed(lambda: daemon.get("/metrics")) * 1000 for _ in range(SCRAPES)]
        row("scrape of /metrics, ms", times)
        single("scrape of /metrics p99, ms", SCRAPES, percentile(times, 0.99))


def _own(daemon: Daemon) -> list[int]:
    """The watchdog and its children, without the engine's set."""
    engine = set(daemon.engine()["pids"])
    own = daemon.process.pid
    return [own, *(pid for pid in children(own) if pid not in engine)]


if __name__ == "__main__":
    main()
