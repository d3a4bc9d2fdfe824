"""Room on real file systems, which tests make small, and on those that do not answer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.engines import Engines
from watchdog import registry
from watchdog.command_line import describe
from watchdog.core.model import Cause
from watchdog.daemon.gates import Gates
from watchdog.places import Place
from watchdog.supervisor import room
from watchdog.supervisor.bounded import Bounded
from watchdog.supervisor.gate import GateVerdict, Refusal


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts file systems in memory with such options; they are gone afterwards."""
    with contextlib.ExitStack() as stack:

        def mount(options: str) -> Path:
            disk = tmp_path / options.replace("=", "").replace(",", "")
            disk.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
            if subprocess.run(command, check=False, capture_output=True).returncode:
                pytest.skip("mounting needs the rights of root")
            stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=True)
            return disk

        yield mount


def fill(disk: Path) -> Path:
    """Write until there is not a byte left."""
    with contextlib.suppress(OSError), (disk / "full").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return disk


def crowd(disk: Path) -> Path:
    """Make files until there is no inode left."""
    with contextlib.suppress(OSError):
        for number in range(100):
            (disk / str(number)).touch()
    return disk


@pytest.mark.parametrize(
    ("make", "words"), [(fill, "0 MiB free"), (crowd, "0 inodes free")], ids=["bytes", "inodes"]
)
def test_a_full_temporary_directory_refuses(
    mounted: Callable[[str], Path], make: Callable[[Path], Path], words: str
) -> None:
    """FACT: without a byte or an inode for its temporary files a start certainly fails."""
    disk = make(mounted("size=512m,nr_inodes=9" if make is crowd else "size=64k"))
    found = room.on_disk("main", [Place("temporary files", str(disk / "vw-1"), vital=True)])
    assert found.refusal is not None
    assert (found.refusal.cause, found.refusal.verdict) == (
        Cause.DISK_FULL,
        GateVerdict.DISK_SHORT,
    )
    text = f"cannot start main: {words} for its temporary files at {disk}/vw-1"
    assert found.refusal.explanation == text


def test_a_full_cache_is_said_and_not_refused(mounted: Callable[[str], Path]) -> None:
    """FACT: a model that is there already needs no room for its cache."""
    disk = fill(mounted("size=64k"))
    found = room.on_disk("main", [Place("models", str(disk))])
    assert found.refusal is None
    assert found.warnings == (f"engine main has only 0 MiB free for its models at {disk}",)


def test_a_nearly_full_disk_is_said(mounted: Callable[[str], Path]) -> None:
    """FACT: below what a start may need it is said, once for all that lies on it."""
    disk = mounted("size=100m")
    places = [Place(name, str(disk / name), vital=True) for name in ("log", "cache")]
    found = room.on_disk("main", places)
    assert found.refusal is None
    assert found.warnings == (f"engine main has only 100 MiB free for its log at {disk}/log",)


def test_without_limits_there_is_room(mounted: Callable[[str], Path]) -> None:
    """FACT: no blocks and no inodes at all is no limit, and /proc tells of neither."""
    disk = mounted("size=0,nr_inodes=0")
    for path in (str(disk), "/proc"):
        assert room.on_disk("main", [Place("log", path, vital=True)]) == room.Room()


def test_a_place_that_is_not_there_yet_is_on_its_parents_disk(
    mounted: Callable[[str], Path],
) -> None:
    """FACT: what vLLM will make counts as what it is made on."""
    disk = mounted("size=10m")
    assert room.on_disk("main", [Place("models", str(disk / "a/b/c"))]).warnings


def test_shared_memory_for_several_workers(mounted: Callable[[str], Path]) -> None:
    """FACT (S4): the 64 MB of a container are said for two workers; a full one refuses."""
    shm = mounted("size=64m")
    wanted = 400 << 20
    assert room.in_shared_memory("main", 0, str(shm)) == room.Room()
    (said,) = room.in_shared_memory("main", wanted, str(shm)).warnings
    assert said == (
        f"engine main has only 64 MiB free in {shm} for its workers, 400 MiB are wanted"
    )
    refusal = room.in_shared_memory("main", wanted, str(fill(shm))).refusal
    assert refusal is not None
    assert (refusal.cause, refusal.verdict) == (Cause.SHM_SHORT, GateVerdict.SHM_SHORT)
    assert "--shm-size" in refusal.what_to_do
    assert room.in_shared_memory("main", wanted, str(shm / "missing")) == room.Room()


def test_what_hangs_hangs_nobody_else() -> None:
    """FACT: work that does not come back is given up, and none is begun beside it until it does."""
    release, begun = threading.Event(), threading.Event()
    bounded = Bounded(0.05)

    def hangs() -> int:
        begun.set()
        release.wait(30)
        return 1

    assert bounded(hangs) is None
    assert begun.is_set()
    assert bounded(lambda: 2) is None
    release.set()
    while bounded(lambda: 3) is None:  # until the thread has ended
        pass
    assert bounded(lambda: 1 // 0) is None


def looked(environment: dict[str, str]) -> tuple[list[Refusal | None], list[str]]:
    """What the steps of a real gate say, and what goes to the journal."""
    said: list[str] = []
    gates = Gates(registry.probes(), Engines(()), {}, say=lambda _, text: said.append(text))
    command = describe(("python3", "-m", "watchdog.simulator"), {}, {})
    steps = gates.roomy("main", command, lambda: environment, "/proc/log")
    assert [step.name for step in steps] == ["leftovers", "room"]
    try:
        return [step.look() for step in steps], said
    finally:
        gates.close()


def test_the_gate_looks_at_the_room(mounted: Callable[[str], Path]) -> None:
    """FACT: what is nearly full goes to the journal, what is full refuses, a healthy box passes."""
    disk = mounted("size=1m")
    assert looked({"TMPDIR": "/proc"}) == ([None, None], [])
    passed, said = looked({"TMPDIR": str(disk)})
    assert passed == [None, None]
    assert said == [f"engine main has only 1 MiB free for its temporary files at {disk}"]
    (_, refusal), _ = looked({"TMPDIR": str(fill(disk))})
    assert refusal is not None
    assert refusal.verdict is GateVerdict.DISK_SHORT


def test_what_cannot_be_looked_at_stops_nobody() -> None:
    """FACT: a place that cannot be read, or is no path, is no reason to refuse a start."""
    for path in ("\0", "/proc/self/mem/x", "x" * 5000):
        assert room.on_disk("main", [Place("log", path, vital=True)]) == room.Room()
    assert os.statvfs("/proc").f_files == 0
