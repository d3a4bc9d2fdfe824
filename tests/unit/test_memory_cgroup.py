"""Files of memory cgroups, and lines of the kernel's log, as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog import memory_cgroup
from watchdog.kernel_log import OomKill, OomLines

NONE = "9223372036854771712\n"
USAGE = "memory: usage 1024kB, limit 2048kB, failcnt 34"
CHOSEN = (
    "oom-kill:constraint=CONSTRAINT_{kind},nodemask=(null),cpuset=/,mems_allowed=0,"
    "{place},task_memcg=/a,task=python,pid={pid},uid=0"
)
KILLED = (
    "{kind}: Killed process {pid} (python) total-vm:9kB, anon-rss:4kB, file-rss:5kB, "
    "shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
)
CAPPED, WHOLE = "Memory cgroup out of memory", "Out of memory"


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("memory.limit_in_bytes", NONE, None),
        ("memory.limit_in_bytes", "4096\n", 4096),
        ("memory.max", "max\n", None),
        ("memory.max", "0\n", 0),
        ("memory.max", "", None),
    ],
)
def test_a_limit_is_a_limit(tmp_path: Path, file: str, text: str, limit: int | None) -> None:
    """FACT: what both versions write for "none" is none; a limit of 0 is one."""
    (tmp_path / file).write_text(text)
    assert memory_cgroup.limit(str(tmp_path)) == limit


def test_a_long_file_is_read_to_its_end() -> None:
    """FACT: the kernel gives a page at a time; what stands behind the first is read too."""
    whole = memory_cgroup.text("/proc/self/smaps")
    assert len(whole) > 3 * 4096
    assert "[stack]" in whole


def test_the_tree_is_walked_to_the_root() -> None:
    """FACT: every folder above counts, the root of all files does not."""
    assert memory_cgroup.upwards("/sys/a b/c/") == ("/sys/a b/c", "/sys/a b", "/sys")
    assert memory_cgroup.upwards("/") == ()


def told(*lines: str) -> list[OomKill]:
    """The kills that these lines tell of."""
    log = OomLines()
    return [kill for kill in map(log.found, lines) if kill is not None]


def test_the_usage_of_one_kill_is_not_that_of_the_next() -> None:
    """FACT: a kill for the whole box has no limit, whatever a cgroup's kill before it had."""
    one, other = told(
        USAGE,
        CHOSEN.format(kind="MEMCG", place="oom_memcg=/a", pid=1),
        CHOSEN.format(kind="NONE", place="global_oom", pid=2),
    )
    assert (one.used, one.limit, one.place, one.capped) == (1 << 20, 2 << 20, "/a", True)
    assert (other.used, other.limit, other.place, other.capped) == (None, None, "", False)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (CAPPED, "python (pid 7) in a cgroup, 0.0 MiB"),
        (WHOLE, "python (pid 7), 0.0 MiB"),
    ],
)
def test_of_many_kills_the_kernel_says_less(kind: str, words: str) -> None:
    """FACT: without the lines before it a kill is told all the same, and no limit is made up."""
    (kill,) = told(KILLED.format(kind=kind, pid=7))
    assert kill.words == words
    assert (kill.used, kill.limit, kill.rss) == (None, None, 4096)


def test_a_pid_that_comes_again_brings_nothing_old() -> None:
    """FACT: what was said of a kill is not said of a later one that has the same pid."""
    chosen = CHOSEN.format(kind="MEMCG", place="oom_memcg=/a", pid=7)
    killed = KILLED.format(kind=CAPPED, pid=7)
    assert [kill.limit for kill in told(USAGE, chosen, killed, killed)] == [2 << 20, 2 << 20, None]
