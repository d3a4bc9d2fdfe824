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

from probes._nvml.client import CardIdentity, NvmlUnavailableError
from probes.gpu_processes import GpuProcesses
from tests.support import cuda_engine, fake_nvml
from tests.support.daemon import Daemon, running
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
    trouble: str = ""
    unanswered_since: float | None = None
    cards: tuple[CardIdentity, ...] = ()

    def ask(self, request: str, deadline: float) -> dict[str, Any]:
        """The present list."""
        assert request == "processes"
        assert deadline > time.monotonic()
        if not self.readable:
            raise NvmlUnavailableError("cannot read any GPU: driver not loaded")
        info = procfs.stat(self.pid)
        size = 50 * GIB if info is not None and procfs.lives(info) else 0
        return {
            "driver": "580.159.04",
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
            ],
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


@contextlib.contextmanager
def stopping(folder: Path) -> Iterator[Daemon]:
    """A daemon whose engine has died and is not started, because its memory is still held."""
    (folder / "nvml").mkdir()
    nvml = fake_nvml.build(folder / "nvml")
    nvml.set(IDLE)
    port = free_port()
    command = cuda_engine.command(folder / "env", port)
    with running(folder / "state", command, port, environment=nvml.environment) as daemon:
        daemon.wait_ready(60.0)
        nvml.set({"0.memory_used": 100 * GIB})
        os.kill(daemon.engine()["pid"], signal.SIGKILL)
        daemon.wait_event("decision.act", wanted=lambda e: e["action"] == "restart_engine")
        until(lambda: daemon.engine()["state"] == "stopping" and not daemon.survivors())
        yield daemon


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_shutdown_does_not_wait_for_memory(tmp_path: Path, number: signal.Signals) -> None:
    """FACT: a start that waits for GPU memory is given up when the watchdog is told to end."""
    with stopping(tmp_path) as daemon:
        daemon.send(number)
        assert daemon.ended(30.0) == 0
        refused = daemon.wait_event("action.finished", wanted=lambda e: e["result"] == "failed")
        assert refused["explanation"] == "cannot start main: the watchdog is stopping"
