"""The probe of open files and tasks on real descriptors, real cgroups, and a /proc that hides."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.files import PROBE, Files, Settings, open_files, open_limit
from tests.support.engines import Engines, Target
from tests.support.simulated import ROOT, until
from watchdog import procfs
from watchdog.contracts import Endpoint, EngineLook, ProbeError, ProcessInfo
from watchdog.core.model import Sampled, Value

PIDS = Path("/sys/fs/cgroup/pids")
GREEDY = """
import os, sys
held = []
try:
    while len(held) < int(sys.argv[1]):
        held.append(os.open('/dev/null', os.O_RDONLY))
except OSError as error:
    print(error.errno, flush=True)
print('done', flush=True)
sys.stdin.read()
"""
HIDDEN = """
import ctypes, json, os, subprocess, sys, time
from probes.files import Files, open_files
from tests.support.engines import Engines, Target
from watchdog import procfs
from watchdog.contracts import Endpoint
place, pid = sys.argv[1], int(sys.argv[2])
info = procfs.stat(pid)
subprocess.run(['mount', '-t', 'proc', '-o', 'hidepid=2', 'proc', place], check=True)
box = Engines((Target(Endpoint('127.0.0.1', 1), living=(info,)),))
probe = Files(box, place)
look = lambda: {one.sample: one.value for one in probe.read(time.monotonic() + 5)}
before = look()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: our own entry is ours again
print(json.dumps([before, look(), open_files(f'/proc/{pid}/fdinfo')]))
"""


@contextlib.contextmanager
def greedy(limit: int, most: int = 1 << 20) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened what it may open, or ``most`` files more than at its start."""
    argv = ["prlimit", f"--nofile={limit}:{limit}", sys.executable, "-c", GREEDY, str(most)]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        try:
            until(lambda: process.stdout is not None and process.stdout.readline() == "done\n")
            yield process
        finally:
            process.kill()


def seen(pid: int) -> ProcessInfo:
    """The process as the supervisor would show it."""
    info = procfs.stat(pid)
    assert info is not None
    return info


def engine(*living: ProcessInfo, leader: int | None = None) -> Engines:
    """A box with one engine of these processes."""
    look = EngineLook(leader=leader)
    return Engines((Target(Endpoint("127.0.0.1", 1), now=look, living=living),))


def read(probe: Files) -> dict[str, Value]:
    """One reading, whoever a sample is about."""
    told = [one for one in probe.read(time.monotonic() + 5) if isinstance(one, Sampled)]
    return {one.sample: one.value for one in told}


@contextlib.contextmanager
def cgroup(*limits: int) -> Iterator[tuple[Path, ...]]:
    """Cgroups, one in the other, with so many tasks each; removed when they are empty."""
    place = PIDS / f"files-probe-{os.getpid()}-{time.monotonic_ns()}"
    places = []
    try:
        for limit in limits:
            place.mkdir()
            places.append(place)
            (place / "pids.max").write_text(str(limit))
            place /= "below"
        yield tuple(places)
    finally:
        for one in reversed(places):
            until(lambda one=one: not (one / "cgroup.procs").read_text())  # type: ignore[misc]
            one.rmdir()


@contextlib.contextmanager
def sleepers(count: int, place: Path) -> Iterator[list[int]]:
    """So many processes in a cgroup."""
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(["sleep", "600"]))
            stack.callback(process.kill)
            (place / "cgroup.procs").write_text(str(process.pid))
            pids.append(process.pid)
        yield pids


def test_a_process_that_has_opened_all_it_may() -> None:
    """FACT: a process at its own limit is found full, beside one that is not, by name and pid."""
    with greedy(40) as full, greedy(400, most=10) as other:
        told = read(Files(engine(seen(other.pid), seen(full.pid))))
        assert (told["engine_open"], told["engine_limit"]) == (40, 40)
        assert told["engine_used_percent"] == 100.0
        assert told["engine_fullest_pid"] == full.pid
        assert told["engine_fullest"] == f"{seen(full.pid).comm} (pid {full.pid})"


def test_the_fullest_is_the_nearest_to_its_own_limit() -> None:
    """FACT: fewer files of a lower limit are nearer to the end than many of a high one."""
    with greedy(40, most=20) as near, greedy(4000, most=100) as far:
        told = read(Files(engine(seen(far.pid), seen(near.pid))))
        assert told["engine_fullest_pid"] == near.pid


def test_an_older_kernel_is_counted_by_name_and_not_without_end() -> None:
    """FACT: a directory whose size the kernel does not tell is counted, up to a bound.

    ``fdinfo`` has the names of ``fd`` and no size on any kernel.
    """
    with greedy(50) as process:
        folder = f"/proc/{process.pid}/fdinfo"
        assert os.stat(folder).st_size == 0  # noqa: PTH116 - what the probe asks
        assert open_files(folder) == open_files(f"/proc/{process.pid}/fd") == 50
        assert open_files(folder, most=50) == 50
        assert open_files(folder, most=49) is None


