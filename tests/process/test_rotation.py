"""An engine's log is rotated while the engine writes to it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.simulated import until
from watchdog.supervisor.rotation import KEPT, part, put_aside, rotate

LIMIT = 64 << 10
LINES = 20_000
WRITER = (
    "import os, sys\n"
    "log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
    f"for number in range({LINES}):\n"
    "    os.write(log, b'line %08d of the engine\\n' % number)\n"
)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder on a tmpfs, which cannot cut off the beginning of a file."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def parts(log: Path) -> list[Path]:
    """The log and what was rotated, oldest first."""
    older = [part(log, number) for number in range(KEPT, 0, -1)]
    return [one for one in (*older, log) if one.exists()]


def test_no_line_is_lost_while_the_engine_writes(tmp_path: Path) -> None:
    """Every line that was written during many rotations is there, once and in order.

    Where the file system cannot cut off a beginning this cannot be promised.
    """
    log = tmp_path / "engine.log"
    saved: list[bytes] = []
    with subprocess.Popen([sys.executable, "-c", WRITER, str(log)]) as writer:
        while writer.poll() is None:
            if rotate(log, LIMIT):
                saved.append(part(log, 1).read_bytes())
    assert writer.returncode == 0
    saved.append(log.read_bytes())
    if log.stat().st_size == sum(map(len, saved)):
        pytest.skip("the machine was too slow to rotate while it was written")
    lines = b"".join(saved).splitlines()
    expected = [b"line %08d of the engine" % number for number in range(LINES)]
    if _cuts(tmp_path):
        assert lines == expected
    else:
        assert len(set(lines)) > LINES // 2


def _cuts(folder: Path) -> bool:
    """Whether the file system can cut off a beginning: then what is left is less than a block."""
    probe = folder / "probe"
    probe.write_bytes(b"x" * (LIMIT + 1))
    rotate(probe, LIMIT)
    return probe.stat().st_size > 0


def test_the_engine_goes_on_in_the_same_file(memory: Path) -> None:
    """Also where the file is emptied: what is appended afterwards begins at its beginning."""
    log = memory / "engine.log"
    with log.open("ab") as engine:
        engine.write(b"a" * (LIMIT + 1))
        engine.flush()
        assert rotate(log, LIMIT)
        engine.write(b"next\n")
    assert log.read_bytes() == b"next\n"
    assert part(log, 1).read_bytes() == b"a" * (LIMIT + 1)


def test_five_older_parts_are_kept_the_youngest_first(tmp_path: Path) -> None:
    """LOG.1 is the youngest, LOG.5 the oldest; what is older is gone."""
    log = tmp_path / "engine.log"
    for number in range(KEPT + 2):
        with log.open("ab") as engine:
            engine.write(b"%d" % number * (2 * LIMIT))
        assert rotate(log, LIMIT)
    firsts = [part(log, number).read_bytes()[-1:] for number in range(1, KEPT + 1)]
    assert firsts == [b"6", b"5", b"4", b"3", b"2"]
    assert not part(log, KEPT + 1).exists()


def test_a_small_log_and_a_missing_one_are_let_be(tmp_path: Path) -> None:
    """At the limit nothing is done, and a log that is not there yet is no error."""
    log = tmp_path / "engine.log"
    assert not rotate(log, LIMIT)
    log.write_bytes(b"x" * LIMIT)
    assert not rotate(log, LIMIT)
    assert parts(log) == [log]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_only_a_regular_file_of_its_own_is_touched(tmp_path: Path, kind: str) -> None:
    """A link's target, a FIFO and a folder are as they were."""
    log, target = tmp_path / "engine.log", tmp_path / "precious"
    target.write_bytes(b"x" * (LIMIT + 1))
    match kind:
        case "link":
            log.symlink_to(target)
        case "fifo":
            os.mkfifo(log)
        case _:
            log.mkdir()
    if kind == "fifo":
        assert not rotate(log, LIMIT)
    else:
        with pytest.raises(OSError, match=r"symbolic|directory"):
            rotate(log, LIMIT)
    assert target.stat().st_size == LIMIT + 1
    assert not part(log, 1).exists()


def test_a_rotation_that_was_cut_short_is_made_good(tmp_path: Path) -> None:
    """What a killed watchdog left half copied is thrown away: the log still has it all."""
    log = tmp_path / "engine.log"
    log.write_bytes(b"y" * (LIMIT + 1))
    (tmp_path / "engine.log.part").write_bytes(b"half")
    assert rotate(log, LIMIT)
    until(lambda: not (tmp_path / "engine.log.part").exists())
    assert part(log, 1).read_bytes() + log.read_bytes() == b"y" * (LIMIT + 1)


def test_a_failed_rotation_costs_no_older_part(tmp_path: Path) -> None:
    """FACT: what cannot be copied moves nothing: it is tried again every few seconds."""
    log = tmp_path / "engine.log"
    log.write_bytes(b"y" * (LIMIT + 1))
    (tmp_path / "engine.log.part").mkdir()
    part(log, 1).write_bytes(b"one")
    with pytest.raises(OSError, match="directory"):
        rotate(log, LIMIT)
    assert part(log, 1).read_bytes() == b"one"
    assert not part(log, 2).exists()
    assert log.stat().st_size == LIMIT + 1


@pytest.mark.parametrize("way", [rotate, put_aside])
def test_two_never_rotate_one_log_at_once(tmp_path: Path, way: Callable[[Path, int], bool]) -> None:
    """FACT: a start does not rotate what the daemon is copying: both would cut it off."""
    log = tmp_path / "engine.log"
    log.write_bytes(b"y" * (LIMIT + 1))
    with log.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not way(log, LIMIT)
        assert parts(log) == [log]
        assert log.stat().st_size == LIMIT + 1
    assert way(log, LIMIT)


@pytest.mark.parametrize("way", [rotate, put_aside])
def test_a_log_with_another_name_is_let_be(
    tmp_path: Path, way: Callable[[Path, int], bool]
) -> None:
    """FACT: a hard link makes the file somebody else's too: it is not touched."""
    log, other = tmp_path / "engine.log", tmp_path / "precious"
    other.write_bytes(b"x" * (LIMIT + 1))
    log.hardlink_to(other)
    assert not way(log, LIMIT)
    assert other.stat().st_size == log.stat().st_size == LIMIT + 1


def test_a_log_that_nobody_writes_to_is_renamed(tmp_path: Path) -> None:
    """FACT: before a start nothing is copied: the file itself is LOG.1, and the parts move on."""
    log = tmp_path / "engine.log"
    log.write_bytes(b"y" * (LIMIT + 1))
    part(log, 1).write_bytes(b"one")
    inode = log.stat().st_ino
    assert put_aside(log, LIMIT)
    assert part(log, 1).stat().st_ino == inode
    assert part(log, 2).read_bytes() == b"one"
    assert not log.exists()
    assert not put_aside(log, LIMIT)
