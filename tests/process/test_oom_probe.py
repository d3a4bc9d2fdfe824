"""The OOM killer: real kills in real cgroups, counted and named, and who cannot be told of."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from probes.oom import PROBE, Oom, Settings, Surroundings
from tests.support.engines import Engines, Target, engines
from tests.support.memory_cgroups import (
    LIMIT,
    NOTHING,
    Found,
    Written,
    devour,
    greedy,
    kernel,
    limited,
    read,
)
from tests.support.simulated import ROOT
from tests.support.xids import packets
from watchdog import procfs
from watchdog.contracts import ProbeError, ProcessInfo

MIB = 1 << 20
ME = os.getpid()
UNREADABLE = "cannot read the kernel log: No such file or directory"


@dataclass
class Desk:
    """A probe, the engines that it sees, and the time as the test wants it."""

    kmsg: str = Settings().kmsg
    proc: str = procfs.ROOT
    now: float = 1000.0
    targets: tuple[Target, ...] = field(default_factory=lambda: engines("main", "other"))

    def __post_init__(self) -> None:
        """Build the probe."""
        around = Surroundings(self.proc, clock=lambda: self.now)
        self.probe = Oom(Settings(self.kmsg), Engines(self.targets), around)

    def has(self, *pids: int) -> Desk:
        """Let the first engine be these processes."""
        living = tuple(ProcessInfo(pid, 1, 1, pid, "S", "x", 0.0, 1) for pid in pids)
        self.targets[0].living = living
        return self

    def read(self, later: float = 1.0) -> Found:
        """One reading."""
        self.now += later
        return read(PROBE, self.probe)


@contextlib.contextmanager
def desk(kmsg: str = Settings().kmsg, proc: str = procfs.ROOT) -> Iterator[Desk]:
    """A desk that was read once."""
    at = Desk(kmsg, proc)
    try:
        yield at
    finally:
        at.probe.close()


# --- real kills -------------------------------------------------------------------------------


@pytest.mark.root
@kernel
def test_a_real_kill_is_counted_and_named() -> None:
    """FACT: a member that the kernel ends is counted for box and engine, and named."""
    with desk() as at, limited() as folder, greedy(folder) as process:
        before = at.has(process.pid).read()
        assert before["engine_kills", "main"] == 0
        assert before["source_trouble",] == ""

        devour(process)

        found = at.has().read()
        assert found["engine_kills", "main"] == 1
        assert found["engine_kills", "other"] == 0
        assert int(found["kills",]) > int(before["kills",])
        name = f"/{folder.name}"
        said = re.fullmatch(
            rf"python \(pid {process.pid}\) in {name}, (\S+) MiB", str(found["last",])
        )
        assert said is not None
        assert LIMIT / 2 < float(said[1]) * MIB < 2 * LIMIT
        assert at.read()["engine_kills", "main"] == 1


@pytest.mark.root
@kernel
def test_without_the_log_the_engines_own_cgroup_counts() -> None:
    """FACT: where the log cannot be read, a cgroup of nobody else tells of a real kill."""
    with desk(NOTHING) as at, limited() as folder, greedy(folder) as process:
        before = at.has(process.pid).read()
        assert (before["engine_kills", "main"], before["source_trouble",]) == (0, UNREADABLE)
        assert ("engine_kills", "other") not in before

        devour(process)

        found = at.has().read()
        assert found["engine_kills", "main"] == 1
        assert ("last",) not in found


@pytest.mark.root
@kernel
def test_a_neighbour_is_no_engine() -> None:
    """FACT: a kill beside the engine, in the same cgroup, is not the engine's."""
    with (
        desk() as at,
        desk(NOTHING) as blind,
        limited() as folder,
        greedy(folder) as ours,
        greedy(folder) as other,
    ):
        at.has(ours.pid).read()
        before = blind.has(ours.pid).read()
        devour(other)
        found, unseen = at.read(), blind.read()
        assert found["engine_kills", "main"] == 0
        assert ("engine_kills", "main") not in before
        assert unseen.get(("engine_kills", "main"), 0) == 0
        assert int(unseen["kills",]) > int(before["kills",])
        assert f"(pid {other.pid})" in str(found["last",])


