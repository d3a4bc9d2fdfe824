"""The engine_process probe on the process table of a simulated engine, and on made-up ones."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from probes.engine_process import PROBE, Settings
from tests.support.engines import Target, values
from tests.support.simulated import Simulated, simulated, stat_fields, until
from watchdog.contracts import Endpoint, EngineLook, Probe, ProcessInfo
from watchdog.core.model import ProcessState, Value

TICKS = os.sysconf("SC_CLK_TCK")


def process(pid: int, comm: str = "python3", state: str = "S", **more: float) -> ProcessInfo:
    """One process of the set."""
    base = ProcessInfo(pid, 1, 1, 1, state, comm, cpu_seconds=0.0, rss_bytes=10)
    return replace(base, **more)  # type: ignore[arg-type]


def looking(*living: ProcessInfo, leader: int | None = 1) -> tuple[Probe, Target]:
    """A probe, and the target that it looks at."""
    look = EngineLook(generation="g1", state=ProcessState.RUNNING, leader=leader)
    target = Target(Endpoint("127.0.0.1", 1), now=look, living=living)
    return PROBE.build(Settings(), target), target


def read(probe: Probe) -> dict[str, Value]:
    """One reading."""
    return values(probe.read(time.monotonic() + 1))


def table(engine: Simulated) -> tuple[ProcessInfo, ...]:
    """The engine's members as /proc shows them."""
    found = []
    for pid in engine.members():
        fields, comm = stat_fields(pid), Path(f"/proc/{pid}/comm").read_text().strip()
        cpu = (int(fields[11]) + int(fields[12])) / TICKS
        found.append(process(pid, comm, fields[0], ppid=int(fields[1]), cpu_seconds=cpu))
    return tuple(found)


def test_a_serving_engine_and_one_that_is_stopped() -> None:
    """FACT: leader, core and worker are told by their titles, a stopped core by its state."""
    with simulated("--workers", "2") as engine:
        engine.ready()
        engine.member("VLLM::Worker_TP1")
        probe, target = looking(*table(engine), leader=engine.pid)
        seen = read(probe)
        assert seen["leader_alive"] is True
        assert (seen["cores"], seen["workers"]) == (1, 2)
        assert seen["members"] == len(target.living)
        assert seen["stopped_members"] == 0
        assert "stopped" not in seen
        core = engine.member("VLLM::EngineCore")
        os.kill(core, signal.SIGSTOP)
        until(lambda: stat_fields(core)[0] == "T")
        target.living = table(engine)
        seen = read(probe)
        assert seen["stopped_members"] == 1
        assert seen["stopped"] == f"VLLM::EngineCor (pid {core})"


def test_nothing_lives() -> None:
    """FACT: an engine without a process is a fact with zeros, and no trouble."""
    probe, _ = looking(leader=None)
    seen = read(probe)
    assert seen["leader_alive"] is False
    assert seen["members"] == 0
    assert "log_bytes" not in seen


@pytest.mark.parametrize(
    ("comm", "core", "worker", "compiler"),
    [
        ("VLLM::EngineCor", 1, 0, 0),
        ("MINE::EngineCor", 1, 0, 0),
        ("LONGNAME::Engin", 1, 0, 0),
        ("EngineCore", 1, 0, 0),
        ("VLLM::Worker_TP", 0, 1, 0),
        ("LONGPREFIX::Wor", 0, 1, 0),
        ("VLLM::E", 0, 0, 0),
        ("VLLM::APIServer", 0, 0, 0),
        ("ptxas", 0, 0, 1),
        ("cc1plus", 0, 0, 1),
        ("g++-12", 0, 0, 1),
        ("clang-17", 0, 0, 1),
        ("x86_64-linux-g", 0, 0, 0),
        ("python3.11", 0, 0, 0),
    ],
)
def test_names(comm: str, core: int, worker: int, compiler: int) -> None:
    """FACT: names are known with any prefix, cut by the kernel, and with versions."""
    probe, _ = looking(process(2, "EngineCore"), process(3, comm, ppid=2))
    seen = read(probe)
    assert (seen["cores"], seen["workers"], seen["compilers"]) == (1 + core, worker, compiler)


def test_what_a_worker_forks_is_no_worker() -> None:
    """FACT: it bears the title until it is another program, and its end is no loss."""
    worker = process(3, "VLLM::Worker_TP", ppid=2)
    forked = process(4, "VLLM::Worker_TP", ppid=3)
    left = process(5, "VLLM::Worker_TP", ppid=1)
    probe, _ = looking(process(2, "VLLM::EngineCor"), worker, forked, left)
    assert read(probe)["workers"] == 1


def test_the_dead_do_not_count() -> None:
    """FACT: a zombie is no member, unless another of its threads lives on."""
    probe, _ = looking(
        process(1, state="Z", threads=2), process(2, state="Z"), process(3, state="D")
    )
    seen = read(probe)
    assert (seen["members"], seen["leader_alive"]) == (2, False)
    assert seen["uninterruptible_members"] == 1


def test_cpu_time_never_falls_within_a_start() -> None:
    """FACT: a member that ends takes no CPU time with it; a new start counts from zero."""
    probe, target = looking(process(1, cpu_seconds=1.0), process(2, cpu_seconds=5.0))
    seen = read(probe)
    assert (seen["cpu_seconds"], seen["core_cpu_seconds"]) == (6.0, 5.0)
    target.living = (process(1, cpu_seconds=1.5), process(3, cpu_seconds=0.5))
    seen = read(probe)
    assert (seen["cpu_seconds"], seen["core_cpu_seconds"]) == (7.0, 5.5)
    target.now = replace(target.now, generation="g2")
    assert read(probe)["cpu_seconds"] == 2.0


def test_memory_and_log() -> None:
    """FACT: memory is the sum, the log what the supervisor says."""
    probe, target = looking(process(1), process(2))
    target.logged = 7
    seen = read(probe)
    assert (seen["rss_bytes"], seen["log_bytes"]) == (20, 7)
