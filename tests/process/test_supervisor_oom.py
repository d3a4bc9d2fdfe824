"""An OOM kill is told with its numbers when it was the engine's, and not when it was another's."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory_cgroups import (
    LIMIT,
    NOTHING,
    Written,
    devour,
    greedy,
    kernel,
    limited,
)
from watchdog.supervisor import oom
from watchdog.supervisor.cgroup import Cgroup
from watchdog.supervisor.oom import OomLook, OomSource, OomWatch


@pytest.fixture
def small() -> Iterator[Path]:
    """A memory cgroup with a limit of 48 MiB, which is gone afterwards."""
    with limited() as folder:
        yield folder


@pytest.mark.root
@kernel
def test_the_kernels_log_names_the_process_and_the_numbers(small: Path) -> None:
    """FACT: after a real OOM kill the sentence has pid, name, what was used and the limit."""
    with greedy(small) as process, contextlib.closing(OomWatch(process.pid)) as watch:
        before = watch.look()

        devour(process)

        found = watch.since(before, [process.pid], killed=True)
        assert found is not None
        assert found.source is OomSource.KERNEL_LOG
        assert found.explanation == (
            f"the kernel's OOM killer ended process {process.pid} (python): "
            "48.0 MiB used of a limit of 48.0 MiB"
        )
        values = dict(found.values)
        assert values["oom_limit_bytes"] == LIMIT
        assert 20 << 20 < int(values["oom_rss_bytes"]) < 2 * LIMIT


@pytest.mark.root
@kernel
def test_the_memory_cgroup_tells_where_the_log_does_not(small: Path) -> None:
    """FACT: without the log the count of the process's memory cgroup is evidence, with numbers."""
    with (
        greedy(small) as process,
        contextlib.closing(OomWatch(process.pid, kernel_log=NOTHING)) as watch,
    ):
        before = watch.look()

        devour(process)

        found = watch.since(before, [process.pid], killed=True)
        assert found is not None
        assert (found.source, found.kills) == (OomSource.MEMORY_CGROUP, 1)
        assert found.explanation == (
            "the kernel's OOM killer ended 1 process in the engine's memory cgroup: "
            "48.0 MiB used of a limit of 48.0 MiB"
        )
        assert watch.since(before, [process.pid], killed=False) is None


@pytest.mark.root
@kernel
def test_a_neighbours_kill_is_not_ours(small: Path) -> None:
    """FACT: an OOM kill elsewhere counts for the box alone, and is no evidence of ours."""
    with (
        contextlib.closing(OomWatch(os.getpid())) as watch,
        contextlib.closing(OomWatch(os.getpid(), kernel_log=NOTHING)) as blind,
    ):
        before, unseen = watch.look(), blind.look()
        with greedy(small) as process:
            devour(process)

        assert watch.since(before, [os.getpid()], killed=True) is None
        assert blind.since(unseen, [os.getpid()], killed=True) is None
        box = watch.look().box
        assert box is not None
        assert before.box is not None
        assert box > before.box


@pytest.mark.root
@kernel
def test_a_neighbour_in_the_same_cgroup_is_told_apart(small: Path) -> None:
    """FACT: who shares the cgroup and was ended is named by the log: the other one was not it."""
    with (
        greedy(small) as ours,
        greedy(small) as other,
        contextlib.closing(OomWatch(ours.pid)) as watch,
        contextlib.closing(OomWatch(ours.pid, kernel_log=NOTHING)) as blind,
    ):
        before, unseen = watch.look(), blind.look()
        devour(other)

        assert watch.since(before, [ours.pid], killed=True) is None
        assert blind.since(unseen, [ours.pid], killed=True) is not None


# --- files that look like the kernel's -----------------------------------------------------------


def watching(
    written: Written, cgroup: Cgroup | None = None, recent: float = oom.RECENT
) -> contextlib.closing[OomWatch]:
    """A watch over pid 7."""
    places = {"proc": str(written.proc), "kernel_log": str(written.log)}
    return contextlib.closing(OomWatch(7, cgroup, recent=recent, **places))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The tree of files."""
    return Written(tmp_path)


def test_version_two_is_read_up_the_tree(written: Written) -> None:
    """FACT: the nearest memory.events above the process counts; the limit is the lowest above."""
    with watching(written) as watch:
        before = watch.look()
        assert before == OomLook(own=None, shared=0, box=0)
        written.count(written.box, 2)

        found = watch.since(before, [7], killed=True)

        assert found is not None
        assert found.explanation == (
            "the kernel's OOM killer ended 2 processes in the engine's memory cgroup: "
            "63.9 GiB used of a limit of 64.0 GiB"
        )


def test_the_engines_own_cgroup_needs_no_other_sign(written: Written) -> None:
    """FACT: a kill counted in the generation's own cgroup is the engine's, whoever it was."""
    written.count(written.engine, 0)
    (written.engine / "memory.max").write_text("max\n")
    with watching(written, Cgroup(written.engine)) as watch:
        before = watch.look()
        written.count(written.engine, 1)

        found = watch.since(before, [], killed=False)

        assert found is not None
        assert found.source is OomSource.OWN_CGROUP
        assert "ended 1 process in the engine's own cgroup: 63.9 GiB used of" in found.explanation


USAGE = b"6,1,1,-;memory: usage 67043328kB, limit 67108864kB, failcnt 34\n"
CHOSEN = (
    b"6,2,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    b"oom_memcg=/box,task_memcg=/box/engine,task=VLLM::EngineCor,pid=4242,uid=0\n"
)
KILLED = (
    b"3,3,3,-;Memory cgroup out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:9kB, "
    b"anon-rss:1024kB, file-rss:5kB, shmem-rss:1024kB, UID:0 pgtables:1kB oom_score_adj:0\n"
)
GLOBAL = (
    b"3,3,3,-;Out of memory: Killed process 4242 (a (b), c) total-vm:9kB, anon-rss:3145728kB, "
    b"file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0\n"
)


@pytest.fixture
def device(written: Written) -> Iterator[int]:
    """The writing end of a pipe in the log's place: one read there is what was written last."""
    written.log.unlink()
    os.mkfifo(written.log)
    end = os.open(written.log, os.O_RDWR | os.O_NONBLOCK)
    yield end
    os.close(end)


