"""The probe of disks, on real ones: small, read-only, gone, hung; and what it leads to."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from probes._mounts import Latency, mount_of, mounts
from probes.disk import PROBE, Disk, Settings
from tests.support.core import serving
from tests.support.engines import Engines, Target
from tests.support.mounts import disk, mounted, silent, tmpfs
from tests.support.rule_stories import fires
from tests.support.simulated import until
from watchdog.contracts import Endpoint, LogPlace, ProbeError
from watchdog.core.model import HOST, Reading, Sampled, Value

Found = dict[str, Value]


def engine(*command: str, log: Path | None = None, **around: Path) -> Target:
    """A vLLM with this environment, whose caches are in memory."""
    target = Target(Endpoint("127.0.0.1", 1), command=command or ("vllm", "serve", "/dev/shm/m"))
    usual = {"TMPDIR": "/dev/shm", "HOME": "/dev/shm", "XDG_CACHE_HOME": "/dev/shm"}
    target.environment = usual | {key: str(path) for key, path in around.items()}
    target.log = None if log is None else LogPlace("g1", str(log), 0)
    return target


def read(probe: Disk) -> Found:
    """Samples by name, those of a mount as ``name MOUNT``."""
    found: Found = {}
    for one in probe.read(time.monotonic() + 20):
        assert isinstance(one, Sampled)
        assert one.subject == HOST
        found[" ".join((one.sample, *(value for _, value in one.labels)))] = one.value
    return found


def fired(found: Found, rule: str, times: int = 1) -> bool:
    """Whether the default rule fires when this is read as often as that, half a minute apart."""
    story = serving()
    samples = tuple(Sampled(HOST, *pair) for pair in found.items() if " " not in pair[0])
    for number in range(times):
        story.read(Reading("disk", 30.0 + 30.0 * number, 0.0, samples))
    return fires(story, rule)


def fill(point: Path) -> None:
    """Write until there is not a byte left."""
    with (point / "full").open("wb", buffering=0) as file:
        for size in (65536, 1024):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
        os.fsync(file.fileno())


def test_a_full_state_directory_is_told(tmp_path: Path) -> None:
    """FACT (S5): where the state is kept not a byte is left, and the finding says which disk."""
    with disk(tmp_path / "state") as point:
        probe = Disk(Engines((engine(),), state_dir=str(point)))
        found = read(probe)
        assert found["mount"] == str(point)
        assert float(found["percent"]) < 10
        assert not fired(found, "disk-full", 9)
        fill(point)
        found = read(probe)
    assert (found["percent"], found["free_bytes"]) == (100.0, 0)
    assert (found[f"available_bytes {point}"], found["read_only"]) == (0, "")
    assert found["outlook"] == f"{point}: full"
    assert fired(found, "disk-full")


def test_a_disk_without_inodes_is_told(tmp_path: Path) -> None:
    """FACT (S5): a cache of small files uses up a disk with bytes free."""
    with disk(tmp_path / "cache", inodes=64) as point:
        probe = Disk(Engines((engine(VLLM_CACHE_ROOT=point / "vllm"),)))
        with contextlib.suppress(OSError):
            for number in range(200):
                (point / str(number)).touch()
        found = read(probe)
    assert (found["inodes_percent"], found["inodes_mount"]) == (100.0, str(point))
    assert found[f"inodes_free {point}"] == 0
    assert float(found["percent"]) < 50
    assert fired(found, "disk-inodes-full")
    assert not fired(found, "disk-full")


def test_a_read_only_place_is_told(tmp_path: Path) -> None:
    """FACT (S5): state, log and caches that cannot be written, and not the model."""
    with disk(tmp_path / "disk") as point:
        (point / "state").mkdir()
        target = engine(
            *("vllm", "serve", str(point / "model")),
            log=point / "log" / "main.log",
            VLLM_CACHE_ROOT=point / "cache",
            HF_HOME=point / "hub",
        )
        probe = Disk(Engines((target,), state_dir=str(point / "state")))
        assert read(probe)["read_only"] == ""
        subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)
        found = read(probe)
        assert found["read_only"] == "; ".join(
            f"{point}/{name} ({purpose}) is read-only"
            for name, purpose in (("state", "state"), ("log", "log"), ("cache", "compile cache"))
        )
        assert "percent" not in found  # what nobody can write to does not fill
        assert fired(found, "disk-read-only", 2)
        subprocess.run(["mount", "-o", "remount,rw", str(point)], check=True)
        assert read(probe)["read_only"] == ""


def test_a_bind_mount_may_be_read_only_alone(tmp_path: Path) -> None:
    """FACT (S5): the same disk is writable in one place and not in the other."""
    (tmp_path / "state").mkdir()
    with mounted(tmp_path / "view", "--bind", "-o", "ro", str(tmp_path)) as view:
        for where, said in ((view, " (state) is read-only"), (tmp_path, "")):
            found = read(Disk(Engines((engine(),), state_dir=str(where / "state"))))
            assert found["read_only"] == (f"{view}/state{said}" if said else "")


def test_a_state_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    """FACT (S5): somebody removed it, and the rest of the disk is told as ever."""
    (tmp_path / "state").mkdir()
    probe = Disk(Engines((engine(),), state_dir=str(tmp_path / "state")))
    assert read(probe)["read_only"] == ""
    (tmp_path / "state").rmdir()
    found = read(probe)
    assert found["read_only"] == f"{tmp_path}/state (state) is gone"
    assert "percent" in found
    assert fired(found, "disk-read-only", 2)


def test_a_state_directory_in_memory_is_looked_at_too(tmp_path: Path) -> None:
    """FACT (S5): its room is the matter of the probe ``tmpfs``, that it can be written is ours."""
    with tmpfs(tmp_path / "state", "size=1m,ro") as point:
        found = read(Disk(Engines((engine(),), state_dir=str(point))))
    assert found["read_only"] == f"{point} (state) is read-only"
    assert not [name for name in found if name.endswith(str(point))]


def test_a_disk_of_a_model_alone_may_be_full(tmp_path: Path) -> None:
    """FACT: nobody writes there, so it is shown and not judged."""
    with disk(tmp_path / "models") as point:
        fill(point)
        found = read(Disk(Engines((engine("vllm", "serve", str(point / "m")),))))
    assert found[f"available_bytes {point}"] == 0
    assert "percent" not in found
    assert found["outlook"] == ""


def waiting() -> int:
    """Threads that look at mounts now."""
    return sum(thread.name == "mounts" for thread in threading.enumerate())


def test_a_mount_that_hangs_is_told_and_hides_no_other(tmp_path: Path) -> None:
    """FACT: a model's mount that never answers costs one thread, and the other disks are told."""
    (tmp_path / "state").mkdir()
    with silent(tmp_path / "models") as fuse:
        target = engine("vllm", "serve", str(tmp_path / "models/m"), HF_HOME=tmp_path / "models/h")
        probe = Disk(Engines((target,), state_dir=str(tmp_path / "state")), patience=0.5)
        for _ in range(3):
            found = read(probe)
            assert found["hung"] == str(tmp_path / "models")
            assert found["read_only"] == ""
            assert "percent" in found
            assert waiting() == 1
            assert fired(found, "mount-hung", 2)
        fuse.end()
        until(lambda: read(probe)["hung"] == "")
    assert waiting() == 0


