"""A sweep removes what nobody holds and nothing else. Real files and processes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.simulated import ROOT, until
from watchdog.supervisor import holders, sockets, tempdirs
from watchdog.supervisor.holders import Holders
from watchdog.supervisor.leftovers import Sweeper, Swept

RING = "psm_00c0ffee"
LEFT = (
    RING,
    "sem.mp-ab_0zq12",
    "vllm_offload_0a1b.mmap",
    "vllm_ec_7.mmap",
    "vllm_engram_x",
    "nccl-aB3xYz",
)
NOT_VLLMS = (
    "psm_00C0FFEE",
    "psm_00c0ffee0",
    "my_psm_00c0ffee",
    "sem.loky-1-ab",
    "sem.mine",
    "torch_1_2_3",
    "cuda.shm.0.1",
    "nccl-notes.txt",
    "vllm_offload_a.mmap.bak",
)


def look(deadline: float) -> Holders:
    """As the real one does, on a machine where everybody can be seen: here pid 1 may not be."""
    found = holders.look(deadline)
    if "cannot be looked at" in found.unseen:
        found.unseen = ""
    return found


@dataclass
class Shelf:
    """A folder as /dev/shm is one, and one for sockets."""

    shm: Path
    tmp: Path
    ended: list[str] = field(default_factory=list)
    looks: int = 0
    sweeper: Sweeper = field(init=False)

    def __post_init__(self) -> None:
        self.shm.mkdir()
        self.tmp.mkdir()
        self.sweeper = Sweeper(lambda: self.ended, self.shm, self._look, min_age=-1.0)

    def _look(self, deadline: float) -> Holders:
        self.looks += 1
        return look(deadline)

    def put(self, *names: str) -> list[str]:
        """Files that somebody left; their paths."""
        for name in names:
            (self.shm / name).write_bytes(b"x" * 5000)
        return [str(self.shm / name) for name in names]

    def socket(self, name: str = "") -> Path:
        """A socket that nobody is bound to any more."""
        path = self.tmp / (name or str(uuid.uuid4()))
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
        return path

    def sweep(self, *, dry_run: bool = False, quick: bool = False) -> Swept:
        """Sweep both; again when the look could not see somebody who is no matter of the test."""

        def swept() -> Swept:
            return self.sweeper.sweep([str(self.tmp)], dry_run=dry_run, quick=quick)

        found = swept()
        if found.why and self.sweeper.look == self._look:
            found = until(lambda: None if (again := swept()).why else again) or found
        return found


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    """Folders with short paths, gone afterwards."""
    del tmp_path  # too long for sockets
    with tempfile.TemporaryDirectory(prefix="lo") as folder:
        yield Shelf(Path(folder) / "shm", Path(folder) / "tmp")


@contextlib.contextmanager
def holding(path: Path, how: str) -> Iterator[None]:
    """Another process that holds the file in one way only."""
    text = (
        "import mmap, os, sys, time\n"
        f"fd = os.open({str(path)!r}, os.O_RDWR)\n"
        f"m = mmap.mmap(fd, 4096) if {how!r} == 'mapped' else None\n"
        f"if {how!r} == 'mapped': os.closerange(3, 100)\n"  # the mapping has one of its own
        "print('x', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-ISc", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"x"
            yield
        finally:
            process.kill()


def test_what_vllm_leaves_is_removed(shelf: Shelf) -> None:
    """FACT: all names that vLLM, NCCL and Python's shared memory leave, and what went is told."""
    paths = shelf.put(*LEFT)
    swept = shelf.sweep()
    assert sorted(swept.removed) == sorted(paths)
    assert (swept.kept, swept.why) == ((), "")
    assert not list(shelf.shm.iterdir())
    assert swept.lines()[0].startswith("swept 6 leftovers: ")


def test_other_names_are_never_touched(shelf: Shelf) -> None:
    """FACT: what is not exactly named as vLLM names it is not even looked for in /proc."""
    shelf.put(*NOT_VLLMS)
    (shelf.shm / "psm_0000000d").mkdir()
    assert shelf.sweep() == Swept()
    assert len(list(shelf.shm.iterdir())) == len(NOT_VLLMS) + 1
    assert shelf.looks == 0


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_what_a_process_holds_is_kept(shelf: Shelf, how: str) -> None:
    """FACT: an open file or a mapping keeps it; when its holder has ended it goes."""
    (path,) = shelf.put(RING)
    with holding(Path(path), how):
        assert shelf.sweep() == Swept((), ((path, "a process uses it"),))
        assert Path(path).exists()
    # Held is also what has the inode number of a file that somebody has open elsewhere.
    until(lambda: shelf.sweep().removed == (path,))


