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

_NAMED = 4
"""So many of several listeners are named."""


@dataclass(frozen=True, slots=True)
class Presence:
    """What one look has found. ``leader`` is the engine's first process.

    Without one ``why`` says what stands in the way, and ``serves`` that there is an engine all the
    same, out of sight. Both are empty when nobody listens. ``shared``: its first process is that of
    other engines too.
    """

    leader: ProcessInfo | None = None
    serves: bool = False
    why: str = ""
    shared: bool = False


def look(endpoint: Endpoint, command: tuple[str, ...], root: str = procfs.ROOT) -> Presence:
    """Who serves at the endpoint's address and port in our network namespace."""
    if not procfs.is_listened_on(endpoint.port, root, host=endpoint.host):
        return Presence()
    owners = procfs.listening_owners(endpoint.port, root, host=endpoint.host)
    known = [info for pid, _ in owners if (info := procfs.stat(pid, root)) is not None]
    if not known:
        return _unseen(endpoint, root)
    leaders = {_key(one): one for one in (_leader(info, command, root) for info in known)}
    if len(leaders) > 1:
        return Presence(why=f"several listen on port {endpoint.port}: {_named(known)}")
    leader = next(iter(leaders.values()))
    if leader is None:
        return Presence(
            why=f"process {known[0].pid} ({known[0].comm}) listens on port {endpoint.port} and does"
            " not run the engine's program"
        )
    return _shared(known[0], leader, endpoint.port, root) or _judged(leader, root)


def _shared(info: ProcessInfo, leader: ProcessInfo, port: int, root: str) -> Presence | None:
    """Says so when the leader has started others with its own words, who listen elsewhere."""
    words = procfs.cmdline(leader.pid, root)
    path = (info, *procfs.ancestors(info, root))
    below = {one.pid for one in path[: [one.pid for one in path].index(leader.pid)]}
    for pid in procfs.children(leader.pid, root) if below else ():
        if pid in below or procfs.cmdline(pid, root) != words:
            continue
        others = procfs.listening_ports(pid, root)
        if others and port not in others:
            why = f"process {leader.pid} ({leader.comm}) has started several engines: process {pid}"
            return Presence(why=f"{why} listens on port {min(others)}", shared=True)
    return None


def _unseen(endpoint: Endpoint, root: str) -> Presence:
    """Looked for again: who ended between the two looks is not out of sight, but gone."""
    if not procfs.is_listened_on(endpoint.port, root, host=endpoint.host):
        return Presence()
    return Presence(
        serves=True,
        why="its processes cannot be seen: share the PID namespace, run as its user or as root",
    )


def _key(leader: ProcessInfo | None) -> int:
    return 0 if leader is None else leader.pid


def _named(known: list[ProcessInfo]) -> str:
    return ", ".join(f"process {info.pid} ({info.comm})" for info in known[:_NAMED])


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
