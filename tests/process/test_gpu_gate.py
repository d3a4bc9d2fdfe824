"""The gate's GPU step: from NVML's answer to a real start, with real processes on the card."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import NvmlUnavailableError
from probes.gpu_processes import GpuProcesses
from tests.support import fake_nvml
from tests.support.fake_nvml import IDLE, FakeNvml, asking
from tests.support.simulated import free_port, until
from tests.support.trees import QUICK, ended, script
from watchdog import procfs
from watchdog.contracts import ActionError, Endpoint, Owner
from watchdog.core.model import Cause
from watchdog.daemon.box import EngineBox
from watchdog.daemon.gpu_look import GpuLook
from watchdog.supervisor import tempdirs
from watchdog.supervisor.engine import EngineSettings, SupervisedEngine, Surroundings
from watchdog.supervisor.exits import ExitWatch
from watchdog.supervisor.gate import GateStep
from watchdog.supervisor.gpu_gate import Baselines, CardMemory, Holder, memory_released
from watchdog.supervisor.household import Household
from watchdog.supervisor.memory_ledger import MemoryLedger
from watchdog.supervisor.spawn import Launch

GIB = 1 << 30
TOTAL = 140 * GIB


@dataclass
class Living:
    """A driver that lists a process as long as it lives, as the real one does."""

    pid: int
    readable: bool = True
    mig: bool = False

    def ask(self, request: str, deadline: float) -> dict[str, Any]:
        """The present list."""
        assert request == "processes"
        assert deadline > time.monotonic()
        if not self.readable:
            raise NvmlUnavailableError("cannot read any GPU: driver not loaded")
        info = procfs.stat(self.pid)
        size = 50 * GIB if info is not None and procfs.lives(info) else 0
        return {
            "gpus": [
                {"index": 1, "uuid": "GPU-1", "errors": {"": "GPU is lost"}},
                {
                    "index": 0,
                    "uuid": "GPU-0",
                    "errors": {},
                    "mig": self.mig,
                    "memory_used_bytes": size,
                    "memory_total_bytes": TOTAL,
                    "processes": [[self.pid, size, None, None]] if size else [],
                },
            ]
        }

    def close(self) -> None:
        """Nothing to give back."""


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is on the card; gone afterwards."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        try:
            until(lambda: procfs.cmdline(process.pid)[:1] == ("sleep",))
            yield process
        finally:
            process.kill()


def test_a_real_stranger_blocks_until_it_is_gone() -> None:
    """FACT: G2: the gate names a real process on the card, and passes when it has ended."""
    with sleeper() as process:
        look = GpuLook(GpuProcesses(Living(process.pid), EngineBox({}, MemoryLedger())))
        step = memory_released(look, "main", None, 0.9, Baselines())
        refusal = step()
        assert refusal is not None
        assert f"process {process.pid} (sleep) is no engine's and holds 50.0 GiB of GPU 0" in (
            refusal.explanation
        )
        process.kill()
        process.wait()
        assert step() is None
        look.close()


def test_a_look_leaves_out_what_it_cannot_list() -> None:
    """FACT: a lost card is no card of the look, and no driver is no look."""
    with sleeper() as process:
        driver = Living(process.pid)
        look = GpuLook(GpuProcesses(driver, EngineBox({}, MemoryLedger())))
        found = look()
        assert found is not None
        (only,) = found
        assert only == CardMemory(
            0,
            "GPU-0",
            50 * GIB,
            TOTAL,
            (Holder(process.pid, "sleep", 50 * GIB, Owner.FOREIGN),),
        )
        driver.mig = True
        assert [one.mig for one in look() or ()] == [True]
        driver.readable = False
        assert look() is None


@contextlib.contextmanager
def gated(folder: Path, nvml: FakeNvml, *, healed: bool) -> Iterator[SupervisedEngine]:
    """An engine behind the gate, on a card that is free after the first wait, or never."""

    def wait(_: float) -> bool:
        if healed:
            nvml.set(IDLE)
        return not healed

    ledger, watch = MemoryLedger(), ExitWatch()
    with asking(nvml.environment) as client:
        look = GpuLook(GpuProcesses(client, EngineBox({}, ledger)), timeout=30.0)
        step = memory_released(look, "main", ("0",), 0.9, Baselines(), wait=wait)
        launch = Launch("main", script("time.sleep(600)"), folder / "log")
        endpoint = Endpoint("127.0.0.1", free_port())
        settings = EngineSettings(launch, endpoint, QUICK, (GateStep("gpu-memory", step),))
        around = Surroundings(Household(), watch, ledger, lambda _: None)
        engine = SupervisedEngine(settings, around)
        try:
            yield engine
        finally:
            for info in engine.processes():
                end(info.pid)
            watch.close()
            for record in ledger.living("main"):
                tempdirs.remove(record.tempdir)


def end(pid: int) -> None:
    """Not through the code under test."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: ended(pid))


def test_an_engine_starts_when_its_memory_comes_late(tmp_path: Path) -> None:
    """FACT: G1: memory that its process left behind delays a real start and does not fail it."""
    nvml = fake_nvml.build(tmp_path)
    nvml.set(process="none", memory_used=100 * GIB)
    with gated(tmp_path, nvml, healed=True) as engine:
        engine.start(Cause.CRASH)
        assert len(engine.processes()) == 1


def test_an_engine_does_not_start_while_its_memory_is_held(tmp_path: Path) -> None:
    """FACT: G1: when it never comes, nothing is spawned, and the error has cause and words."""
    nvml = fake_nvml.build(tmp_path)
    nvml.set(process="none", memory_used=100 * GIB)
    with gated(tmp_path, nvml, healed=False) as engine:
        with pytest.raises(ActionError, match=r"no visible process holds 100\.0 GiB") as caught:
            engine.start(Cause.CRASH)
        assert caught.value.cause is Cause.GPU_MEMORY_SHORT
        assert engine.processes() == ()


def test_a_hung_driver_holds_up_no_start(tmp_path: Path) -> None:
    """FACT: G10: a look without an answer ends at its deadline, and the gate passes."""
    nvml = fake_nvml.build(tmp_path)
    nvml.do("hang")
    with asking(nvml.environment) as client:
        look = GpuLook(GpuProcesses(client, EngineBox({}, MemoryLedger())), timeout=0.5)
        assert memory_released(look, "main", None, 0.9, Baselines())() is None
