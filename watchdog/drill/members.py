"""The processes of an engine, held by pidfd: a signal can reach nobody else."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from watchdog import procfs
from watchdog.contracts import ProcessInfo
from watchdog.drill.asking import Daemon, Engine
from watchdog.drill.results import RefusedError
from watchdog.supervisor import identity


@dataclass(frozen=True, slots=True)
class Member:
    """One process. ``title`` is its command line."""

    pid: int
    pidfd: int
    title: str
    leads: bool

    def send(self, number: signal.Signals) -> None:
        """Signal it; one that is gone takes no note."""
        identity.send(self.pidfd, number)

    @property
    def gone(self) -> bool:
        """Whether every thread of it is gone."""
        return identity.gone(self.pidfd)


@dataclass(frozen=True, slots=True)
class Members:
    """All that the daemon named."""

    all: tuple[Member, ...]

    def leader(self) -> Member:
        """The API server; raises RefusedError."""
        return self._first((one for one in self.all if one.leads), "leader")

    def titled(self, word: str) -> Member:
        """The first one with that word in its title; raises RefusedError."""
        return self._first((one for one in self.all if word in one.title), word)

    def living(self) -> tuple[Member, ...]:
        """Those of whom a thread is left."""
        return tuple(one for one in self.all if not one.gone)

    @staticmethod
    def _first(found: Iterator[Member], what: str) -> Member:
        member = next(found, None)
        if member is None:
            raise RefusedError(f"the engine has no process {what}")
        return member


@contextlib.contextmanager
def members(daemon: Daemon, name: str) -> Iterator[Members]:
    """Those that the daemon names, twice: a pid that changed hands in between is nobody's.

    Only the leader, who is below it, and who is in its session; raises RefusedError without it.
    """
    with contextlib.ExitStack() as held:
        first = daemon.engine(name)
        found = _opened(first, held)
        again = daemon.engine(name)
        if first.generation != again.generation or first.pid != again.pid:
            raise RefusedError("the engine was restarted just now")
        yield Members(tuple(one for one in found if one.pid in again.pids))


def _opened(engine: Engine, held: contextlib.ExitStack) -> list[Member]:
    leader = None if engine.pid is None else procfs.stat(engine.pid)
    if leader is None:
        raise RefusedError("the engine has no process")
    found = []
    for pid in dict.fromkeys((leader.pid, *engine.pids)):
        info = procfs.stat(pid)
        if info is None or not _belongs(info, leader):
            continue
        pidfd = identity.open_pidfd(pid, info.start_ticks)
        if pidfd is not None:
            held.callback(os.close, pidfd)
            title = " ".join(procfs.cmdline(pid))
            found.append(Member(pid, pidfd, title, leads=pid == leader.pid))
    return found


def _belongs(info: ProcessInfo, leader: ProcessInfo) -> bool:
    if leader.pid == info.pid or info.session == leader.session:
        return True
    return any(above.pid == leader.pid for above in procfs.ancestors(info))


@contextlib.contextmanager
def stopped(member: Member) -> Iterator[None]:
    """It stands still, and goes on afterwards, whatever happens in between."""
    try:
        member.send(signal.SIGSTOP)
        yield
    finally:
        member.send(signal.SIGCONT)


def end(pids: Sequence[tuple[int, int]]) -> None:
    """SIGKILL to processes by pid and start time (ticks); who is not that one is let be."""
    for pid, ticks in pids:
        pidfd = identity.open_pidfd(pid, ticks)
        if pidfd is not None:
            identity.send(pidfd, signal.SIGKILL)
            os.close(pidfd)
