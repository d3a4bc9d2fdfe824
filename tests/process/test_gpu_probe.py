"""GPUs through the real daemon, on a fake library: what it exports, and what it does without."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import fake_nvml
from tests.support.daemon import Daemon, running, simulated_command
from tests.support.fake_nvml import FakeNvml
from tests.support.simulated import alive, cmdline, free_port, stat_fields, until

READY = 120.0
SERIES = (
    "utilization_percent",
    "memory_utilization_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "memory_reserved_bytes",
    "temperature_celsius",
    "memory_temperature_celsius",
    "temperature_margin_celsius",
    "temperature_slowdown_celsius",
    "temperature_limit_celsius",
    "memory_temperature_limit_celsius",
    "temperature_slowdown_margin_celsius",
    "power_watts",
    "power_limit_watts",
    "sm_clock_hertz",
    "sm_clock_max_hertz",
    "memory_clock_hertz",
    "performance_state",
    "remapped_rows_uncorrected",
    "remap_pending",
    "remap_failed",
    "pcie_link_generation",
    "pcie_link_generation_max",
    "pcie_link_width",
    "pcie_link_width_max",
    "recovery_action",
    "mig",
    "ecc_corrected_errors_total",
    "ecc_uncorrected_errors_total",
    "pcie_replays_total",
    "energy_joules_total",
)
REASONS = {
    "throttled": (
        "idle applications_clocks sw_power_cap hw_slowdown sync_boost sw_thermal hw_thermal "
        "hw_power_brake display_clock other"
    ),
    "throttle_seconds_total": (
        "sw_power_cap sync_boost sw_thermal hw_thermal hw_power_brake board_limit reliability"
    ),
}
OTHERS = ("nvidia_gpu_compute_apps_", "nvidia_gpu_engine_", "nvidia_gpu_xid_")
"""What other probes export about cards."""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """Two loaded cards."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    fake = fake_nvml.build(folder)
    fake.cards = 2
    fake.write()
    return fake


@contextlib.contextmanager
def watching(folder: Path, environment: Mapping[str, str]) -> Iterator[Daemon]:
    """A daemon in front of the embedded engine, which is ready."""
    port = free_port()
    command = simulated_command(port)
    with running(folder / "state", command, port, environment=environment) as daemon:
        daemon.wait_ready(READY)
        yield daemon


@pytest.fixture
def daemon(tmp_path: Path, nvml: FakeNvml) -> Iterator[Daemon]:
    """A daemon that has read the cards."""
    with watching(tmp_path, nvml.environment) as started:
        until(lambda: gpu_lines(started), READY)
        yield started


def gpu_lines(daemon: Daemon) -> list[str]:
    """The series about GPUs, without HELP and TYPE."""
    lines = daemon.get("/metrics")[1].splitlines()
    ours = [line for line in lines if line.startswith("nvidia_gpu_")]
    return [line for line in ours if not line.startswith(OTHERS)]


def by_reason(card: int) -> set[str]:
    """The series that say what holds the clocks down."""
    return {
        f'nvidia_gpu_{name}{{gpu="{card}",reason="{reason}",uuid="{fake_nvml.uuid(card)}"}}'
        for name, reasons in REASONS.items()
        for reason in reasons.split()
    }


def series(name: str, card: int) -> str:
    """A series as Prometheus reads it, without its value."""
    return f'nvidia_gpu_{name}{{gpu="{card}",uuid="{fake_nvml.uuid(card)}"}}'


def info(card: int) -> str:
    """The series that says what a card is."""
    return (
        f'nvidia_gpu_info{{cuda_version="13.0",driver_version="580.159.04",gpu="{card}",'
        f'name="NVIDIA H200",uuid="{fake_nvml.uuid(card)}"}}'
    )


def workers(daemon: Daemon) -> list[int]:
    """The daemon's living NVML workers."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [
        pid
        for pid in pids
        if stat_fields(pid)[1:2] == [str(daemon.process.pid)] and "_nvml/worker.py" in cmdline(pid)
    ]


def test_every_card_has_its_series(daemon: Daemon) -> None:
    """FACT: all readings of all cards are exported, with index and UUID, in base units."""
    found = {line.rpartition(" ")[0] for line in gpu_lines(daemon)}
    expected = {series(name, card) for name in SERIES for card in (0, 1)}
    for card in (0, 1):
        expected |= {info(card), *by_reason(card)}
    assert found == expected
    assert daemon.metric(series("utilization_percent", 0)) == 99
    assert daemon.metric(series("power_watts", 1)) == 218.921


def test_promtool_has_no_complaint_about_cards(daemon: Daemon) -> None:
    """FACT: Prometheus' own linter accepts a page with every series of two cards."""
    until(lambda: daemon.metric("nvidia_gpu_compute_apps_memory_bytes") is not None)
    page = daemon.get("/metrics")[1]
    linter = ["promtool", "check", "metrics"]
    done = subprocess.run(linter, input=page.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_status_lists_the_cards(daemon: Daemon) -> None:
    """FACT: /api/v1/status has every card by index, with its readings."""
    first, second = daemon.status()["gpus"]
    assert (first["index"], second["index"]) == (0, 1)
    assert first["uuid"] == fake_nvml.uuid(0)
    assert first["utilization_percent"] == 99
    assert first["name"] == "NVIDIA H200"
    assert second["memory_used_bytes"] == 21060452352


def test_a_change_is_exported(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT: what the card does now is what is served."""
    nvml.set({"1.utilization": 7})
    until(lambda: daemon.metric(series("utilization_percent", 1)) == 7)
    assert daemon.metric(series("utilization_percent", 0)) == 99


def test_a_lost_card_has_no_series(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT: the series of a card that fell off the bus vanish, those of the other stay."""
    before = len(gpu_lines(daemon))
    nvml.set({"1.lost": fake_nvml.LOST})
    until(lambda: {'gpu="0"' in line for line in gpu_lines(daemon)} == {True})
    nvml.heal()
    until(lambda: len(gpu_lines(daemon)) == before)


def test_a_driver_that_hangs_hides_the_cards_only(daemon: Daemon, nvml: FakeNvml) -> None:
    """FACT: nothing stale is served of a hanging driver, all else is, and it comes back."""
    nvml.do("hang")
    until(lambda: daemon.get("/metrics")[0] == 200 and not gpu_lines(daemon), 60)
    assert daemon.metric('vllm_watchdog_probe_success{probe="gpu"}') == 0
    assert daemon.get("/healthz")[0] == 200
    assert daemon.verdict() in {"ready", "busy"}
    assert len(workers(daemon)) <= 2
    nvml.heal()
    until(lambda: gpu_lines(daemon), 60)


def test_the_worker_ends_with_the_daemon(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT: a daemon that is killed leaves no worker behind."""
    with watching(tmp_path, nvml.environment) as daemon:
        (worker,) = until(lambda: workers(daemon))
        daemon.remember(daemon.engine()["pids"])
        daemon.process.kill()
        daemon.process.wait()
        until(lambda: not alive(worker))


def test_without_a_library_all_else_works(tmp_path: Path) -> None:
    """FACT: on a machine without a GPU the engine is watched all the same."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(fake_nvml.LIBRARY)
        pytest.skip("this machine has the library")
    with watching(tmp_path, {}) as daemon:
        until(lambda: daemon.metric('vllm_watchdog_probe_success{probe="gpu"}') == 0)
        assert gpu_lines(daemon) == []
        assert daemon.status()["gpus"] == []
        assert daemon.get("/healthz")[0] == 200
        until(lambda: not workers(daemon))
