"""A driver that stops answering beside the real daemon, for hundreds of reads, and comes back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import fake_nvml
from tests.support.daemon import Daemon, running, simulated_command
from tests.support.fake_nvml import FakeNvml
from tests.support.simulated import alive, cmdline, free_port, stat_fields, until

PATIENCE = 60.0
READS = 100
OTHERS = 100
"""More events than the engine's probes and the clock bring meanwhile."""
PIPES = 4
"""Descriptors that come and go with one worker."""
PROBES = ("gpu", "gpu_processes", "xid", "driver")
QUICK = "".join(f'[probes.{name}]\nperiod = "100ms"\ntimeout = "350ms"\n' for name in PROBES)
"""A request to the worker has 0.15 s: the probe keeps 0.2 for itself."""
SERIES = "nvidia_gpu_power_watts"
TURNS = "vllm_watchdog_loop_latency_seconds_count"


@dataclass
class Seen:
    """What every look at the daemon found."""

    workers: set[int] = field(default_factory=set)
    most: int = 0
    descriptors: list[int] = field(default_factory=list)
    answers: set[int] = field(default_factory=set)

    def look(self, daemon: Daemon) -> float:
        """How often the loop has turned by now."""
        living = workers(daemon)
        self.workers |= living
        self.most = max(self.most, len(living))
        self.descriptors.append(len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir())))
        self.answers |= {daemon.get(path)[0] for path in ("/metrics", "/healthz")}
        return daemon.metric(TURNS) or 0.0


def workers(daemon: Daemon) -> set[int]:
    """Living children of the daemon that talk to the driver, stuck ones included."""
    found: set[int] = set()
    for path in Path("/proc").glob(f"{daemon.process.pid}/task/*/children"):
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            found |= {int(pid) for pid in path.read_text().split()}
    return {pid for pid in found if alive(pid) and "_nvml/worker.py" in cmdline(pid)}


def stuck(daemon: Daemon) -> list[int]:
    """Those of them that sit in the kernel."""
    return [pid for pid in workers(daemon) if stat_fields(pid)[:1] == ["D"]]


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[FakeNvml]:
    """Two idle cards; at the end the driver lets go of everybody."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    fake = fake_nvml.build(folder)
    fake.cards = 2
    fake.set(fake_nvml.IDLE)
    yield fake
    fake.heal()


@pytest.fixture
def daemon(tmp_path: Path, nvml: FakeNvml) -> Iterator[Daemon]:
    """A daemon with a ready engine that has read the cards. Its workers are gone afterwards."""
    file = tmp_path / "watchdog.toml"
    file.write_text(QUICK)
    port = free_port()
    seen: set[int] = set()
    command = simulated_command(port)
    with running(
        tmp_path / "state", command, port, config=file, environment=nvml.environment
    ) as started:
        started.wait_ready(PATIENCE)
        until(lambda: started.metric(SERIES), PATIENCE)
        try:
            yield started
        finally:
            seen = workers(started)
            nvml.heal()
    until(lambda: not [pid for pid in seen if alive(pid)])


def hung(daemon: Daemon) -> Seen:
    """The daemon over so many reads, all of which hang."""
    seen = Seen()
    end = seen.look(daemon) + READS + OTHERS
    until(lambda: seen.look(daemon) > end, 3 * PATIENCE)
    return seen


@pytest.mark.parametrize(
    ("deed", "function"),
    [
        ("hang", "nvmlDeviceGetCount"),
        ("hang", "nvmlDeviceGetPowerUsage"),
        ("stuck", "nvmlDeviceGetCount"),
    ],
)
def test_a_hung_driver_costs_two_processes_at_most(
    daemon: Daemon, nvml: FakeNvml, deed: str, function: str
) -> None:
    """FACT (G10): no process more, no descriptor more, both pages answer, and values come back.

    Whether nothing answers, one call of many does not, or the worker cannot even be killed.
    """
    before = daemon.engine()["generation"]
    nvml.do(deed, function)
    until(lambda: daemon.metric(SERIES) is None, PATIENCE)
    seen = hung(daemon)
    assert seen.most <= 2
    assert seen.answers == {200}
    half = len(seen.descriptors) // 2
    assert min(seen.descriptors[half:]) <= min(seen.descriptors[:half]) + PIPES
    assert daemon.metric(SERIES) is None
    nvml.heal()
    until(lambda: daemon.metric(SERIES), PATIENCE)
    until(lambda: len(workers(daemon)) == 1, PATIENCE)
    assert daemon.engine()["generation"] == before


def test_the_daemon_ends_beside_stuck_workers(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT (G10): it does not wait for the driver, and they end when that lets go of them."""
    nvml.do("stuck")
    until(lambda: len(stuck(daemon)) == 2, PATIENCE)
    left = stuck(daemon)
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0
    assert [pid for pid in left if alive(pid)] == left
    nvml.heal()
    until(lambda: not [pid for pid in left if alive(pid)])