INSIDE = f"""
import os, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from probes.oom import Oom, Settings
from tests.support.engines import Engines
probe = Oom(Settings(), Engines(()))
def told():
    return {{one.sample: one.value for one in probe.read(time.monotonic() + 5)}}
before = told()
eater = "held = []\\nwhile True: held.append(bytearray(b'x') * (1 << 20))"
assert subprocess.run([sys.executable, "-ISc", eater]).returncode == -9
after = told()
print(after["cgroup_kills"] - before["cgroup_kills"], after["events"])
"""


@pytest.mark.root
@kernel
def test_our_own_cgroup_counts() -> None:
    """FACT: what is ended in the cgroup that we sit in ourselves is told apart from the rest."""
    with limited(160 * MIB) as folder:
        command = (sys.executable, "-c", INSIDE, str(folder))
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert done.stdout == "1 1\n"


# --- files that look like the kernel's --------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Version 2 with us in ``/box/us`` and an engine, pid 7, in ``/box/engine``."""
    tree = Written(tmp_path)
    us = tree.box / "us"
    us.mkdir()
    tree.puts(ME, "/box/us")
    for folder in (us, tree.engine, tree.box):
        tree.uses(folder, MIB)
        tree.count(folder, 0)
    (tree.engine / "cgroup.procs").write_text("7\n")
    return tree


def test_version_two_tells_all_that_happened(written: Written) -> None:
    """FACT: every event of our cgroup is told by the kernel's name, kills also as a count."""
    with desk(NOTHING, str(written.proc)) as at:
        written.count(written.box / "us", 2)
        found = at.read()
        assert found["cgroup_kills",] == 2
        events = {key[1]: value for key, value in found.items() if key[0] == "events"}
        assert events == {
            **dict.fromkeys(("low", "high", "oom_group_kill"), 0),
            "max": 12,
            "oom": 3,
            "oom_kill": 2,
        }


def test_version_two_counts_for_the_engine(written: Written) -> None:
    """FACT: what its own cgroup counts is the engine's, also after all of it is gone."""
    with desk(NOTHING, str(written.proc)) as at:
        written.count(written.engine, 5)
        assert at.has(7).read()["engine_kills", "main"] == 0
        written.count(written.engine, 6)
        assert at.read()["engine_kills", "main"] == 1
        written.count(written.engine, 8)
        assert at.has().read()["engine_kills", "main"] == 3


def test_a_new_start_has_a_cgroup_that_begins_anew(written: Written) -> None:
    """FACT: a cgroup that has counted less than the last one takes nothing away, and adds."""
    with desk(NOTHING, str(written.proc)) as at:
        at.has(7).read()
        written.count(written.engine, 3)
        assert at.read()["engine_kills", "main"] == 3
        written.count(written.engine, 0)
        assert at.read()["engine_kills", "main"] == 3
        written.count(written.engine, 1)
        assert at.read()["engine_kills", "main"] == 4


def test_strangers_in_the_engines_cgroup(written: Written) -> None:
    """FACT: who shares a cgroup with the engine makes it no witness, until he leaves."""
    with desk(NOTHING, str(written.proc)) as at:
        at.has(7).read()
        for inside, told in (("7\n8\n", None), ("7\n0\n", None), ("", None), ("7\n", 1)):
            (written.engine / "cgroup.procs").write_text(inside)
            written.count(written.engine, 1)
            assert at.read().get(("engine_kills", "main")) == told


def test_a_cgroup_that_holds_us_is_nobodys_own(written: Written) -> None:
    """FACT: kills in a cgroup above us are not the engine's, whoever sits in it."""
    written.puts(7, "/box")
    (written.box / "cgroup.procs").write_text("7\n")
    with desk(NOTHING, str(written.proc)) as at:
        assert ("engine_kills", "main") not in at.has(7).read()


CHOSEN = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/a b,task_memcg=/a b/engine,task=VLLM::EngineCor,pid={pid},uid=0"
)
WHOLE_BOX = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,"
    "global_oom,task_memcg=/a/engine,task=VLLM::EngineCor,pid={pid},uid=0"
)
KILLED = (
    "Memory cgroup out of memory: Killed process {pid} (VLLM::EngineCor) total-vm:9kB, "
    "anon-rss:32505856kB, file-rss:5kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
)


@dataclass
class Log:
    """A kernel log of the test's own, and a desk that reads it."""

    at: Desk
    sink: int
    seq: int = 0

    def says(self, *lines: str, pid: int = 42, facility: int = 0) -> None:
        """Lines about a process."""
        for line in lines:
            self.seq += 1
            record = f"{facility * 8 + 3},{self.seq},1,-;{line.format(pid=pid)}\n"
            os.write(self.sink, record.encode())