def test_what_is_young_is_kept(shelf: Shelf) -> None:
    """FACT: a file of this minute may be on its way to its first user."""
    (path,) = shelf.put(RING)
    shelf.sweeper.min_age = 60.0
    assert shelf.sweep() == Swept()
    assert Path(path).exists()
    assert shelf.looks == 0


def test_what_is_younger_than_the_engine_is_kept(shelf: Shelf) -> None:
    """FACT: with an engine that lives nothing goes that was made since its start."""
    (path,) = shelf.put(RING)
    assert shelf.sweeper.sweep(before=time.time() - 30) == Swept()
    assert shelf.sweeper.sweep(before=time.time() + 30).removed == (path,)


def test_a_link_is_not_followed(shelf: Shelf, tmp_path: Path) -> None:
    """FACT: neither a link nor what it points to is removed, and no file with a second name is."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.write_text("x")
    other.write_text("x")
    (shelf.shm / RING).symlink_to(mine)
    (shelf.shm / "nccl-aB3xYz").hardlink_to(other)
    assert shelf.sweep() == Swept()
    assert mine.exists()
    assert (shelf.shm / RING).is_symlink()
    assert (shelf.shm / "nccl-aB3xYz").exists()


@pytest.mark.root
def test_another_users_file_is_kept(shelf: Shelf) -> None:
    """FACT: only files of our own user go, although root could remove them all."""
    (path,) = shelf.put(RING)
    os.chown(path, 65534, 65534)
    assert shelf.sweep() == Swept()
    assert Path(path).exists()


def test_a_file_that_changed_meanwhile_is_kept(shelf: Shelf) -> None:
    """FACT: somebody made it anew between the look and the removal: it is another file now."""
    (path,) = shelf.put(RING)

    def anew(deadline: float) -> Holders:
        found = look(deadline)
        fresh = Path(f"{path}.new")
        fresh.write_text("new")
        fresh.rename(path)
        return found

    shelf.sweeper.look = anew
    assert shelf.sweep().kept == ((path, "it has changed"),)
    assert Path(path).read_text() == "new"


def unseen(deadline: float) -> Holders:
    """Somebody could not be looked at."""
    found = look(deadline)
    found.unseen = "process 7 (x) cannot be looked at"
    return found


def in_a_hurry(_: float) -> Holders:
    """There is no time at all."""
    return holders.look(time.monotonic() - 1)


@pytest.mark.parametrize("eyes", [unseen, in_a_hurry])
def test_who_cannot_be_seen_may_hold_everything(
    shelf: Shelf, eyes: Callable[[float], Holders]
) -> None:
    """FACT: nothing in shared memory and no socket goes, and it is said why, once."""
    (path,) = shelf.put(RING)
    left = shelf.socket()
    shelf.sweeper.look = eyes
    swept = shelf.sweep(quick=True)
    assert swept.removed == ()
    assert {one for one, _ in swept.kept} == {path, str(left)}
    assert swept.why
    assert swept.why in swept.lines()[0]
    assert shelf.sweep(quick=True) == Swept()


def test_what_is_held_costs_one_look(shelf: Shelf) -> None:
    """FACT: a start after the other does not read all of /proc for the same held file again."""
    (path,) = shelf.put(RING)
    with holding(Path(path), "open"):
        assert shelf.sweep(quick=True).kept
        assert shelf.sweep(quick=True) == Swept()
        assert shelf.looks == 1
        assert shelf.sweep().kept
        assert shelf.looks == 2


def test_a_dry_run_removes_nothing(shelf: Shelf) -> None:
    """FACT: it says what would go."""
    paths = shelf.put(*LEFT)
    folder = _private()
    shelf.ended.append(str(folder))
    try:
        swept = shelf.sweep(dry_run=True)
        assert sorted(swept.removed) == sorted([*paths, str(folder)])
        assert folder.is_dir()
        assert len(list(shelf.shm.iterdir())) == len(LEFT)
    finally:
        tempdirs.remove(folder)


def test_a_dead_socket_goes_and_a_bound_one_stays(shelf: Shelf) -> None:
    """FACT: of the sockets named by a UUID those that nobody is bound to, listening or not yet."""
    dead, other = shelf.socket(), shelf.socket("mine.sock")
    with socket.socket(socket.AF_UNIX) as bound, socket.socket(socket.AF_UNIX) as listening:
        paths = [shelf.tmp / str(uuid.uuid4()) for _ in range(2)]
        bound.bind(str(paths[0]))
        listening.bind(str(paths[1]))
        listening.listen()
        swept = shelf.sweep()
    assert swept.removed == (str(dead),)
    assert sorted(swept.kept) == sorted((str(path), "somebody is bound to it") for path in paths)
    assert other.exists()


def test_a_start_is_thorough_once_an_hour(shelf: Shelf) -> None:
    """FACT: a crowded /tmp is not read at every start; a sweep that is asked for reads it."""
    first = shelf.socket()
    assert shelf.sweep(quick=True).removed == (str(first),)
    folder, second = _private(), shelf.socket()
    shelf.ended.append(str(folder))
    assert shelf.sweep(quick=True) == Swept()
    assert shelf.sweep().removed == (str(folder), str(second))


def _private() -> Path:
    folder = tempdirs.make()
    (folder / "vllm_dist_1").write_text("x")
    return folder


def test_the_directory_of_an_ended_start_goes(shelf: Shelf) -> None:
    """FACT: what is recorded as ended and was left goes; what does not look as ours stays."""
    folder, mine = _private(), shelf.tmp / "vw-mine"
    mine.mkdir()
    link = shelf.tmp / "vw-0123456789ab"
    link.symlink_to(mine)
    shelf.ended += [str(folder), str(mine), str(link), "/", "", "vw-0123456789ab", "\0"]
    assert shelf.sweep() == Swept((str(folder),))
    assert not folder.exists()
    assert link.is_symlink()
    assert mine.is_dir()


def test_a_directory_that_somebody_is_in_stays(shelf: Shelf) -> None:
    """FACT: a process works in it, so it is not removed, whatever is recorded."""
    folder = _private()
    shelf.ended.append(str(folder))
    with subprocess.Popen(["sleep", "600"], cwd=folder) as process:
        try:
            assert shelf.sweep().kept == ((str(folder), "a process uses it"),)
        finally:
            process.kill()
    assert shelf.sweep().removed == (str(folder),)


def swept_by(shm: Path, first: str, *wrapper: str) -> str:
    """Why another process, which does ``first``, sweeps nothing there; "" when it does."""
    text = (
        "import os, sys; from pathlib import Path\n"
        "from watchdog.supervisor.leftovers import Sweeper\n"
        f"{first}\n"
        "swept = Sweeper(shm=Path(sys.argv[1]), min_age=-1.0).sweep()\n"
        "print('' if swept.removed else swept.why)"
    )
    command = [*wrapper, sys.executable, "-c", text, str(shm)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.root
def test_in_another_pid_namespace_nothing_shared_goes(shelf: Shelf) -> None:
    """FACT: a sweep in a container, which cannot see who else holds it, leaves shared memory be."""
    (path,) = shelf.put(RING)
    why = swept_by(shelf.shm, "pass", "unshare", "--pid", "--fork", "--mount-proc")
    assert why == "processes of other PID namespaces are not visible from here"
    assert Path(path).exists()


@pytest.mark.root
def test_an_ordinary_user_sweeps_only_its_own_directories(shelf: Shelf) -> None:
    """FACT: who may not look at root's processes removes nothing that they might hold."""
    (path,) = shelf.put(RING)
    os.chown(path, 65534, 65534)
    for folder in (shelf.shm, shelf.shm.parent):
        folder.chmod(0o777)
    assert swept_by(shelf.shm, "os.setuid(65534)").endswith("cannot be looked at")
    assert Path(path).exists()


