"""Faults of GPUs through the real daemon: what it says of its engine, and what it leaves alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import cuda_engine, fake_nvml
from tests.support.daemon import Daemon, running, simulated_command
from tests.support.fake_nvml import LOST, VERSIONS_DIFFER, FakeNvml
from tests.support.simulated import alive, cmdline, free_port, until
from tests.support.xids import packets

READY = 120.0
GIB = 1 << 30
QUICK = """
[probes.driver]
period = "500ms"
[[rule]]
name = "gpu-foreign-memory"
for = "1s"
[[rule]]
name = "driver-mismatch"
for = "1s"
[[rule]]
name = "gpu-lost"
clear_for = "1s"
[[rule]]
name = "gpu-pcie-degraded"
for = "1s"
[[rule]]
name = "gpu-unexplained-downclock"
for = "1s"
"""
"""The same judgements with less patience."""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """Two idle cards."""
    return fake_nvml.idle(tmp_path / "nvml", 2)


@contextlib.contextmanager
def watching(folder: Path, nvml: FakeNvml, config: str = "", *flags: str) -> Iterator[Daemon]:
    """A daemon in front of an engine that wants CUDA; its own card is card 0."""
    port = free_port()
    command = cuda_engine.command(folder / "env", port, *flags)
    file = folder / "watchdog.toml"
    file.write_text(f"[engine.main]\ngpus = [0]\n{config}")
    with running(
        folder / "state", command, port, config=file, environment=nvml.environment
    ) as daemon:
        yield daemon


@pytest.fixture
def daemon(tmp_path: Path, nvml: FakeNvml) -> Iterator[Daemon]:
    """A daemon with a ready engine, that has read the cards."""
    with watching(tmp_path, nvml, QUICK) as started:
        started.wait_ready(READY)
        until(lambda: len(started.status()["gpus"]) == 2, READY)
        yield started


def fires(daemon: Daemon, rule: str) -> bool:
    """Whether the rule has a finding."""
    return rule in {finding["rule"] for finding in daemon.status().get("findings", [])}


def test_a_lost_card_is_a_gpu_fault_and_no_restart(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT (G7): /healthz 503 with the reason, the other card's series, and the same engine."""
    before = daemon.engine()["generation"]
    nvml.set({"0.lost": LOST})
    until(lambda: daemon.verdict() == "gpu_fault", READY)
    code, body = daemon.get("/healthz")
    assert code == 503
    assert "GPU 0" in json.loads(body)["engines"]["main"]["reasons"][0]
    assert daemon.metric('nvidia_gpu_power_watts{gpu="0"') is None
    assert daemon.metric('nvidia_gpu_power_watts{gpu="1"')
    nvml.heal()
    until(lambda: daemon.get("/healthz")[0] == 200, READY)
    assert daemon.engine()["generation"] == before
    assert len(daemon.events("engine.started")) == 1


