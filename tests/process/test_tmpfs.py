"""The probe of file systems in memory, on real ones that are small, and what it leads to."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probes.tmpfs import PROBE, Settings, Tmpfs
from tests.support.core import Story, serving
from tests.support.engines import Engines, Target
from tests.support.mounts import silent, tmpfs
from tests.support.rule_stories import fires
from watchdog import procfs
from watchdog.contracts import Endpoint, EngineLook, ProbeError
from watchdog.core.model import HOST, Finding, ProcessState, Reading, Sampled, Value

Found = dict[str, Value]
TWO_WORKERS = ("vllm", "serve", "/m", "--tensor-parallel-size", "2")


def engine(temporary: Path, *command: str, leader: int | None = None, name: str = "main") -> Target:
    """An engine whose temporary files are there."""
    look = EngineLook(generation="g1", state=ProcessState.RUNNING, leader=leader)
    around = {"TMPDIR": str(temporary), "HOME": "/nowhere"}
    target = Target(
        Endpoint("127.0.0.1", 1), name, look, command=command or ("vllm", "serve", "/m")
    )
    target.environment = around
    return target


def read(probe: Tmpfs) -> Found:
    """Samples by name, those of a mount as ``name MOUNT``."""
    found: Found = {}
    for one in probe.read(time.monotonic() + 20):
        assert isinstance(one, Sampled)
        assert one.subject == HOST
        found[" ".join((one.sample, *(value for _, value in one.labels)))] = one.value
    return found


def findings(found: Found) -> tuple[Finding, ...]:
    """What the default rules find at once."""
    story = told(found, 1)
    assert story.last is not None
    return tuple(story.last.findings)


def fired(found: Found, rule: str, times: int = 1) -> bool:
    """Whether the default rule fires when this is read as often as that, ten seconds apart."""
    return fires(told(found, times), rule)


def told(found: Found, times: int) -> Story:
    """An engine that serves, and this read as often as that."""
    story = serving()
    samples = tuple(Sampled(HOST, *pair) for pair in found.items() if " " not in pair[0])
    for number in range(times):
        story.read(Reading("tmpfs", 10.0 + 10.0 * number, 0.0, samples))
    return story


def crowd(folder: Path, count: int) -> None:
    """Empty files."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / str(number)).touch()


def test_few_inodes_are_told_with_bytes_free(tmp_path: Path) -> None:
    """FACT (S3): at 85 percent of the inodes it is told, with the directory that has them."""
    with tmpfs(tmp_path / "x", "size=64m,nr_inodes=1000") as point:
        crowd(point / "litter", 848)
        found = read(Tmpfs(Engines((engine(point),))))
    assert found["inodes_percent"] == pytest.approx(85.0)
    assert (found["inodes_mount"], found["inodes_free"]) == (str(point), 150)
    assert found["inodes_eater"] == f"{point}/litter (848 entries)"
    assert (found[f"inodes_used {point}"], found[f"inodes {point}"]) == (850, 1000)
    assert found[f"bytes_used {point}"] == 0
    assert found[f"size_bytes {point}"] == 64 << 20
    assert fired(found, "tmpfs-inodes-filling", 2)
    assert not fired(found, "tmpfs-inodes-full", 2)
    assert not fired(found, "tmpfs-filling", 2)


def test_no_inodes_are_told_with_bytes_free(tmp_path: Path) -> None:
    """FACT (S3): at 100 percent no file can be made although every byte is free."""
    with tmpfs(tmp_path / "x", "size=64m,nr_inodes=1000") as point:
        crowd(point, 999)
        with pytest.raises(OSError, match="No space left") as failed:
            (point / "one").touch()
        assert failed.value.errno == errno.ENOSPC
        found = read(Tmpfs(Engines((engine(point),))))
    assert (found["inodes_percent"], found["inodes_free"]) == (100.0, 0)
    assert found["inodes_eater"] == f"{point} (999 entries)"
    assert found["full_in_seconds"] == 0.0
    assert found["outlook"] == f"inodes of {point}: full"
    assert fired(found, "tmpfs-inodes-full")
    assert not fired(found, "tmpfs-full")


@pytest.mark.parametrize("name", ["x", "a b", "a$(touch PWNED);touch PWNED2 'x", "a\rb"])
def test_what_is_to_be_typed_can_be_typed(tmp_path: Path, name: str) -> None:
    """FACT (S3): the command of the finding gives twice the inodes, whatever the mount is called.

    Never fewer than there are, and a name with signs of the shell runs nothing.
    """
    with tmpfs(tmp_path / name, "size=64m,nr_inodes=50") as point:
        crowd(point, 49)
        probe = Tmpfs(Engines((engine(point),)))
        (fix,) = [one.fix for one in findings(read(probe)) if one.rule == "tmpfs-inodes-full"]
        assert fix.rpartition(": ")[2].startswith("mount -o remount,nr_inodes=100 ")
        typed = ["sh", "-c", fix.partition(" restart: ")[2]]
        subprocess.run(typed, check=True, cwd=tmp_path)
        assert os.statvfs(point).f_files == 100
    assert not list(tmp_path.glob("PWNED*"))


