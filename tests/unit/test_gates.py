"""The start's gates: the driver's floor and its mismatch, and the cards that are looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import cuda_engine
from tests.support.engines import Engines
from watchdog import registry
from watchdog.command_line import describe
from watchdog.core.model import Cause
from watchdog.daemon.gates import Gates, visible
from watchdog.supervisor.gate import Refusal

MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sat Aug 19 01:15:15 UTC\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A file system with an engine whose torch wants CUDA 13.0; see ``driver`` for the rest."""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "usr/lib64").mkdir(parents=True)
    return tmp_path


def driver(machine: Path, module: str, library: str) -> None:
    """Load a kernel module, and install the libraries of a driver."""
    (machine / "proc/driver/nvidia/version").write_text(MODULE.format(module))
    file = machine / f"usr/lib64/libcuda.so.{library}"
    file.write_bytes(b"\x7fELF\x02")
    (machine / "usr/lib64/libcuda.so.1").symlink_to(file.name)


def refused(machine: Path, *command: str, floors: dict[str, str] | None = None) -> Refusal | None:
    """What the driver's gate says to an engine of this machine."""
    gates = Gates(registry.probes(), Engines(()), floors or {}, str(machine))
    step, _ = gates.steps("main", describe(command, {}, {}), dict, tuple)
    assert step.name == "driver-fits"
    return step.look()


def vllm(machine: Path, cuda: str = "13.0") -> tuple[str, ...]:
    """The command of an installed engine, as the file system of the machine names it."""
    script = cuda_engine.installed(machine / "opt" / "env", cuda)
    inside = str(script).removeprefix(str(machine))
    script.write_text(f"#!{Path(inside).parent}/python\n")
    return (inside, "serve", "m")


def test_an_old_driver_refuses_the_start_with_all_versions(machine: Path) -> None:
    """FACT (G13): before the start, in one sentence: what is there, wanted and needed."""
    driver(machine, "550.54.14", "550.54.14")
    found = refused(machine, *vllm(machine))
    assert found is not None
    assert found.cause is Cause.DRIVER_TOO_OLD
    for words in ("cannot start main: ", "550.54.14", "CUDA 13.0", "580.65.06"):
        assert words in found.explanation


def test_a_driver_at_the_floor_starts(machine: Path) -> None:
    """FACT (G13): the family's floor is enough, and so is anything newer."""
    driver(machine, "580.65.06", "580.65.06")
    assert refused(machine, *vllm(machine)) is None


def test_the_floors_of_the_configuration_count(machine: Path) -> None:
    """FACT (G13): a family that the table lacks is judged by what the probe is told of it."""
    driver(machine, "580.65.06", "580.65.06")
    command = vllm(machine, "99.0")
    assert refused(machine, *command) is None
    assert refused(machine, *command, floors={"99": "999.10"}) is not None


def test_a_half_upgraded_driver_refuses_the_start(machine: Path) -> None:
    """FACT (G12): libraries of another version than the module are CUDA's error 803 to come."""
    driver(machine, "580.65.06", "580.82.07")
    found = refused(machine, *vllm(machine))
    assert found is not None
    assert found.cause is Cause.DRIVER_MISMATCH
    assert "580.65.06" in found.explanation
    assert "580.82.07" in found.explanation


def test_what_wants_no_cuda_starts_on_any_driver(machine: Path) -> None:
    """FACT: an engine on the CPU is not refused for a driver that it never asks."""
    driver(machine, "450.80.02", "580.82.07")
    assert refused(machine, *vllm(machine, "")) is None
    assert refused(machine, "python3", "-m", "watchdog.simulator") is None


@pytest.mark.parametrize(
    ("environment", "cards"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0, 2"}, ("0", "2")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, ("GPU-1",)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ("1",)),
    ],
)
def test_cards_are_visible_as_cuda_reads_it(
    environment: dict[str, str], cards: tuple[str, ...] | None
) -> None:
    """FACT: the list ends where an entry names no device; without one all cards are visible."""
    assert visible(environment) == cards