def test_a_crash_on_a_lost_card_waits_for_it(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT (G7): the restart is held as inhibited, costs nothing, and comes with the card."""
    nvml.set({"0.lost": LOST})
    until(lambda: daemon.verdict() == "gpu_fault", READY)
    before = daemon.engine()
    os.kill(before["pid"], signal.SIGKILL)
    held = daemon.wait_event("decision.hold")
    assert held["reason"] == "inhibited"
    assert daemon.engine()["state"] == "backoff"
    assert daemon.engine()["budget_remaining"] == before["budget_remaining"]
    nvml.heal()
    daemon.wait_ready(READY)
    assert daemon.engine()["starts"] == 2


def test_a_lost_card_of_somebody_else_changes_nothing(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT: /healthz counts the engine's own cards only."""
    nvml.set({"1.lost": LOST})
    until(lambda: fires(daemon, "gpu-lost"), READY)
    assert daemon.get("/healthz")[0] == 200
    incident = daemon.wait_event("incident.opened")
    assert (incident["rule"], incident["engine"]) == ("gpu-lost", "")


def test_thermal_slowdown_is_told_and_restarts_nobody(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT (G4): a minute of slowdown on the card's own counter is a finding; it serves on."""
    until(lambda: daemon.metric("nvidia_gpu_throttle_seconds_total") is not None, READY)
    nvml.set({"0.field.270": "0 3 60000000000", "0.reasons": 0x48})
    until(lambda: fires(daemon, "gpu-thermal-critical"), READY)
    throttled = 'nvidia_gpu_throttled{gpu="0",reason="hw_thermal"'
    assert daemon.metric(throttled) == 1
    assert daemon.get("/healthz")[0] == 200
    assert not daemon.events("decision.act")[1:]


def test_memory_cells_and_lanes_are_told(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT (G15): an uncorrected error, a row that could not be remapped, lanes that are lost."""
    until(lambda: daemon.metric("nvidia_gpu_ecc_uncorrected_errors_total") is not None, READY)
    until(lambda: daemon.metric("nvidia_gpu_pcie_link_width{") == 32, READY)
    nvml.set({"0.ecc_uncorrected": 3, "0.remapped_rows": "0 1 0 1", "0.pcie_width": 8})
    for rule in ("gpu-ecc-uncorrected", "gpu-remap-failed", "gpu-pcie-degraded"):
        until(lambda rule=rule: fires(daemon, rule), READY)  # type: ignore[misc]
    assert daemon.get("/healthz")[0] == 200
    assert len(daemon.events("engine.started")) == 1


def test_a_version_mismatch_spares_a_serving_engine(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT (G12): the operator's restart is refused with the reason, and the engine serves on."""
    before = daemon.engine()["generation"]
    nvml.set({"error.nvmlDeviceGetCount": VERSIONS_DIFFER, "error.nvmlInit": VERSIONS_DIFFER})
    until(lambda: fires(daemon, "driver-mismatch"), READY)
    refused = daemon.command("restart")
    assert refused.returncode == 1
    assert "kernel module differ" in refused.stderr + refused.stdout
    assert daemon.engine()["generation"] == before
    assert daemon.verdict() == "ready"


@contextlib.contextmanager
def stranger() -> Iterator[int]:
    """The pid of a process that is nobody's; gone afterwards."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def hold(nvml: FakeNvml, pid: int, size: int) -> None:
    """Let a process hold memory of card 0."""
    nvml.set({"0.memory_used": size, "0.process": f"{pid} {size}"})


def test_a_stranger_without_room_blocks_the_start(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT (G2): it is named with pid and memory, never signalled, and nothing is started."""
    with stranger() as pid:
        hold(nvml, pid, 120 * GIB)
        with watching(tmp_path, nvml, QUICK) as daemon:
            failed = daemon.wait_event("action.finished")
            assert failed["result"] == "failed"
            named = f"process {pid} (sleep) is no engine's and holds 120.0 GiB of GPU 0"
            assert named in failed["explanation"]
            until(lambda: fires(daemon, "gpu-foreign-memory"), READY)
            assert not daemon.events("engine.started")
            assert alive(pid)
            owner = 'nvidia_gpu_compute_apps_memory_bytes{gpu="0",owner="foreign"'
            assert daemon.metric(owner) == 120 * GIB


def test_a_stranger_with_room_beside_it_is_let_be(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT (G2): ten GiB of 140 leave room for an engine that wants half of the card."""
    with stranger() as pid:
        hold(nvml, pid, 10 * GIB)
        with watching(tmp_path, nvml, "", "--gpu-memory-utilization=0.5") as daemon:
            daemon.wait_ready(READY)
            assert alive(pid)


def test_a_restart_waits_for_memory_that_comes_late(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT (G1): nothing starts while nobody visible holds the memory; then it does."""
    nvml.set({"0.memory_used": 80 * GIB})
    os.kill(daemon.engine()["pid"], signal.SIGKILL)
    daemon.wait_event("decision.act", wanted=lambda e: e["action"] == "restart_engine")
    until(lambda: daemon.engine()["state"] == "stopping" and not daemon.survivors(), READY)
    assert len(daemon.events("engine.started")) == 1
    nvml.set({"0.memory_used": 0})
    daemon.wait_event("engine.started", wanted=lambda e: e["starts"] == 2)
    daemon.wait_ready(READY)


def test_an_orphan_of_an_earlier_start_is_ended_first(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT (G3): a new watchdog ends what holds the card, by identity, and then starts."""
    with watching(tmp_path, nvml) as first:
        first.wait_ready(READY)
        until(lambda: len(first.engine()["pids"]) > 1, READY)
        before = first.engine()
        first.process.kill()
        first.process.wait()
        os.kill(before["pid"], signal.SIGKILL)
        orphans = [pid for pid in before["pids"] if alive(pid)]
        assert orphans
        hold(nvml, orphans[0], 80 * GIB)
        command = simulated_command(first.engine_port)
        with running(
            first.state_dir, command, first.engine_port, environment=nvml.environment
        ) as second:
            until(lambda: not [pid for pid in orphans if alive(pid)], READY)
            nvml.set({"0.memory_used": 0, "0.process": None})
            second.wait_ready(READY)


@dataclass
class Kernel:
    """A kernel log that the daemon reads, and that a test writes."""

    path: str
    sink: int
    seq: int = 0

    def says(self, text: str) -> None:
        """One record of the kernel's own."""
        self.seq += 1
        os.write(self.sink, f"3,{self.seq},{self.seq},-;NVRM: {text}\n".encode())


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """An empty log."""
    with packets() as (path, sink):
        yield Kernel(path.replace("self", str(os.getpid())), sink)


@contextlib.contextmanager
def listening(folder: Path, nvml: FakeNvml, kernel: Kernel) -> Iterator[Daemon]:
    """A ready daemon that reads the log."""
    with watching(folder, nvml, f'{QUICK}[probes.xid]\nkmsg = "{kernel.path}"\n') as daemon:
        daemon.wait_ready(READY)
        until(lambda: len(daemon.engine()["pids"]) > 1, READY)
        until(lambda: daemon.metric("vllm_watchdog_xid_class_errors_total") is not None, READY)
        yield daemon


def test_an_xid_of_a_process_is_counted_and_explains_its_death(
    tmp_path: Path, nvml: FakeNvml, kernel: Kernel
) -> None:
    """FACT (G8): alone it restarts nobody; the exit that follows has it as its cause."""
    with listening(tmp_path, nvml, kernel) as daemon:
        core = next(pid for pid in daemon.engine()["pids"] if "EngineCore" in cmdline(pid))
        kernel.says(f"Xid (PCI:{fake_nvml.bus_id(0)[:-2]}): 31, pid={core}, name=core, MMU Fault")
        counted = 'nvidia_gpu_xid_errors_total{gpu="0"'
        until(lambda: daemon.metric(counted) == 1, READY)
        assert fires(daemon, "gpu-xid-application")
        assert daemon.get("/healthz")[0] == 200
        assert len(daemon.events("engine.started")) == 1
        os.kill(core, signal.SIGKILL)
        assert daemon.wait_event("engine.exited")["cause"] == "xid"
        opened = daemon.wait_event("incident.opened", wanted=lambda e: e["rule"] == "engine-dead")
        assert f"Xid 31 (application) on GPU 0, process {core}" in opened["explanation"]
        until(lambda: daemon.engine().get("starts") == 2, READY)


def test_an_xid_that_needs_a_reset_holds_restarts(
    tmp_path: Path, nvml: FakeNvml, kernel: Kernel
) -> None:
    """FACT (G9): one incident however often it comes, 503, and no restart after the crash."""
    with listening(tmp_path, nvml, kernel) as daemon:
        for _ in range(5):
            kernel.says(f"Xid (PCI:{fake_nvml.bus_id(0)[:-2]}): 95, pid=1, name=x, Uncontained")
        until(lambda: daemon.verdict() == "gpu_fault", READY)
        assert daemon.get("/healthz")[0] == 503
        os.kill(daemon.engine()["pid"], signal.SIGKILL)
        assert daemon.wait_event("decision.hold")["reason"] == "inhibited"
        assert len(daemon.events("engine.started")) == 1
        opened = [line["rule"] for line in daemon.events("incident.opened")]
        assert opened.count("gpu-xid-reset") == 1


def test_a_forged_xid_is_not_believed(tmp_path: Path, nvml: FakeNvml, kernel: Kernel) -> None:
    """FACT: a line that a process wrote into the log (facility user) is no word of the kernel's."""
    with listening(tmp_path, nvml, kernel) as daemon:
        forged = f"Xid (PCI:{fake_nvml.bus_id(0)[:-2]}): 79, pid=1, name=x, fallen off the bus"
        os.write(kernel.sink, f"11,1,1,-;NVRM: {forged}\n".encode())
        kernel.seq = 1
        kernel.says(f"Xid (PCI:{fake_nvml.bus_id(0)[:-2]}): 31, pid=1, name=x, MMU Fault")
        until(lambda: daemon.metric("nvidia_gpu_xid_errors_total") == 1, READY)
        assert daemon.verdict() == "ready"


def test_a_downclock_is_named_and_the_engine_left_alone(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT (G6): at a tenth of its clock without a reason, under load: a finding, no restart."""
    until(lambda: daemon.metric("nvidia_gpu_sm_clock_max_hertz") is not None, READY)
    slow = {"clock_sm": 210, "power_milliwatts": 84000, "reasons": 0, "temperature": 41}
    nvml.set({f"0.{key}": value for key, value in {**slow, "utilization": 100}.items()})
    until(lambda: fires(daemon, "gpu-unexplained-downclock"), READY)
    assert daemon.get("/healthz")[0] == 200
    assert len(daemon.events("engine.started")) == 1
