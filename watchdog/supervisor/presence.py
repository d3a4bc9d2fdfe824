"""Whether an engine that somebody else starts is there, and which process it is.

Whoever listens on its port is taken for it only when it runs the engine's own program: a stranger
on that port is told of, and never more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from watchdog import procfs
from watchdog.contracts import Endpoint, ProcessInfo
from watchdog.programs import runs
from watchdog.supervisor.members import GENERATION_VARIABLE


@dataclass(frozen=True, slots=True)
class Presence:
    """What one look has found. ``leader`` is the engine's first process.

    Without one ``why`` says what stands in the way, and ``serves`` that there is an engine all the
    same, out of sight. Both are empty when nobody listens.
    """

    leader: ProcessInfo | None = None
    serves: bool = False
    why: str = ""


def look(endpoint: Endpoint, command: tuple[str, ...], root: str = procfs.ROOT) -> Presence:
    """Who serves on the port in our network namespace."""
    if not procfs.is_listened_on(endpoint.port, root):
        return Presence()
    owner = procfs.listening_owner(endpoint.port, root)
    info = None if owner is None else procfs.stat(owner[0], root)
    if info is None:
        return Presence(
            serves=True,
            why="its processes cannot be seen: share the PID namespace, run as its user or as root",
        )
    leader = _leader(info, command, root)
    if leader is None:
        return Presence(
            why=f"process {info.pid} ({info.comm}) listens on port {endpoint.port} and does not run"
            " the engine's program"
        )
    return _judged(leader, root)


def _judged(leader: ProcessInfo, root: str) -> Presence:
    if _is_above_us(leader.pid, root):
        return Presence(why=f"process {leader.pid} has started this watchdog itself")
    if procfs.environ_value(leader.pid, GENERATION_VARIABLE, root) is not None:
        return Presence(why=f"process {leader.pid} was started by a watchdog: that one keeps it")
    return Presence(leader, serves=True)


def _leader(info: ProcessInfo, command: tuple[str, ...], root: str) -> ProcessInfo | None:
    """The nearest that runs the program, and above it whoever was merely forked into the same."""
    found: ProcessInfo | None = None
    argv: tuple[str, ...] = ()
    for one in (info, *procfs.ancestors(info, root)):
        words = tuple(procfs.cmdline(one.pid, root))
        if found is None and not runs(words, command):
            continue
        if found is not None and words != argv:
            break
        found, argv = one, words
    return found


def _is_above_us(pid: int, root: str) -> bool:
    me = procfs.stat(os.getpid(), root)
    above = procfs.ancestors(me, root) if me is not None else ()
    return pid in {os.getpid(), os.getppid(), *(one.pid for one in above)}
