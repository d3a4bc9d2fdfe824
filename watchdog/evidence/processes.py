"""The engine's processes as a tree: what each of them does, and where it waits.

Nothing here asks a process that is stuck in the kernel for its words: the answer may never come.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from watchdog import procfs
from watchdog.contracts import ProcessInfo
from watchdog.core.model import Seconds
from watchdog.kernel_log import size

_STACK = 24
_STUCK_THREADS = 8
"""Threads of one process whose stacks are told: those in state D, then the first one."""
_WAITS = 6


@dataclass(frozen=True, slots=True)
class Look:
    """One process. ``tasks`` is None where there was no time to look at them.

    ``descriptors`` is None when they cannot be counted. ``stacks`` has, of a few threads, the
    kernel's functions, innermost first.
    """

    info: ProcessInfo
    tasks: tuple[procfs.Task, ...] | None = None
    descriptors: int | None = None
    stacks: tuple[tuple[procfs.Task, tuple[str, ...]], ...] = ()


Seen = tuple[Look, ...]


def look(processes: Sequence[ProcessInfo], until: Seconds) -> Seen:
    """Look at all of them; from ``until`` (CLOCK_MONOTONIC) on only at what is known already."""
    return tuple(_looked(info) if time.monotonic() < until else Look(info) for info in processes)


def with_children(roots: Iterable[ProcessInfo]) -> tuple[ProcessInfo, ...]:
    """Those that live, and all that live below them."""
    found: dict[int, ProcessInfo] = {}
    frontier = [info for info in roots if procfs.lives(info)]
    while frontier:
        info = frontier.pop()
        if info.pid not in found:
            found[info.pid] = info
            below = (procfs.stat(pid) for pid in procfs.children(info.pid))
            frontier += [one for one in below if one is not None and procfs.lives(one)]
    return tuple(sorted(found.values(), key=lambda info: info.pid))


def _looked(info: ProcessInfo) -> Look:
    now = procfs.stat(info.pid)
    if now is None or now.start_ticks != info.start_ticks:
        return Look(info)
    tasks = procfs.tasks(info.pid)
    stuck = sorted(tasks, key=lambda task: (task.state != "D", task.tid != info.pid))
    wanted = [task for task in stuck[:_STUCK_THREADS] if task.state == "D" or task.tid == info.pid]
    stacks = ((task, procfs.kernel_stack(info.pid, task.tid)[:_STACK]) for task in wanted)
    return Look(now, tasks, _descriptors(info.pid), tuple(stacks))


def _descriptors(pid: int) -> int | None:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - as in procfs
    except OSError:
        return None


def page(seen: Seen) -> str:
    """The tree as text: one line a process, its threads and stacks below it."""
    if not seen:
        return "no process of the engine lives\n"
    return "".join(f"{line}\n" for line in _tree(seen))


def _tree(seen: Seen) -> Iterator[str]:
    pids = {one.info.pid for one in seen}
    below: dict[int, list[Look]] = {}
    for one in seen:
        parent = one.info.ppid if one.info.ppid in pids else 0
        below.setdefault(parent, []).append(one)
    waiting = [(one, 0) for one in reversed(below.get(0, []))]
    while waiting:
        one, depth = waiting.pop()
        yield from (f"{'    ' * depth}{line}" for line in _lines(one))
        waiting += [(child, depth + 1) for child in reversed(below.get(one.info.pid, []))]


def _lines(one: Look) -> Iterator[str]:
    info = one.info
    count = "unknown" if one.descriptors is None else str(one.descriptors)
    yield (
        f"{info.pid} {info.state} {info.comm}  parent {info.ppid}, rss {size(info.rss_bytes)}, "
        f"{info.cpu_seconds:.2f} s of CPU, {count} descriptors"
    )
    if one.tasks is None:
        yield f"  {info.threads} threads, not looked at"
        return
    states = Counter(task.state for task in one.tasks)
    told = ", ".join(f"{number} {state}" for state, number in states.most_common())
    yield f"  {len(one.tasks)} threads: {told or 'all gone'}"
    waits = Counter(task.wchan for task in one.tasks if task.wchan)
    if waits:
        told = ", ".join(f"{number} in {place}" for place, number in waits.most_common(_WAITS))
        yield f"  waiting: {told}"
    for task, stack in one.stacks:
        if stack:
            yield f"  thread {task.tid} {task.state}: {' < '.join(stack)}"
