"""A driver that never answers again: what the real daemon does meanwhile, and what it costs.

Probes of the GPU run ten times as often as by default, so that the minutes here have the reads of
many more. ``hang`` is a call that never returns, ``stuck`` one in the kernel, which no signal ends.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.measure import memory
from tests.perf.table import children, line, percentile, pss, row, single, timed
from tests.support import fake_nvml
from tests.support.daemon import Daemon, running, simulated_command
from tests.support.simulated import cmdline, free_port, until

if TYPE_CHECKING:
    from tests.support.fake_nvml import FakeNvml

SECONDS = 30
SCRAPES = 1000
_EVERY = 16
"""Scrapes between two looks at memory and descriptors: half a second."""
_PROBES = ("gpu", "gpu_processes", "xid", "driver")
QUICK = "".join(f'[probes.{name}]\nperiod = "100ms"\ntimeout = "300ms"\n' for name in _PROBES)
"""A request to the worker has 0.1 s: 0.2 are kept for the way back."""
_WAYS = (
    ("NVML hangs", "hang", "nvmlDeviceGetCount"),
    ("one call hangs", "hang", "nvmlDeviceGetPowerUsage"),
    ("stuck in the kernel", "stuck", "nvmlDeviceGetCount"),
)
"""With the second it is one of many calls, and other requests could be answered. A fake call that
hangs never returns: the worker is kept for the 20 s that a first answer may take, then replaced."""
_READY = 60.0
_MS = 1000
_MIB = 1 << 20
_LATENCY = "vllm_watchdog_loop_latency_seconds"


@dataclass
class Watched:
    """What was seen of a daemon while its driver hung."""

    most_workers: int = 0
    scrapes: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    private: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)


@contextlib.contextmanager
def watching(folder: Path, config: str = QUICK) -> Iterator[tuple[Daemon, FakeNvml]]:
    """A ready daemon in front of the embedded engine and two loaded cards, which it has read."""
    library = folder / "nvml"
    library.mkdir()
    nvml = fake_nvml.build(library)
    nvml.cards = 2
    nvml.set(fake_nvml.IDLE)
    file = folder / "watchdog.toml"
    file.write_text(config)
    port = free_port()
    command = simulated_command(port)
    with running(
        folder / "state", command, port, config=file, environment=nvml.environment
    ) as daemon:
        try:
            daemon.wait_ready(_READY)
            until(lambda: daemon.metric("nvidia_gpu_power_watts"), _READY)
            yield daemon, nvml
        finally:
            nvml.heal()  # what is stuck ends by itself then


def workers(daemon: Daemon) -> list[int]:
    """NVML workers of the daemon, those that hang included."""
    return [pid for pid in children(daemon.process.pid) if "_nvml/worker.py" in cmdline(pid)]


def descriptors(pid: int) -> int:
    """Open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def hangs() -> None:
    """Print what a driver that hangs costs, for all ways to hang."""
    for number, (what, deed, function) in enumerate(_WAYS):
        with tempfile.TemporaryDirectory() as folder, watching(Path(folder)) as (daemon, nvml):
            _settled(daemon)
            if number == 0:
                single("PSS of the daemon alone, MiB", 1, pss([daemon.process.pid]))
                single("PSS of its NVML worker, MiB", 1, pss(workers(daemon)))
            nvml.do(deed, function)
            _tell(what, daemon)
            nvml.heal()
            back = timed(lambda d=daemon: until(lambda: d.metric("nvidia_gpu_power_watts"), _READY))  # type: ignore[misc]
            single(f"{what}: GPU series back after, s", 1, back)


def _settled(daemon: Daemon) -> None:
    """Everything was asked for once."""
    for _ in range(50):
        daemon.get("/metrics")
    time.sleep(5)


def _tell(what: str, daemon: Daemon) -> None:
    before = _buckets(daemon)
    seen = _watched(daemon)
    turns = {le: count - before.get(le, 0.0) for le, count in _buckets(daemon).items()}
    total = int(turns["+Inf"])
    single(f"{what}: events of the loop in {SECONDS} s", 1, total, 0)
    line(f"{what}: loop latency p99, s", total, f"at most {_bound(turns, 0.99)}", "", "")
    row(f"{what}: scrape of /metrics, ms", seen.scrapes)
    single(f"{what}: scrape p99, ms", len(seen.scrapes), percentile(seen.scrapes, 0.99))
    single(f"{what}: most workers at a time", 1, seen.most_workers, 0)
    single(f"{what}: workers at the end", 1, len(workers(daemon)), 0)
    _ends(f"{what}: PSS of the daemon, MiB", seen.memory, 2)
    _ends(f"{what}: private memory of the daemon, MiB", seen.private, 2)
    _ends(f"{what}: descriptors of the daemon", [float(n) for n in seen.descriptors], 0)


def _ends(what: str, values: list[float], digits: int) -> None:
    quarter = max(1, len(values) // 4)
    first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
    change = f"{last - first:+.{digits}f}"
    line(
        f"{what}, first quarter to last",
        len(values),
        change,
        f"{first:.{digits}f}",
        f"{last:.{digits}f}",
    )


def _watched(daemon: Daemon) -> Watched:
    """Scrape evenly, and look at the daemon twice a second."""
    seen = Watched()
    begin = time.monotonic()
    for number in range(SCRAPES):
        time.sleep(max(0.0, begin + number * SECONDS / SCRAPES - time.monotonic()))
        seen.scrapes.append(timed(lambda: daemon.get("/metrics")) * _MS)
        seen.most_workers = max(seen.most_workers, len(workers(daemon)))
        if number % _EVERY == 0:
            found = memory(daemon.process.pid)
            seen.memory.append(found["pss"] / _MIB)
            seen.private.append(found["private"] / _MIB)
            seen.descriptors.append(descriptors(daemon.process.pid))
    return seen


def _buckets(daemon: Daemon) -> dict[str, float]:
    """Turns of the loop by upper bound of their latency."""
    found = {}
    for text in daemon.get("/metrics")[1].splitlines():
        if text.startswith(f"{_LATENCY}_bucket"):
            found[text.partition('le="')[2].partition('"')[0]] = float(text.rpartition(" ")[2])
    return found


def _bound(turns: dict[str, float], share: float) -> str:
    """The least bucket that holds the share of all."""
    return next(le for le, count in turns.items() if count >= share * turns["+Inf"])


if __name__ == "__main__":
    hangs()