def test_hard_links_cost_inodes(tmp_path: Path) -> None:
    """FACT (S3): one file with a hundred names has a hundred inodes of a tmpfs, and is told so."""
    with tmpfs(tmp_path / "x", "nr_inodes=150") as point:
        (point / "0").touch()
        for number in range(1, 100):
            (point / str(number)).hardlink_to(point / "0")
        found = read(Tmpfs(Engines((engine(point),))))
    assert found[f"inodes_used {point}"] == 101
    assert found["inodes_eater"] == f"{point} (100 entries)"


def test_without_limits_there_is_nothing_to_tell(tmp_path: Path) -> None:
    """FACT (S3): f_files = 0 and no size are absent, neither 0 nor full."""
    with tmpfs(tmp_path / "x", "size=0,nr_inodes=0") as point:
        found = read(Tmpfs(Engines((engine(point),))))
    assert not [name for name in found if name.endswith(str(point))]
    assert found["inodes_mount"] == found["mount"] == "/dev/shm"
    assert "full_in_seconds" not in found


def test_a_full_one_with_files_that_have_no_name(tmp_path: Path) -> None:
    """FACT (S4): a full one is told, with what its engine holds there that no list shows."""
    with tmpfs(tmp_path / "x", "size=4m,nr_inodes=1000") as point:
        target = engine(point)
        itself = procfs.stat(os.getpid())
        assert itself is not None
        target.living = (itself,)
        with (point / "buffer").open("wb", buffering=0) as file:
            (point / "buffer").unlink()
            with contextlib.suppress(OSError):
                while file.write(b"x" * 65536):
                    pass
            found = read(Tmpfs(Engines((target,))))
    assert (found["percent"], found["mount"], found["free_bytes"]) == (100.0, str(point), 0)
    assert found["deleted_bytes"] == 4 << 20
    assert str(found["deleted"]).startswith(f"{point}/buffer, 4194304 bytes, held by ")
    assert "inodes_eater" not in found
    assert fired(found, "tmpfs-full")


def test_plenty_is_looked_at_no_further(tmp_path: Path) -> None:
    """FACT: nobody is looked for, and no rule fires, while most of it is free."""
    with tmpfs(tmp_path / "x", "size=4m,nr_inodes=1000") as point:
        crowd(point / "few", 100)
        found = read(Tmpfs(Engines((engine(point),))))
    assert found["outlook"] == ""
    assert not found.keys() & {"inodes_eater", "deleted", "deleted_bytes", "full_in_seconds"}
    assert not [rule for rule in ("tmpfs-filling", "tmpfs-inodes-filling") if fired(found, rule, 9)]


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_what_fills_says_when_it_is_full(tmp_path: Path, what: str) -> None:
    """FACT: at a steady pace the time that is left is told before it is over."""
    now = 0.0
    with tmpfs(tmp_path / "x", "size=40m,nr_inodes=1000") as point:
        probe = Tmpfs(Engines((engine(point),)), clock=lambda: now)
        found: Found = {}
        for number in range(20):
            if what == "bytes":
                (point / str(number)).write_bytes(b"x" * (1 << 20))
            else:
                crowd(point / str(number), 24)
            now += 10.0
            found = read(probe)
            assert ("full_in_seconds" in found) == (number >= 12)
        assert found["full_in_seconds"] == pytest.approx(
            200 if what == "bytes" else 199.6, rel=0.01
        )
        name = str(point) if what == "bytes" else f"inodes of {point}"
        assert found["outlook"] == f"{name}: full in 3 minutes"
        assert fired(found, "tmpfs-soon-full", 4)


@contextlib.contextmanager
def elsewhere(options: str, point: str = "/dev/shm") -> Iterator[int]:
    """The pid of a process in another mount namespace, with another tmpfs at that point."""
    script = f"mount -t tmpfs -o {options} tmpfs {point} && echo && exec sleep 300"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"\n":
                pytest.skip("this machine makes no mount namespaces")
            yield process.pid
        finally:
            process.kill()