@pytest.fixture
def log(written: Written) -> Iterator[Log]:
    """Such a log, over the tree of files."""
    with packets() as (path, sink), desk(path, str(written.proc)) as at:
        at.has(42).read()
        yield Log(at, sink)


def test_a_kill_is_told_in_words(log: Log) -> None:
    """FACT: the place is the cgroup whose limit was reached; the whole box is none."""
    log.says(CHOSEN, KILLED)
    assert log.at.read()["last",] == "VLLM::EngineCor (pid 42) in /a b, 31.0 GiB"
    log.says(WHOLE_BOX, KILLED.removeprefix("Memory cgroup out").replace(" of", "Out of", 1))
    assert log.at.read()["last",] == "VLLM::EngineCor (pid 42), 31.0 GiB"


def test_one_kill_is_one(log: Log) -> None:
    """FACT: the lines of one kill count once, in one reading or in two; a group counts each."""
    log.says(CHOSEN)
    assert log.at.read()["engine_kills", "main"] == 0
    log.says(KILLED)
    assert log.at.read()["engine_kills", "main"] == 1
    log.at.has(42, 43, 44).read()
    log.says(CHOSEN, KILLED)
    log.says(KILLED, pid=43)
    log.says(KILLED, pid=44)
    assert log.at.read()["engine_kills", "main"] == 4


def test_both_witnesses_are_one(written: Written, log: Log) -> None:
    """FACT: what log and cgroup both tell is counted once."""
    written.puts(42, "/box/engine")
    (written.engine / "cgroup.procs").write_text("42\n")
    log.at.read()
    written.count(written.engine, 1)
    log.says(CHOSEN, KILLED)
    assert log.at.read()["engine_kills", "main"] == 1


def test_who_is_gone_is_remembered_for_a_while(log: Log) -> None:
    """FACT: a pid that was a member within the last minute is the engine's, later it is not."""
    log.at.has().read(later=30)
    log.says(KILLED)
    assert log.at.read(later=20)["engine_kills", "main"] == 1
    log.says(KILLED)
    found = log.at.read(later=20)
    assert found["engine_kills", "main"] == 1
    assert "(pid 42)" in str(found["last",])


def test_only_the_kernel_is_believed(log: Log) -> None:
    """FACT: a record that a process wrote to the log is no kill."""
    log.says(KILLED, facility=1)
    found = log.at.read()
    assert found["engine_kills", "main"] == 0
    assert ("last",) not in found


def test_pids_of_another_namespace_are_nobodys(written: Written) -> None:
    """FACT: in a pid namespace of its own nobody takes the log's pids for those of an engine."""
    (written.proc / "self/ns/pid").unlink()
    (written.proc / "self/ns/pid").symlink_to("pid:[4026532999]")
    with packets() as (path, sink), desk(path, str(written.proc)) as at:
        assert ("engine_kills", "main") not in at.has(42).read()
        written.puts(42, "/box/engine")
        (written.engine / "cgroup.procs").write_text("42\n")
        assert at.read()["engine_kills", "main"] == 0
        Log(at, sink).says(CHOSEN, KILLED)
        found = at.read()
        assert found["engine_kills", "main"] == 0
        assert "another pid namespace" in str(found["source_trouble",])
        assert str(found["last",]).startswith("VLLM::EngineCor")


@pytest.mark.parametrize("text", ["", "oom_kill", "oom_kill x", "\0\0"])
def test_a_broken_count_is_no_count(written: Written, text: str) -> None:
    """FACT: files that are cut or odd give no count, and no 0."""
    for file in (written.proc / "vmstat", written.box / "us/memory.events"):
        file.write_text(text)
    with packets() as (path, _), desk(path, str(written.proc)) as at:
        assert set(at.read()) == {
            *(("engine_kills", "main"), ("engine_kills", "other")),
            ("source_trouble",),
        }


def test_nothing_to_read_is_a_failure(tmp_path: Path) -> None:
    """FACT: with neither counts nor log the probe fails in one line."""
    with desk(NOTHING, str(tmp_path)) as at, pytest.raises(ProbeError, match=f"^{UNREADABLE}$"):
        list(at.probe.read(at.now))
