"""The probe ``cpu``: the box's processors, and what a quota withholds from a real process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.cpu import PROBE, Cpu
from tests.support.engines import Engines, Target
from tests.support.simulated import until
from watchdog import procfs
from watchdog.contracts import Endpoint, EngineLook
from watchdog.core.model import Sampled, Value, engine_subject

SPIN = "while True: pass"


def named(probe: Cpu) -> dict[str, Value]:
    """Samples by name, those of engines too."""
    return {one.sample: one.value for one in probe.read(0.0) if isinstance(one, Sampled)}


def engine(leader: int) -> Engines:
    """A box with one engine."""
    return Engines((Target(Endpoint("127.0.0.1", 1), now=EngineLook("g", leader=leader)),))


@pytest.fixture
def quota() -> Iterator[Path]:
    """A cgroup that may run a hundredth of the time. The kernel has one hierarchy or the other."""
    tops = {name: one.path for one in procfs.cgroup_mounts() for name in one.controllers}
    legacy = "cpu" in tops
    folder = Path(tops["cpu" if legacy else ""], "vw-test-quota")
    folder.mkdir()
    try:
        if legacy:
            (folder / "cpu.cfs_period_us").write_text("100000")
            (folder / "cpu.cfs_quota_us").write_text("1000")
        elif (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text("1000 100000")
        else:
            pytest.skip("no cgroup of this machine has the cpu controller")
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


@contextlib.contextmanager
def spinning(folder: Path) -> Iterator[int]:
    """A process in the cgroup that wants a processor all the time."""
    wait = f"import sys; sys.stdin.readline()\n{SPIN}"
    with subprocess.Popen([sys.executable, "-ISc", wait], stdin=subprocess.PIPE) as process:
        try:
            (folder / "cgroup.procs").write_text(str(process.pid))
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
            yield process.pid
        finally:
            process.kill()


def test_a_quota_that_withholds_the_processor(quota: Path) -> None:
    """FACT: the time for which an engine's own cgroup was kept from running is told, and rises."""
    with spinning(quota) as pid:
        probe = Cpu(engine(pid))
        until(lambda: float(named(probe)["engine_throttled_seconds"]) > 0.1)
        (sample,) = (
            one
            for one in probe.read(0.0)
            if isinstance(one, Sampled) and one.sample == "engine_throttled_seconds"
        )
    assert (sample.subject, sample.labels) == (engine_subject("main"), (("engine", "main"),))


def test_an_engine_in_our_cgroup_is_told_with_us() -> None:
    """FACT: what is withheld from all of us is not told twice."""
    with subprocess.Popen([sys.executable, "-ISc", SPIN]) as process:
        try:
            assert "engine_throttled_seconds" not in named(Cpu(engine(process.pid)))
        finally:
            process.kill()


def test_shares_are_of_the_time_between_two_looks() -> None:
    """FACT: the first look knows none; later ones are percentages, and a busy box is not idle."""
    probe = Cpu(engine(1))
    first = named(probe)
    assert int(first["cores"]) >= 1
    assert not {"used_percent", "iowait_percent", "steal_percent"} & first.keys()
    with subprocess.Popen([sys.executable, "-ISc", SPIN]) as process:
        try:
            busy = until(lambda: _busier(named(probe), 10.0))
        finally:
            process.kill()
    shares = [float(busy[f"{name}_percent"]) for name in ("used", "iowait", "steal")]
    assert all(0.0 <= share <= 100.0 for share in shares)
    assert sum(shares) <= 200.0  # stolen time counts as used


def _busier(found: dict[str, Value], than: float) -> dict[str, Value]:
    """What was found, if the box worked more than that; two looks within a tick tell no share."""
    return found if float(found.get("used_percent", 0.0)) > than else {}


@pytest.mark.parametrize("text", ["", "full avg10=1.00\n", "some avg10=\n", "\x00\xff\n" * 99])
def test_pressure_that_is_none(tmp_path: Path, text: str) -> None:
    """FACT: a kernel without PSI, or with something else there, tells nothing: not 0."""
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/cpu").write_text(text)
    assert "pressure_percent" not in named(Cpu(engine(1), str(tmp_path)))
    (tmp_path / "pressure/cpu").write_text("some avg10=12.50 avg60=0.00 avg300=0.00 total=1\n")
    assert named(Cpu(engine(1), str(tmp_path)))["pressure_percent"] == 12.5


def test_every_sample_is_declared() -> None:
    """FACT: what is read is what rules and metrics know."""
    declared = {spec.name for spec in PROBE.samples}
    probe = Cpu(engine(1))
    assert named(probe).keys() | named(probe).keys() <= declared
