"""The stop ladder: drain, TERM the leader, TERM the set, KILL the set, prove that nobody is left.

vLLM's own habits shape it: a TERM during the load is swallowed, so the leader gets a second one; a
second TERM breaks EngineCore's cleanup, so nobody else does; the resource tracker unlinks shared
memory when the others are gone, so it goes last.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from signal import SIGCONT, SIGKILL, SIGTERM

from watchdog import procfs
from watchdog.contracts import ActionError, ProcessInfo
from watchdog.core.model import Cause, Seconds
from watchdog.supervisor import identity
from watchdog.supervisor.household import Household
from watchdog.supervisor.members import Key, MemberTable, key

RunningRequests = Callable[[], float | None]

_DRAIN_LOOK_PERIOD = 0.2
_FAILED_TERM = 1.0
"""What the requests of a failed engine cannot do is finish; a stopped process needs KILL anyway."""
_SET_TERM = 5.0
_TRACKER_GRACE = 0.5
_KILL_ROUND = 0.2
_TRACKER = "multiprocessing.resource_tracker"


@dataclass(frozen=True, slots=True)
class StopSettings:
    """Longest duration of each rung, in seconds. The drain counts from the stop's beginning."""

    drain_timeout: Seconds = 30.0
    term_timeout: Seconds = 20.0
    kill_timeout: Seconds = 10.0


def unknown_requests() -> float | None:
    """Nobody can say how many requests run: not drained."""
    return None


class StopLadder:
    """One stop of one generation."""

    def __init__(
        self,
        table: MemberTable,
        household: Household,
        settings: StopSettings,
        running_requests: RunningRequests = unknown_requests,
        let_be: Callable[[], bool] = lambda: False,
    ) -> None:
        self._table = table
        self._household = household
        self._settings = settings
        self._running_requests = running_requests
        self._let_be = let_be

    def run(self, *, drain: bool, cause: Cause) -> bool:
        """Climb until nobody lives; raises ActionError(unkillable=True) with the survivors.

        False, and nobody was signalled, when it was to ``let_be`` before the end of the drain.
        """
        began = time.monotonic()
        leader = self._table.leader
        pidfd = identity.open_pidfd(*leader) if leader is not None else None
        if pidfd is not None:
            try:
                if not self._ask(pidfd, began, drain=drain, cause=cause):
                    return False
            finally:
                os.close(pidfd)
        self._kill_and_prove()
        return True

    # --- asking -------------------------------------------------------------------------------

    def _ask(self, leader: int, began: Seconds, *, drain: bool, cause: Cause) -> bool:
        if identity.gone(leader):
            return True  # a headless set cannot finish anything
        self._table.refresh()  # while the leader can still lead us to its children
        if drain:
            self._drain(leader, began + self._settings.drain_timeout)
            if self._let_be() and not identity.gone(leader):
                return False
        term = self._settings.term_timeout
        if cause is Cause.OPERATOR:
            self._term_leader(leader, term)
            self._term_set(min(_SET_TERM, term / 2))
        else:
            self._term_leader(leader, min(term, _FAILED_TERM))
        return True

    def _drain(self, leader: int, deadline: Seconds) -> None:
        while self._running_requests() != 0 and not identity.gone(leader) and not self._let_be():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            identity.wait_gone((leader,), min(left, _DRAIN_LOOK_PERIOD))

    def _term_leader(self, leader: int, seconds: Seconds) -> None:
        """Two TERMs, half the time apart. CONT wakes a stopped leader to its TERM."""
        for _ in range(2):
            identity.send(leader, SIGTERM)
            identity.send(leader, SIGCONT)
            if identity.wait_gone((leader,), seconds / 2):
                return

    def _term_set(self, seconds: Seconds) -> None:
        """One TERM for each of the rest, and a short while to follow it."""
        rest = [i for i in self._table.refresh() if key(i) != self._table.leader]
        with opened(key(info) for info in rest if not is_tracker(info)) as pidfds:
            for pidfd in pidfds.values():
                identity.send(pidfd, SIGTERM)
            _wait_all(pidfds.values(), time.monotonic() + seconds)

    # --- killing ------------------------------------------------------------------------------

    def _kill_and_prove(self) -> None:
        deadline = time.monotonic() + self._settings.kill_timeout
        while members := self._table.refresh(full=True):
            if time.monotonic() >= deadline:
                raise ActionError(_survivors(members), unkillable=True)
            self._kill_round(members, deadline)

    def _kill_round(self, members: tuple[ProcessInfo, ...], deadline: Seconds) -> None:
        trackers = {key(info) for info in members if is_tracker(info)}
        with opened(key(info) for info in members) as pidfds:
            others = {k: pidfd for k, pidfd in pidfds.items() if k not in trackers}
            until = min(deadline, time.monotonic() + _KILL_ROUND)
            if self._killed(others, until):
                last = {k: pidfd for k, pidfd in pidfds.items() if k in trackers}
                _wait_all(last.values(), min(deadline, time.monotonic() + _TRACKER_GRACE))
                self._killed(last, max(until, time.monotonic() + _KILL_ROUND))
            for pid, _ in pidfds:
                self._household.reap_if_orphan(pid)

    def _killed(self, pidfds: dict[Key, int], deadline: Seconds) -> bool:
        for pidfd in pidfds.values():
            identity.send(pidfd, SIGKILL)
        return _wait_all(pidfds.values(), deadline)


def is_tracker(info: ProcessInfo) -> bool:
    """Whether it is Python's resource tracker, which unlinks shared memory once it is alone."""
    return any(_TRACKER in word for word in procfs.cmdline(info.pid))


@contextlib.contextmanager
def opened(keys: Iterable[Key]) -> Iterator[dict[Key, int]]:
    """Pidfds of those that are still there, closed afterwards."""
    pidfds: dict[Key, int] = {}
    try:
        for one in keys:
            pidfd = identity.open_pidfd(*one)
            if pidfd is not None:
                pidfds[one] = pidfd
        yield pidfds
    finally:
        for pidfd in pidfds.values():
            os.close(pidfd)


def _wait_all(pidfds: Iterable[int], deadline: Seconds) -> bool:
    """Whether all were gone by the deadline."""
    waiting = set(pidfds)
    while waiting:
        went = identity.wait_gone(waiting, deadline - time.monotonic())
        if not went:
            return False
        waiting -= went
    return True


def _survivors(members: tuple[ProcessInfo, ...]) -> str:
    rows = (f"{i.pid} {i.comm} {i.state} {procfs.wchan(i.pid)}".rstrip() for i in members)
    return f"cannot end {len(members)} of the engine's processes: {'; '.join(rows)}"
