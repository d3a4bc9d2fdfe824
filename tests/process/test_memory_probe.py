"""Memory of the box, of limited cgroups and of engines, measured on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.memory_cgroups import (
    Found,
    Written,
    growing,
    kernel,
    limited,
)
from tests.support.memory_desk import GIB, ME, MEMINFO, MIB, MINUTE, Desk, box_of_files, looked
from tests.support.simulated import ROOT
from watchdog.contracts import ProbeError

LIMIT = 64 * MIB


# --- the box ----------------------------------------------------------------------------------


def test_the_box_is_as_the_kernel_says() -> None:
    """FACT: totals are those of /proc/meminfo, and pressure is read where the kernel has it."""
    found = Desk().read()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total, available = found["total_bytes",], found["available_bytes",]
    assert total == pages
    assert 0 < int(available) < int(total)
    assert found["available_percent",] == pytest.approx(100 * int(available) / int(total))
    assert 0 <= int(found["swap_used_bytes",]) <= int(found["swap_total_bytes",])
    has_pressure = Path("/proc/pressure/memory").exists()
    assert (("pressure_full_percent",) in found) is has_pressure
    assert ("full_in_seconds",) not in found


def test_shared_memory_is_seen(tmp_path: Path) -> None:
    """FACT: a file on a tmpfs is in ``shared_bytes`` and no engine's private memory."""
    desk = Desk()
    before = int(desk.read()["shared_bytes",])
    file = Path("/dev/shm") / tmp_path.name
    try:
        file.write_bytes(bytes(32 * MIB))
        assert int(desk.read()["shared_bytes",]) - before > 24 * MIB
    finally:
        file.unlink()


def test_without_pressure_there_is_none(tmp_path: Path) -> None:
    """FACT: a kernel without pressure stall information gives no figure, and not 0."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    found = Desk(proc=str(tmp_path)).read()
    assert {name for name, *_ in found} == {
        *("total_bytes", "available_bytes", "available_percent"),
        "swap_total_bytes",
    }


@pytest.mark.parametrize("text", ["", "MemTotal:\n", "MemTotal: x kB\n", "\0\0"])
def test_a_box_that_tells_nothing(tmp_path: Path, text: str) -> None:
    """FACT: without the box's own memory the probe fails in one line."""
    (tmp_path / "meminfo").write_text(text)
    with pytest.raises(ProbeError, match=r"^cannot read \S+/meminfo$"):
        list(Desk(proc=str(tmp_path)).probe.read(time.monotonic() + 5))


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.root
@kernel
def test_an_engine_near_the_limit_of_its_own_cgroup() -> None:
    """FACT: a real process that fills its cgroup to 90 % is told with the limit, before the end."""
    desk = Desk()
    with limited(LIMIT) as folder, growing(folder) as process:
        process.takes(8 * MIB)
        first = desk.read(process.pid)
        assert first["engine_limit_bytes", "main"] == LIMIT
        assert float(first["engine_used_percent", "main"]) < 50

        process.takes(50 * MIB)

        found = desk.read(process.pid)
        assert 90 < float(found["engine_used_percent", "main"]) < 100
        assert found.get(("limited_by",)) != str(folder)


@pytest.mark.root
@kernel
def test_page_cache_fills_no_limit(tmp_path: Path) -> None:
    """FACT: a cgroup that is full of page cache is not near its limit."""
    desk = Desk()
    with limited(LIMIT) as folder, growing(folder, tmp_path / "file") as process:
        process.takes(100 * MIB, "file")
        assert int((folder / "memory.usage_in_bytes").read_text()) > LIMIT / 2
        assert float(desk.read(process.pid)["engine_used_percent", "main"]) < 30


READ_INSIDE = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from probes.memory import Memory, Settings
from tests.support.engines import Engines
held = bytearray(b"x") * int(sys.argv[2])
for one in Memory(Settings(), Engines(())).read(time.monotonic() + 5):
    print(one.sample, one.value)
"""


@pytest.mark.root
@kernel
def test_our_own_limit() -> None:
    """FACT: whoever sits in a limited cgroup himself is told of it, and by which it is."""
    with limited(256 * MIB) as folder:
        command = (sys.executable, "-c", READ_INSIDE, str(folder), str(220 * MIB))
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = dict(line.split(maxsplit=1) for line in lines.splitlines())
    assert int(found["limit_bytes"]) == 256 * MIB
    assert found["limited_by"] == str(folder)
    assert int(found["used_bytes"]) > 220 * MIB
    assert 86 < float(found["used_percent"]) < 100


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The tree of files."""
    return box_of_files(tmp_path)


def test_version_two_is_read_up_the_tree(written: Written) -> None:
    """FACT: a limit above holds for us; what counts is anonymous and shared memory."""
    written.uses(written.box, 40 * GIB, 8 * GIB, str(64 * GIB))
    found = looked(written)
    assert found["limit_bytes",] == 64 * GIB
    assert found["used_bytes",] == 48 * GIB
    assert found["used_percent",] == 75
    assert found["limited_by",] == str(written.box)
    assert ("engine_limit_bytes", "main") not in found