def test_a_link_to_a_hung_mount_is_told_by_its_own_name(tmp_path: Path) -> None:
    """FACT: its own mount answers and is not blamed."""
    with silent(tmp_path / "hung"):
        (tmp_path / "link").symlink_to(tmp_path / "hung")
        probe = Disk(Engines((engine(TRITON_CACHE_DIR=tmp_path / "link"),)), patience=0.5)
        assert read(probe)["hung"] == str(tmp_path / "link")
    until(lambda: waiting() == 0)


def test_it_returns_in_time_whatever_hangs(tmp_path: Path) -> None:
    """FACT: several that hang cost no more than the deadline, and one thread each."""
    with contextlib.ExitStack() as held:
        names = ("VLLM_CACHE_ROOT", "HF_HOME", "TRITON_CACHE_DIR")
        for name in names:
            held.enter_context(silent(tmp_path / name))
        target = engine(**{name: tmp_path / name for name in names})
        probe = Disk(Engines((target,)), patience=0.5)
        before = time.monotonic()
        list(probe.read(before + 1.0))
        assert time.monotonic() - before < 5
        hung = {str(tmp_path / name) for name in names}
        until(lambda: set(str(read(probe)["hung"]).split(", ")) == hung)
        assert waiting() == len(names)
    until(lambda: waiting() == 0)


