"""The memory of engines, measured on real processes: of the whole set, and over hours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from probes.memory import PROBE, Settings
from tests.support.memory_cgroups import Written, growing, read
from tests.support.memory_desk import HOUR, ME, MIB, MINUTE, Desk, box_of_files, looked
from watchdog import procfs
from watchdog.contracts import EngineLook, ProcessInfo
from watchdog.core.model import ProcessState


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The tree of files."""
    return box_of_files(tmp_path)


@pytest.fixture
def pair() -> Iterator[tuple[Desk, int, int]]:
    """A desk, and two processes with 16 and 8 MiB of their own."""
    with growing() as one, growing() as other:
        one.takes(16 * MIB)
        other.takes(8 * MIB)
        yield Desk(), one.pid, other.pid


def test_private_memory_is_that_of_the_whole_set(pair: tuple[Desk, int, int]) -> None:
    """FACT: what each process has for itself is summed up over the set."""
    desk, one, other = pair
    alone = int(desk.read(one)["engine_bytes", "main"])
    both = int(desk.read(one, other)["engine_bytes", "main"])
    assert 16 * MIB < alone < 24 * MIB
    assert 8 * MIB < both - alone < 16 * MIB


def test_memory_that_was_swapped_out_is_still_the_engines(written: Written) -> None:
    """FACT: a leak does not hide in swap."""
    (written.proc / "7/status").write_text("VmSize: 90 kB\nRssAnon:\t 16 kB\nVmSwap:\t 8 kB\n")
    assert looked(written)["engine_bytes", "main"] == 24 << 10


def test_shared_memory_is_nobodys_private() -> None:
    """FACT: memory that is shared is no growth of an engine."""
    desk = Desk()
    with growing() as process:
        before = int(desk.read(process.pid)["engine_bytes", "main"])
        process.takes(16 * MIB, "shared")
        assert int(desk.read(process.pid)["engine_bytes", "main"]) - before < MIB


def test_an_engine_that_grows_for_hours() -> None:
    """FACT: a real set that gains 24 MiB an hour is told so, with the day on which it is full."""
    desk = Desk()
    with growing() as leader, growing() as core:
        found = desk.read(leader.pid, core.pid)
        for _ in range(18):
            assert ("engine_full_in_seconds", "main") not in found or desk.now > 2 * HOUR
            core.takes(4 * MIB)
            found = desk.read(leader.pid, core.pid, later=10 * MINUTE)
        hourly = float(found["engine_growth_bytes_per_hour", "main"])
        assert hourly == pytest.approx(24 * MIB, rel=0.1)
        full_in = float(found["engine_full_in_seconds", "main"])
        assert full_in <= int(found["available_bytes",]) / hourly * HOUR * 1.01
        assert " more every hour: memory full in " in str(found["engine_outlook", "main"])


def test_an_engine_that_does_not_grow_for_hours() -> None:
    """FACT: steady memory, one step up, and growth that has ended are zero growth."""
    desk = Desk()
    with growing() as process:
        found = desk.read(process.pid)
        for step in range(24):
            if step == 12:
                process.takes(32 * MIB)
            found = desk.read(process.pid, later=10 * MINUTE)
        assert found["engine_growth_bytes_per_hour", "main"] == 0
        assert ("engine_outlook", "main") not in found


def test_a_new_start_begins_anew() -> None:
    """FACT: hours of one start say nothing of the next: its growth is not known yet."""
    desk = Desk()
    with growing() as process:
        for _ in range(18):
            process.takes(MIB)
            assert desk.read(process.pid, later=10 * MINUTE)
        assert desk.read(process.pid)["engine_growth_bytes_per_hour", "main"] != 0
        desk.target.now = EngineLook(generation="g2", state=ProcessState.RUNNING)
        found = desk.read(process.pid)
        assert ("engine_growth_bytes_per_hour", "main") not in found
        assert ("engine_bytes", "main") in found


def test_an_engine_that_does_not_run() -> None:
    """FACT: an engine without a process, or only with dead ones, has no memory: not 0 bytes."""
    desk = Desk()
    assert not [key for key in desk.read() if "main" in key]
    desk.target.living = (ProcessInfo(ME, 1, 1, 1, "Z", "x", 0.0, 0),)
    assert not [key for key in read(PROBE, desk.probe) if "main" in key]


# --- proportional memory ----------------------------------------------------------------------


def test_proportional_memory_counts_what_is_shared_once() -> None:
    """FACT: after a fork the two of them have hardly more; private memory doubles."""
    desk = Desk()
    with growing() as process:
        process.takes(32 * MIB)
        one = desk.read(process.pid)
        process.takes(0, "fork")
        (child,) = procfs.children(process.pid)
        try:
            two = desk.read(process.pid, child, later=HOUR)
        finally:
            os.kill(child, 9)
        assert int(one["engine_pss_bytes", "main"]) > 32 * MIB
        assert int(two["engine_pss_bytes", "main"]) < 1.2 * int(one["engine_pss_bytes", "main"])
        assert int(two["engine_bytes", "main"]) > 1.6 * int(one["engine_bytes", "main"])


def test_proportional_memory_is_read_rarely() -> None:
    """FACT: between two sums, ten minutes, the last one is told again."""
    desk = Desk()
    with growing() as process:
        first = desk.read(process.pid)["engine_pss_bytes", "main"]
        process.takes(16 * MIB)
        assert desk.read(process.pid, later=590)["engine_pss_bytes", "main"] == first
        assert desk.read(process.pid, later=20)["engine_pss_bytes", "main"] != first


@pytest.mark.parametrize("settings", [Settings(pss_interval=0), Settings(pss_most_bytes=4 * MIB)])
def test_proportional_memory_of_large_processes_is_left_alone(settings: Settings) -> None:
    """FACT: what would hold up an engine is not read, and neither is what nobody wants."""
    desk = Desk(settings)
    with growing() as process:
        process.takes(8 * MIB)
        found = desk.read(process.pid)
        assert ("engine_pss_bytes", "main") not in found
        assert ("engine_bytes", "main") in found


def test_nobody_in_uninterruptible_sleep_is_waited_for() -> None:
    """FACT: while a member is in state D no page tables of the set are walked."""
    desk = Desk()
    own = procfs.stat(ME)
    assert own is not None
    desk.target.living = (replace(own, state="D"),)
    assert ("engine_pss_bytes", "main") not in read(PROBE, desk.probe)
