"""Engines that take their time, some with a fake card: who is waited for, and for how long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cuda_engine, fake_nvml
from tests.support.daemon import Daemon, running
from tests.support.fake_nvml import IDLE, FakeNvml
from tests.support.outages import (
    engine,
    fault,
    open_completion,
    reads,
    recovered,
    series,
    untouched,
)
from tests.support.simulated import free_port, until

READY = 120.0
WORKS = {"0.utilization": 99, "0.memory_utilization": 24, "0.power_milliwatts": 600_000}
SPINS = {"0.utilization": 100, "0.memory_utilization": 0, "0.power_milliwatts": 166_000}
"""As a kernel that waits for ever looks: all of its time, nothing of its memory, little power."""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """An idle card."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    fake = fake_nvml.build(folder)
    fake.set(IDLE)
    return fake


@contextlib.contextmanager
def on_a_card(folder: Path, nvml: FakeNvml) -> Iterator[Daemon]:
    """A daemon with a ready engine on card 0, whose card was read."""
    port, file = free_port(), folder / "watchdog.toml"
    file.write_text("[engine.main]\ngpus = [0]\n")
    command = cuda_engine.command(folder / "env", port)
    with running(
        folder / "state", command, port, config=file, environment=nvml.environment
    ) as daemon:
        daemon.wait_ready(READY)
        until(lambda: daemon.status()["gpus"], READY)
        yield daemon


def test_h4_a_compiling_engine_is_busy(tmp_path: Path) -> None:
    """FACT (H4): 70 s of ptxas below EngineCore, completions time out: busy, and left alone."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        fault(daemon, "compile", 70)
        with open_completion(daemon, 2) as client:
            until(lambda: "compilers run" in " ".join(daemon.engine()["reasons"]), 60)
            assert daemon.engine()["verdict"] == "busy"
            client.settimeout(150)
            assert client.recv(1)
        assert untouched(daemon, before)
        until(lambda: daemon.verdict() == "ready", READY)


def test_h5_a_long_prefill_on_a_busy_card_is_left_alone(tmp_path: Path, nvml: FakeNvml) -> None:
    """FACT (H5): counters stand still and its CPU idles, but the card works: busy, no restart.

    Without the card's word three completions that timed out were a stall.
    """
    with on_a_card(tmp_path, nvml) as daemon:
        before = daemon.engine()
        nvml.set(WORKS)
        until(lambda: daemon.metric('nvidia_gpu_utilization_percent{gpu="0"') == 99, READY)
        fault(daemon, "prefill", 3600)
        with open_completion(daemon, 2):
            until(lambda: "the GPU is at work" in " ".join(daemon.engine()["reasons"]), 60)
            reads(daemon, "engine_http", 10)
            assert daemon.verdict() == "busy"
            assert untouched(daemon, before)
            nvml.clear(*WORKS)
            assert recovered(daemon, before)["cause"] == "stalled"


def test_h6_a_spinning_engine_is_restarted_after_the_long_deadline(
    tmp_path: Path, nvml: FakeNvml
) -> None:
    """FACT (H6): requests run, no token comes, card and CPU burn: stalled, but late."""
    with on_a_card(tmp_path, nvml) as daemon:
        before = daemon.engine()
        nvml.set(SPINS)
        fault(daemon, "spin")
        with open_completion(daemon, 2):
            until(lambda: series(daemon, "num_requests_running") >= 1)
            until(lambda: "it computes" in " ".join(daemon.engine()["reasons"]), 60)
            assert untouched(daemon, before)
            found = daemon.wait_event(
                "finding.firing", 180, lambda e: e["rule"] == "engine-stalled"
            )
            assert "it computes" in found["reason"]
            assert recovered(daemon, before)["cause"] == "stalled"