def test_a_disk_that_fills_says_when_it_is_full(tmp_path: Path) -> None:
    """FACT: at a steady pace the time that is left is told before it is over."""
    now = 0.0
    with disk(tmp_path / "log", mebibytes=32) as point:
        target = engine(log=point / "main.log")
        probe = Disk(Engines((target,)), clock=lambda: now)
        found: Found = {}
        for number in range(24):
            with (point / str(number)).open("wb") as file:
                file.write(b"x" * (1 << 20))
                os.fsync(file.fileno())  # blocks are taken when they are written
            now += 30.0
            found = read(probe)
            assert ("full_in_seconds" in found) == (number >= 20)
        left = int(str(found["free_bytes"])) / (1 << 20) * 30
        assert found["full_in_seconds"] == pytest.approx(left, rel=0.05)
        assert str(found["outlook"]).startswith(f"{point}: full in ")
        assert fired(found, "disk-soon-full", 11)


def test_a_request_of_a_real_disk_takes_time(tmp_path: Path) -> None:
    """FACT: nothing at the first look, then the mean of what was written since."""
    with disk(tmp_path / "log") as point:
        probe = Disk(Engines((engine(log=point / "main.log"),)))
        assert "latency_seconds" not in read(probe)

        def written() -> Found:
            with (point / "file").open("wb") as file:
                file.write(os.urandom(65536))
                os.fsync(file.fileno())
            found = read(probe)
            return found if "latency_seconds" in found else {}

        found = until(written)
    assert found["slow_mount"] == str(point)
    assert found[f"request_seconds {point}"] == found["latency_seconds"]
    assert 0 <= float(found["latency_seconds"]) < 60


def test_the_slowest_disk_is_told(tmp_path: Path) -> None:
    """FACT: each disk has its own number, and the rule sees the worst."""
    (tmp_path / "proc").symlink_to("/proc")
    with disk(tmp_path / "a") as good, disk(tmp_path / "b") as bad:
        target = engine(VLLM_CACHE_ROOT=good, TRITON_CACHE_DIR=bad)
        now = 0.0
        probe = Disk(Engines((target,)), str(tmp_path), clock=lambda: now)
        found: Found = {}
        for done in (100, 200):
            counters(tmp_path, done, done, 0, str(good))
            counters(tmp_path, done, done * 900, 0, str(bad))
            found = read(probe)
            now += 30.0
    assert found[f"request_seconds {good}"] == pytest.approx(0.001)
    assert found["latency_seconds"] == pytest.approx(0.9)
    assert found["slow_mount"] == str(bad)
    assert fired(found, "disk-slow", 3)


def counters(root: Path, done: int, milliseconds: int, in_flight: int, point: str = "/") -> None:
    """What the kernel would show of the device that is mounted there."""
    mount = mount_of(point, mounts())
    assert mount is not None
    path = root / "sys/dev/block" / mount.numbers
    path.mkdir(parents=True, exist_ok=True)
    row = [done, 0, 0, milliseconds, 0, 0, 0, 0, in_flight, 0, 0]
    (path / "stat").write_text(" ".join(map(str, row)))


@pytest.mark.parametrize(
    ("done", "milliseconds", "in_flight", "took"),
    [
        (110, 5000 + 1234, 0, 0.1234),
        (100, 5000, 0, None),
        (100, 5000, 3, 30.0),
        (5, 20, 0, None),
    ],
    ids=["worked", "idle", "stands still", "another device of that number"],
)
def test_the_mean_of_a_request(
    tmp_path: Path, done: int, milliseconds: int, in_flight: int, took: float | None
) -> None:
    """FACT: waiting requests of which none ended took all the time; nothing asked is not 0."""
    mount = mount_of("/", mounts())
    assert mount is not None
    latency = Latency(str(tmp_path))
    assert latency.of(mount, 1.0) is None
    counters(tmp_path, 100, 5000, 2)
    assert latency.of(mount, 10.0) is None
    counters(tmp_path, done, milliseconds, in_flight)
    assert latency.of(mount, 40.0) == (None if took is None else pytest.approx(took))
    latency.keep([])
    assert latency.of(mount, 70.0) is None


def test_no_mounts_to_read_is_an_error(tmp_path: Path) -> None:
    """FACT: a procfs that shows no mounts is trouble with everything, in one line."""
    with pytest.raises(ProbeError, match=r"^cannot read the mounts: No such file"):
        Disk(Engines(()), root=str(tmp_path)).read(time.monotonic() + 5)


def test_without_a_state_directory_nothing_is_missed() -> None:
    """FACT: a watchdog that keeps its state in memory has none that could be gone."""
    probe = PROBE.build(Settings(), Engines((engine(),)))
    assert isinstance(probe, Disk)
    found = read(probe)
    assert (found["read_only"], found["hung"]) == ("", "")
    probe.close()