def test_the_box_and_ourselves() -> None:
    """FACT: what the kernel says of the box, and of us as many as we have open."""
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
    try:
        more = read(Files(Engines(())))
    finally:
        for one in held:
            os.close(one)
    less = read(Files(Engines(())))
    assert int(more["own_open"]) - int(less["own_open"]) == 100
    assert less["own_limit"] == open_limit(os.getpid())
    assert less["limit"] == int(Path("/proc/sys/fs/file-nr").read_text().split()[2])
    assert int(less["open"]) > int(less["own_open"])


def test_a_cgroup_of_few_tasks_binds_before_the_kernel() -> None:
    """FACT: the tasks of the engine's cgroup are counted against its own limit."""
    with cgroup(10) as (place,), sleepers(8, place) as pids:
        told = read(Files(engine(leader=pids[0])))
        assert (told["tasks"], told["tasks_limit"]) == (8, 10)
        assert told["tasks_percent"] == 80.0
        assert told["tasks_limited_by"] == f"the cgroup {place}"


def test_a_limit_above_the_own_cgroup_binds_too() -> None:
    """FACT: the fullest of all cgroups above counts, whatever the engine's own one allows."""
    with cgroup(5, 1000) as (above, below), sleepers(5, below) as pids:
        told = read(Files(engine(leader=pids[0])))
        assert (told["tasks"], told["tasks_limit"]) == (5, 5)
        assert told["tasks_limited_by"] == f"the cgroup {above}"


def test_without_a_cgroup_the_kernel_binds() -> None:
    """FACT: all tasks of the machine are counted against the lowest of the kernel's limits."""
    told = read(Files(Engines(())))
    names = ("pid_max", "threads-max")
    limits = {name: int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in names}
    lowest = min(limits, key=lambda name: limits[name])
    assert told["tasks_limited_by"] == f"kernel.{lowest}"
    assert told["tasks_limit"] == limits[lowest]
    assert int(told["tasks"]) >= len(procfs.scan())


def test_hidden_pids_are_absent_and_never_zero() -> None:
    """FACT: who may not see an engine's process says nothing of it, and tells the rest."""
    place = Path(tempfile.mkdtemp(prefix="files-probe-"))
    place.chmod(0o755)
    with greedy(40) as hidden:
        argv = ["unshare", "--mount", sys.executable, "-c", HIDDEN, str(place), str(hidden.pid)]
        done = subprocess.run(
            argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=30
        )
    place.rmdir()
    assert done.returncode == 0, done.stderr
    as_root, told, unread = json.loads(done.stdout)
    assert as_root["engine_open"] == 40
    assert not [name for name in told if name.startswith("engine_")]
    assert unread is None
    assert told["own_open"] > 0
    assert told["open"] > 0


def test_the_dead_and_the_gone_are_passed_over() -> None:
    """FACT: a zombie and a pid that nobody has hide no other process, and are not said to be 0."""
    gone = ProcessInfo(1 << 22, 1, 1, 1, "S", "gone", 0.0, 0)
    with greedy(40) as process, greedy(40) as dead:
        dead.kill()
        until(lambda: seen(dead.pid).state == "Z")
        told = read(Files(engine(gone, seen(dead.pid), seen(process.pid))))
        assert told["engine_fullest_pid"] == process.pid
        nobody = read(Files(engine(gone, seen(dead.pid))))
        assert not [name for name in nobody if name.startswith("engine_")]


@pytest.mark.parametrize("limit", ["unlimited", "", "junk"])
def test_a_process_without_a_limit_is_near_to_none(tmp_path: Path, limit: str) -> None:
    """FACT: where no limit is to be read, no share of it is told."""
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "limits").write_text(f"Max open files            {limit}            files\n")
    (tmp_path / "loadavg").write_text("0.1 0.1 0.1 2/300 99\n")
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/pid_max").write_text("400\n")
    info = ProcessInfo(7, 1, 1, 1, "S", "x", 0.0, 0)
    told = read(Files(engine(info), str(tmp_path)))
    assert set(told) == {"tasks", "tasks_limit", "tasks_percent", "tasks_limited_by"}
    assert told["tasks_percent"] == 75.0


def test_nothing_to_read_is_told(tmp_path: Path) -> None:
    """FACT: without a procfs the probe fails in one line, and says nothing of the box."""
    with pytest.raises(ProbeError, match="cannot read any limit of files and tasks") as caught:
        read(Files(engine(), str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_every_sample_is_declared() -> None:
    """FACT: what is read is what is declared, for a rule and for the metrics."""
    with greedy(40) as process:
        probe = PROBE.build(Settings(), engine(seen(process.pid), leader=process.pid))
        told = {one.sample for one in probe.read(time.monotonic() + 5) if isinstance(one, Sampled)}
    assert told == {spec.name for spec in PROBE.samples}