def test_the_log_is_read_as_the_kernel_writes_it(written: Written, device: int) -> None:
    """FACT: chosen, used, limit and the memory that it held are put together from the log."""
    with watching(written) as watch:
        before = watch.look()
        for record in (USAGE, CHOSEN, KILLED):
            os.write(device, record)
            watch.look()

        found = watch.since(before, [4242])

        assert found is not None
        assert found.explanation == (
            "the kernel's OOM killer ended process 4242 (VLLM::EngineCor): "
            "63.9 GiB used of a limit of 64.0 GiB"
        )
        assert dict(found.values)["oom_rss_bytes"] == 2 << 20
        assert watch.since(before, [4243]) is None


def test_a_kill_for_the_whole_box_has_no_limit(written: Written, device: int) -> None:
    """FACT: when the box had no memory left, the sentence says so and what the process held."""
    with watching(written) as watch:
        before = watch.look()
        os.write(device, GLOBAL)

        found = watch.since(before, [4242])

        assert found is not None
        assert found.explanation == (
            "the kernel's OOM killer ended process 4242 (a (b), c): "
            "it held 3.0 GiB, and the box had no memory left"
        )


def test_of_many_kills_at_once_the_log_has_no_limit(written: Written, device: int) -> None:
    """FACT: without the lines that have it, the limit is that of the engine's memory cgroup."""
    with watching(written) as watch:
        before = watch.look()
        os.write(device, KILLED)

        found = watch.since(before, [4242])

        assert found is not None
        assert found.source is OomSource.KERNEL_LOG
        assert "(VLLM::EngineCor): 63.9 GiB used of a limit of 64.0 GiB" in found.explanation


def test_only_the_kernel_is_believed(written: Written, device: int) -> None:
    """FACT: a record that a process wrote to the log is no evidence."""
    with watching(written) as watch:
        before = watch.look()
        os.write(device, b"11" + KILLED[1:])

        assert watch.since(before, [4242], killed=True) is None


def test_pids_of_another_namespace_mean_nothing(written: Written, device: int) -> None:
    """FACT: in a pid namespace of its own nobody takes the log's pids for those it knows."""
    (written.proc / "self/ns/pid").unlink()
    (written.proc / "self/ns/pid").symlink_to("pid:[4026532999]")
    with watching(written) as watch:
        before = watch.look()
        os.write(device, KILLED)

        assert watch.since(before, [4242], killed=True) is None


@pytest.mark.parametrize("text", ["", "oom_kill", "oom_kill x", "\0\0"])
def test_a_broken_count_is_no_count(written: Written, text: str) -> None:
    """FACT: files that are cut or odd give no count and no evidence, and no error."""
    with watching(written) as watch:
        before = watch.look()
        (written.box / "memory.events").write_text(text)
        (written.proc / "vmstat").write_text(text)

        assert watch.look() == OomLook()
        assert watch.since(before, [7], killed=True) is None


@pytest.mark.parametrize(("recent", "found"), [(60.0, True), (0.0, False)])
def test_what_is_long_ago_explains_nothing(
    written: Written, device: int, recent: float, *, found: bool
) -> None:
    """FACT: a kill that was seen too long before the end is no evidence, from cgroup or log."""
    written.count(written.engine, 0)
    with watching(written, Cgroup(written.engine), recent) as watch:
        before = watch.look()
        written.count(written.engine, 1)
        os.write(device, KILLED)
        watch.look()

        assert (watch.since(before, [4242], killed=True) is not None) is found


def test_what_was_not_counted_before_is_no_evidence(written: Written) -> None:
    """FACT: kills of long ago are not this engine's because the first look could not read them."""
    events = written.box / "memory.events"
    with watching(written) as watch:
        events.rename(written.box / "elsewhere")
        before = watch.look()
        assert before.shared is None
        (written.box / "elsewhere").rename(events)
        written.count(written.box, 57)

        assert watch.since(before, [7], killed=True) is None


def test_others_kills_are_not_kept_for_ever(written: Written, device: int) -> None:
    """FACT: a box on which somebody is killed all the time costs no memory; the latest is known."""
    with watching(written) as watch:
        before = watch.look()
        for pid in range(4000, 5000):
            os.write(device, KILLED.replace(b"4242", b"%d" % pid))
            watch.look()

        assert watch.since(before, [4000]) is None
        assert watch.since(before, [4999]) is not None
