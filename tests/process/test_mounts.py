"""Mounts as the kernel has them: those that end, that hide each other, and that never answer."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probes._mounts import Eater, Look, Looks, Search, Table, deleted, mount_of, mounts, space
from tests.support.mounts import silent, tmpfs
from tests.support.simulated import until
from watchdog import procfs
from watchdog.contracts import ProcessInfo


def itself() -> ProcessInfo:
    """This process."""
    found = procfs.stat(os.getpid())
    assert found is not None
    return found


def used(folder: Path) -> int:
    """Taken inodes."""
    info = os.statvfs(folder)
    return info.f_files - info.f_ffree


def eater(folder: Path, used: int) -> Eater | None:
    """What a whole search finds, which ends."""
    search = Search(str(folder))
    for _ in range(100):
        search.step(used)
        if search.done:
            return search.found
    pytest.fail("it never ended")


def looks(*paths: Path, point: Path | None = None) -> list[Look]:
    """Places, each a mount point of its own unless there is one."""
    return [Look(str(path), str(point or path)) for path in paths]


def waiting() -> int:
    """Threads that look at mounts now."""
    return sum(thread.name == "mounts" for thread in threading.enumerate())


def test_every_mount_is_read_as_it_is(tmp_path: Path) -> None:
    """FACT: name, kind, device and options are the kernel's, also with blanks in the name."""
    with tmpfs(tmp_path / "a b\\c", "size=1m,ro") as point:
        found = mount_of(str(point / "x"), mounts())
        assert found is not None
        assert (found.point, found.kind) == (str(point), "tmpfs")
        assert found.device == point.stat().st_dev
        assert "ro" in found.options
        assert found.numbers == f"0:{os.minor(found.device)}"


@pytest.mark.parametrize(
    "name", ["a\rb", "a\x0bb", "a\x1cb", "a\u2028b", "a\\b\n", "a\udcff", "x" * 255]
)
def test_a_name_of_any_kind_ends_no_line(tmp_path: Path, name: str) -> None:
    """FACT: whatever a mount is called, it is found by its name and not taken for its parent."""
    with tmpfs(tmp_path / name, "size=64k") as point:
        found = mount_of(str(point), mounts())
        assert found is not None
        assert (found.point, found.device) == (str(point), point.stat().st_dev)


@pytest.mark.parametrize("source", ["a\\zz", "a\\", "\\9"])
def test_a_source_of_any_kind_hides_no_mount(tmp_path: Path, source: str) -> None:
    """FACT: a file system that escapes nothing in the name of its source is read all the same."""
    (tmp_path / "self").mkdir()
    line = f"25 24 0:23 / /m rw,relatime - odd {source} rw\n"
    (tmp_path / "self/mountinfo").write_text(line)
    assert [(one.point, one.source) for one in mounts("self", str(tmp_path))] == [("/m", source)]


def test_the_last_mount_on_a_point_is_seen(tmp_path: Path) -> None:
    """FACT: what is mounted over another hides it."""
    with tmpfs(tmp_path / "x", "size=1m"), tmpfs(tmp_path / "x", "size=2m") as point:
        found = mount_of(f"{point}/below", mounts("self"))
        assert found is not None
        assert found.device == point.stat().st_dev
        assert mount_of(f"{tmp_path}/xy", mounts()) == mount_of(str(tmp_path), mounts())


def test_a_table_is_read_anew_when_it_changes(tmp_path: Path) -> None:
    """FACT: the same mounts are parsed once, a new one is seen at the next look."""
    table = Table()
    before = table()
    assert table() is before
    with tmpfs(tmp_path / "x", "size=1m") as point:
        found = mount_of(str(point), table())
        assert found is not None
        assert found.point == str(point)
    assert mount_of(str(point), table()) != found
    with pytest.raises(FileNotFoundError):
        table(0)