@pytest.fixture
def served() -> Iterator[Path]:
    """The path of a socket that an engine served on and left behind."""
    with tempfile.TemporaryDirectory(prefix="uds") as folder:
        path = Path(folder) / "s"
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
        yield path


def test_the_socket_of_an_ended_start_goes(served: Path) -> None:
    """FACT: made since that start began, of our user, and nobody is bound to it."""
    assert sockets.remove_stale(str(served), time.time() - 30)
    assert not served.exists()


def test_a_socket_that_may_be_somebody_elses_stays(served: Path) -> None:
    """FACT: it was there before our start, or it is bound again, or it is no socket at all."""
    assert not sockets.remove_stale(str(served), time.time() + 30)
    served.unlink()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(served))
        assert not sockets.remove_stale(str(served), time.time() - 30)
    served.unlink()
    served.write_text("x")
    assert not sockets.remove_stale(str(served), time.time() - 30)
    assert served.exists()
    assert not sockets.remove_stale(str(served) + "no", time.time() - 30)
    assert not sockets.remove_stale("relative", 0.0)


def test_a_look_sees_a_file_under_any_mount(tmp_path: Path) -> None:
    """FACT: open files and mappings are found by name and inode, of this process too."""
    path = tmp_path / "held"
    path.write_bytes(b"x" * 4096)
    with path.open("rb"):
        found = until(lambda: look(time.monotonic() + 10))
    assert "held" in found.names
    assert found.below(str(tmp_path))
    assert not look(time.monotonic() + 10).below(str(tmp_path))