def test_shared_memory_is_that_of_the_engine(tmp_path: Path) -> None:
    """FACT (S4): the 64 MB of its own /dev/shm are told before two workers die of them."""
    ours = os.statvfs("/dev/shm")
    with elsewhere("size=64m,nr_inodes=100") as pid:
        box = Engines((engine(tmp_path, *TWO_WORKERS, leader=pid), engine(tmp_path, name="other")))
        found = read(Tmpfs(box))
        crowd(Path("/proc", str(pid), "root", "dev/shm"), 80)
        later = read(Tmpfs(box))
    assert found["shm_bytes"] == 64 << 20
    assert found["shm_wanted_bytes"] == 400 << 20
    assert found["size_bytes /dev/shm of main"] == 64 << 20
    assert found["size_bytes /dev/shm"] == ours.f_blocks * ours.f_frsize
    assert fired(found, "shm-small")
    assert later["inodes_mount"] == "/dev/shm of main"
    assert later["inodes_eater"] == "/dev/shm (80 entries)"


def test_who_sees_our_shared_memory_is_not_told_twice(tmp_path: Path) -> None:
    """FACT: a leader in our mount namespace, and one that is gone, have our /dev/shm."""
    ours = os.statvfs("/dev/shm")
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    for leader in (os.getpid(), gone.pid):
        found = read(Tmpfs(Engines((engine(tmp_path, *TWO_WORKERS, leader=leader),))))
        assert found["shm_bytes"] == ours.f_blocks * ours.f_frsize
        assert [name for name in found if name.startswith("size_bytes")] == ["size_bytes /dev/shm"]


def test_a_leader_out_of_sight_has_unknown_shared_memory(tmp_path: Path) -> None:
    """FACT: whose mounts it sees cannot be told, so nothing is said of its /dev/shm."""
    (tmp_path / "self").symlink_to("/proc/self")
    (tmp_path / "4242").mkdir()
    (tmp_path / "4242/ns").touch()
    box = Engines((engine(tmp_path, *TWO_WORKERS, leader=4242),))
    found = read(Tmpfs(box, root=str(tmp_path)))
    assert "shm_bytes" not in found
    assert "size_bytes /dev/shm" in found


def test_an_engine_without_shared_memory_has_none(tmp_path: Path) -> None:
    """FACT (S4): where /dev/shm is missing, the size of what lies above it is not told for it."""
    with elsewhere("size=32m", "/dev") as pid:
        found = read(Tmpfs(Engines((engine(tmp_path, *TWO_WORKERS, leader=pid),))))
    assert found["size_bytes /dev of main"] == 32 << 20
    assert "shm_bytes" not in found


def test_one_worker_wants_no_shared_memory(tmp_path: Path) -> None:
    """FACT (S4): what is small is told only to those who need more."""
    with elsewhere("size=64m") as pid:
        found = read(Tmpfs(Engines((engine(tmp_path, leader=pid),))))
    assert (found["shm_bytes"], found["shm_wanted_bytes"]) == (64 << 20, 0)
    assert not fired(found, "shm-small")


def test_a_mount_that_hangs_hides_no_other(tmp_path: Path) -> None:
    """FACT: what another place is on does not keep a tmpfs from being told."""
    with tmpfs(tmp_path / "x", "nr_inodes=100") as point, silent(tmp_path / "hung"):
        target = engine(point)
        target.environment = {**target.environment, "VLLM_CACHE_ROOT": f"{tmp_path}/hung/vllm"}
        found = read(Tmpfs(Engines((target,))))
    assert found[f"inodes {point}"] == 100


def test_a_culprit_is_looked_for_once_a_minute(tmp_path: Path) -> None:
    """FACT: in between it is told as it was, and at once when another one is the fullest."""
    now = 0.0
    with (
        tmpfs(tmp_path / "x", "nr_inodes=1000") as point,
        tmpfs(tmp_path / "y", "nr_inodes=100") as other,
    ):
        probe = Tmpfs(Engines((engine(point), engine(other, name="other"))), clock=lambda: now)
        crowd(point / "a", 600)
        asked: Callable[[], Value] = lambda: read(probe)["inodes_eater"]  # noqa: E731 - asked often
        assert asked() == f"{point}/a (600 entries)"
        crowd(point / "a", 700)
        now = 59.0
        assert asked() == f"{point}/a (600 entries)"
        now = 61.0
        assert asked() == f"{point}/a (700 entries)"
        crowd(other, 90)
        assert asked() == f"{other} (90 entries)"


def test_no_mounts_to_read_is_an_error(tmp_path: Path) -> None:
    """FACT: a procfs that shows no mounts is trouble with everything, in one line."""
    with pytest.raises(ProbeError, match=r"^cannot read the mounts: No such file"):
        Tmpfs(Engines(()), root=str(tmp_path)).read(time.monotonic() + 5)


def test_without_an_engine_ours_is_looked_at() -> None:
    """FACT: shared memory is told before there is an engine."""
    probe = PROBE.build(Settings(), Engines(()))
    assert isinstance(probe, Tmpfs)
    found = read(probe)
    assert found["shm_wanted_bytes"] == 0
    assert "size_bytes /dev/shm" in found
    probe.close()