def test_version_two_has_a_limit_for_the_engine_alone(written: Written) -> None:
    """FACT: the limit of the engine's own cgroup is the engine's, the fullest above is ours."""
    written.uses(written.box, 40 * GIB, most=str(64 * GIB))
    written.uses(written.engine, 30 * GIB, GIB, str(32 * GIB))
    found = looked(written)
    assert found["engine_limit_bytes", "main"] == 32 * GIB
    assert found["engine_used_percent", "main"] == pytest.approx(100 * 31 / 32)
    assert found["limit_bytes",] == 64 * GIB


def test_version_two_slows_down_before_it_kills(written: Written) -> None:
    """FACT: ``memory.high`` is a limit too, where it is the lower one."""
    written.uses(written.box, 45 * GIB, most=str(64 * GIB))
    (written.box / "memory.high").write_text(f"{50 * GIB}\n")
    found = looked(written)
    assert (found["limit_bytes",], found["used_percent",]) == (50 * GIB, 90)


@pytest.mark.parametrize("most", ["max", str(256 * GIB), str(1 << 63), "", "x"])
def test_what_is_no_limit(written: Written, most: str) -> None:
    """FACT: none, one that the box itself does not have, and a broken one are no limit."""
    written.uses(written.box, 40 * GIB, most=most)
    found = looked(written)
    assert ("limit_bytes",) not in found
    assert ("used_percent",) not in found


def test_a_container_sees_itself_as_the_root(written: Written, tmp_path: Path) -> None:
    """FACT: in a cgroup namespace the limit stands at the mount itself."""
    written.puts(ME, "/")
    written.count(tmp_path / "cgroup", 0)
    written.uses(tmp_path / "cgroup", 9 * GIB, most=str(10 * GIB))
    found = looked(written)
    assert (found["limited_by",], found["used_percent",]) == (str(tmp_path / "cgroup"), 90)


@pytest.mark.parametrize("path", ["/../elsewhere", "/gone"])
def test_a_cgroup_out_of_sight(written: Written, path: str) -> None:
    """FACT: a cgroup that cannot be seen has no figures, and the rest is told all the same."""
    written.uses(written.engine, 30 * GIB, GIB, str(32 * GIB))
    written.puts(7, path)
    found = looked(written)
    assert ("engine_used_percent", "main") not in found
    assert found["total_bytes",] == 256 * GIB


def test_the_pressure_of_a_cgroup_counts_like_the_box(written: Written) -> None:
    """FACT: of box and cgroups the worst figure is told: a large box hides a small cgroup."""
    line = "{} avg10={} avg60=0.00 avg300=0.00 total=1\n"
    (written.proc / "pressure").mkdir()
    box, own = written.proc / "pressure/memory", written.engine / "memory.pressure"
    box.write_text(line.format("some", "3.00") + line.format("full", "2.00"))
    own.write_text(line.format("some", "62.50") + line.format("full", "41.25"))
    found = looked(written)
    assert (found["pressure_some_percent",], found["pressure_full_percent",]) == (62.5, 41.25)


@pytest.mark.root
@kernel
def test_a_limit_that_fills_up_is_forecast() -> None:
    """FACT: a real process that takes 2 MiB a minute of 64 is told with the time that is left."""
    desk = Desk()
    with limited(LIMIT) as folder, growing(folder) as process:
        process.takes(8 * MIB)
        found = desk.read(process.pid)
        assert ("full_in_seconds",) not in found
        for _ in range(16):
            process.takes(2 * MIB)
            found = desk.read(process.pid, later=MINUTE)
        left = LIMIT * (1 - float(found["engine_used_percent", "main"]) / 100)
        assert found["full_in_seconds",] == pytest.approx(left / (2 * MIB) * MINUTE, rel=0.1)
        assert str(found["outlook",]).startswith(f"engine main, limit of 64.0 MiB in {folder}: ")
        for _ in range(16):
            found = desk.read(process.pid, later=MINUTE)
        assert folder.name not in str(found.get(("outlook",)))  # the box may have one of its own


def test_the_first_to_be_full_is_told(written: Written) -> None:
    """FACT: of two that fill up the one that is full first is told."""
    desk = Desk(proc=str(written.proc))
    found: Found = {}
    for minute in range(10):
        text = MEMINFO.replace(str(64 * MIB), str((64 - minute) * MIB))
        (written.proc / "meminfo").write_text(text)
        written.uses(written.box, (20 + minute) * GIB, most=str(64 * GIB))
        found = desk.read(later=MINUTE)
    assert found["full_in_seconds",] == pytest.approx(35 * MINUTE)
    assert found["outlook",] == f"limit of 64.0 GiB in {written.box}: full in 35 minutes"


def test_a_box_that_fills_up_is_forecast(tmp_path: Path) -> None:
    """FACT: a gigabyte a minute that goes on leaves as many minutes as there are gigabytes."""
    desk = Desk(proc=str(tmp_path))
    found: Found = {}
    for minute in range(10):
        text = MEMINFO.replace(str(64 * MIB), str((64 - minute) * MIB))
        (tmp_path / "meminfo").write_text(text)
        found = desk.read(later=MINUTE)
    assert found["full_in_seconds",] == pytest.approx(55 * MINUTE)
    assert found["outlook",] == "memory of the box: full in 55 minutes"