def test_no_limit_is_no_number(tmp_path: Path) -> None:
    """FACT (S3): nr_inodes=0 and size=0 are not full, they count nothing."""
    with tmpfs(tmp_path / "x", "size=0,nr_inodes=0") as point:
        found = space(str(point))
        assert found is not None
        assert (found.total_bytes, found.total_inodes) == (None, None)
        assert (found.percent, found.inodes_percent) == (None, None)


def test_a_place_that_is_not_there_is_its_parents(tmp_path: Path) -> None:
    """FACT: what will be made counts as what it is made on; what is no path is unknown."""
    with tmpfs(tmp_path / "x", "size=1m") as point:
        found = space(f"{point}/a/b")
        assert found is not None
        assert (found.folder, found.total_bytes) == (str(point), 1 << 20)
    assert space("\0") is None


def test_a_hung_mount_costs_one_thread_and_hides_nothing(tmp_path: Path) -> None:
    """FACT: the others are told, it is told as hung, and only one thread ever waits for it."""
    look = Looks(space, patience=0.5)
    with silent(tmp_path / "hung") as fuse:
        paths = looks(tmp_path / "hung", tmp_path)
        paths += looks(tmp_path / "hung/a", tmp_path / "hung/b", point=tmp_path / "hung")
        for _ in range(3):
            found = look(paths, time.monotonic() + 10)
            assert set(found.found) == {str(tmp_path)}
            assert found.hung == {str(tmp_path / name) for name in ("hung", "hung/a", "hung/b")}
            assert waiting() == 1
        fuse.end()
        until(lambda: not look(paths, time.monotonic() + 10).hung)
    assert waiting() == 0


def test_a_link_to_a_hung_mount_hides_only_itself(tmp_path: Path) -> None:
    """FACT: its own mount answers, so what lies beside it is looked at."""
    look = Looks(space, patience=0.5)
    (tmp_path / "good").mkdir()
    with silent(tmp_path / "hung"):
        (tmp_path / "link").symlink_to(tmp_path / "hung")
        wanted = looks(tmp_path / "link", tmp_path / "good", point=tmp_path)
        found = look(wanted, time.monotonic() + 10)
        assert found.hung == {str(tmp_path / "link")}
        assert set(found.found) == {str(tmp_path), str(tmp_path / "good")}
    until(lambda: waiting() == 0)


def test_without_time_nothing_is_blamed(tmp_path: Path) -> None:
    """FACT: what the deadline cut off is neither found nor hung, and is waited for once."""
    look = Looks(space, patience=30.0)
    with silent(tmp_path / "hung"):
        for _ in range(3):
            both = look(looks(tmp_path / "hung", tmp_path), time.monotonic() + 0.1)
            assert not both.hung
            assert waiting() == 1
        assert str(tmp_path) in look(looks(tmp_path), time.monotonic() + 10).found
        assert look(looks(tmp_path), time.monotonic() - 1).found == {}
    until(lambda: waiting() == 0)


def test_what_fails_is_not_known() -> None:
    """FACT: an error of one place is nobody else's, and not its health."""

    def picky(path: str) -> int | None:
        return 1 // len(path.removeprefix("/bad"))

    found = Looks(picky)(looks(Path("/bad"), Path("/good")), time.monotonic() + 10)
    assert (found.found, found.hung) == ({"/good": 0}, frozenset())


def crowd(folder: Path, count: int) -> None:
    """Empty files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / str(number)).touch()


def test_the_directory_that_eats_the_inodes_is_named(tmp_path: Path) -> None:
    """FACT (S3): with the exact number, wherever it is, and after files went again."""
    with tmpfs(tmp_path / "x", "nr_inodes=20000") as point:
        crowd(point / "a/b/c", 3000)
        crowd(point / "d", 100)
        for number in range(700):
            (point / f"a/d{number}").mkdir()
        found = eater(point, used(point))
        assert found is not None
        assert (found.path, found.entries) == (str(point / "a/b/c"), 3000)
        for number in range(2950):
            (point / f"a/b/c/{number}").unlink()
        (point / "d/99").rename(point / "99")
        found = eater(point, used(point))
        assert found is not None
        assert (found.path, found.entries) == (str(point / "a"), 701)


def test_the_top_itself_can_be_it(tmp_path: Path) -> None:
    """FACT: what lies directly in a mount is its own; an empty one has no eater."""
    with tmpfs(tmp_path / "x", "nr_inodes=20000") as point:
        assert eater(point, used(point)) is None
        crowd(point, 200)
        found = eater(point, used(point))
        assert found is not None
        assert (found.path, found.entries) == (str(point), 200)


def test_another_mount_is_not_counted(tmp_path: Path) -> None:
    """FACT: what is mounted below eats its own inodes."""
    with tmpfs(tmp_path / "x", "nr_inodes=2000") as point:
        crowd(point / "own", 12)
        crowd(point / "few", 9)
        with tmpfs(point / "other", "nr_inodes=2000") as other:
            crowd(other, 15)
            found = eater(point, used(point))
        assert found is not None
        assert found.path == str(point / "own")


def test_a_kernel_that_counts_in_another_way_is_not_believed(tmp_path: Path) -> None:
    """FACT: a size that does not fit what is listed names nobody (here that of a disk)."""
    crowd(tmp_path / "a", 3)
    assert eater(tmp_path, 1_000_000) is None
    assert eater(tmp_path / "missing", 5) is None


@contextlib.contextmanager
def mapped(path: Path, size: int) -> Iterator[None]:
    """The file in memory, with no descriptor of it, as Python's own ``mmap`` keeps one."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    both = mmap.PROT_READ | mmap.PROT_WRITE
    with path.open("r+b") as file:
        found = libc.mmap(None, ctypes.c_size_t(size), both, mmap.MAP_SHARED, file.fileno(), 0)
    assert found != ctypes.c_void_p(-1).value
    try:
        yield
    finally:
        libc.munmap(ctypes.c_void_p(found), ctypes.c_size_t(size))


@pytest.mark.parametrize("name", ["a\r-b", "a\nb", "\udcff", "0-0 (deleted)\r"])
def test_a_file_of_any_name_is_found(tmp_path: Path, name: str) -> None:
    """FACT: what an engine has called a file keeps nobody from telling that it is held."""
    with tmpfs(tmp_path / "x", "size=8m") as point:
        (point / name).write_bytes(b"x" * 4096)
        with mapped(point / name, 4096):
            (point / name).unlink()
            assert whole(point)()[0] == 4096


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_file_without_a_name_is_found(tmp_path: Path, how: str) -> None:
    """FACT (S3): unlinked and still open, or only mapped, it keeps its bytes, and is told once."""
    with tmpfs(tmp_path / "x", "size=8m") as point, contextlib.ExitStack() as held:
        look = whole(point)
        assert look() == (0, "")
        path = point / "gone"
        path.write_bytes(b"x" * (1 << 20))
        if how == "open":
            held.enter_context(path.open("rb"))
        held.enter_context(mapped(path, 1 << 20))
        path.with_name("other").hardlink_to(path)
        path.unlink()
        assert look() == (0, "")
        path.with_name("other").unlink()
        size, words = look()
        assert size == 1 << 20
        assert words == f"{path}, 1048576 bytes, held by {itself().comm} ({os.getpid()})"
        held.close()
        assert look() == (0, "")


def whole(point: Path) -> Callable[[], tuple[int, str]]:
    """What this process holds there."""

    def look() -> tuple[int, str]:
        found = deleted([itself()], [str(point)], frozenset({point.stat().st_dev}))
        assert found is not None
        return found.size, found.words

    return look


def test_who_cannot_be_seen_is_not_known(tmp_path: Path) -> None:
    """FACT: without a look at any process nobody says that nothing is held."""
    assert deleted([], [str(tmp_path)], frozenset({tmp_path.stat().st_dev})) is None
    hidden = deleted([itself()], ["/"], frozenset(), root=str(tmp_path))
    assert hidden is None
