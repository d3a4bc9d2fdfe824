"""The stop ladder: drain, TERM the leader, TERM the set, KILL the set, prove that nobody is left.

Signals go through pidfds. Where the generation has a cgroup of its own, that is killed too when
pidfds do not suffice, and the proof needs it empty.

vLLM's own habits shape it: a TERM during the load is swallowed, so the leader gets a second one; a
second TERM breaks EngineCore's cleanup, so nobody else does; the resource tracker unlinks shared
memory when the others are gone, so it goes last.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from signal import SIGCONT, SIGKILL, SIGTERM

from watchdog import procfs
from watchdog.contracts import ActionError, ProcessInfo
from watchdog.core.model import Cause, Seconds
from watchdog.supervisor import identity
from watchdog.supervisor.household import Household
from watchdog.supervisor.members import Key, MemberTable, key

RunningRequests = Callable[[Seconds], float | None]
"""How many requests are in an engine, by counters that were read since that moment; None when
nobody can say."""

_DRAIN_LOOK_PERIOD = 0.2
_FAILED_TERM = 1.0
"""What the requests of a failed engine cannot do is finish; a stopped process needs KILL anyway."""
_SET_TERM = 5.0
_TRACKER_GRACE = 0.5
_KILL_ROUND = 0.2
_UNLINKED = 0.001
_CHASES = 50
_TOLD = 4
_KEPT = 16
_SHORT_STACK = 3
_LONG_STACK = 12
_TRACKER = "multiprocessing.resource_tracker"


@dataclass(frozen=True, slots=True)
class StopSettings:
    """Longest duration of each rung, in seconds. The drain counts from the stop's beginning."""

    drain_timeout: Seconds = 30.0
    term_timeout: Seconds = 20.0
    kill_timeout: Seconds = 10.0


def unknown_requests(_: Seconds) -> float | None:
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
            self._drain(leader, began)
            if self._let_be() and not identity.gone(leader):
                return False
        term = self._settings.term_timeout
        if cause is Cause.OPERATOR:
            self._term_leader(leader, term)
            self._term_set(min(_SET_TERM, term / 2))
        else:
            self._term_leader(leader, min(term, _FAILED_TERM))
        return True

    def _drain(self, leader: int, began: Seconds) -> None:
        """What was counted before proves nothing: a request may have come since."""
        deadline = began + self._settings.drain_timeout
        while self._running_requests(began) != 0:
            if identity.gone(leader) or self._let_be():
                return
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
        late = deadline - self._settings.kill_timeout / 2
        seen: set[Key] = set()
        tried_all = self._table.cgroup is None
        while members := self._left(deadline):
            now = time.monotonic()
            if now >= deadline and tried_all:
                raise _unkillable(members)
            if now >= late or (seen and not seen.issuperset(map(key, members))):
                self._kill_at_once()
                tried_all = True
            seen.update(map(key, members))
            self._kill_round(members, deadline)

    def _left(self, deadline: Seconds) -> tuple[ProcessInfo, ...]:
        """Who lives by any mark. Nobody only when the kernel says so of the cgroup as well."""
        while not (members := self._all_seen(deadline)):
            cgroup = self._table.cgroup
            if cgroup is None or cgroup.is_empty():
                return ()
            if time.monotonic() >= deadline:
                raise _unkillable((), f"{cgroup.path} is not empty, its processes cannot be seen")
            cgroup.kill()
            time.sleep(_UNLINKED)  # the kernel unlinks who is gone a moment later
        return members

    def _all_seen(self, deadline: Seconds) -> tuple[ProcessInfo, ...]:
        """A look that nobody slipped through.

        Who forks and exits between our reading of the list and of the process is seen dead, and
        its child is not seen at all. But it leaves a corpse each time.
        """
        while True:
            buried = self._household.buried()
            members = self._table.refresh(full=True)
            if members or self._table.cgroup is not None or time.monotonic() >= deadline:
                return members
            if self._household.buried() == buried:
                return ()

    def _kill_at_once(self) -> None:
        """Who forks faster than we look, or is not ours to signal, cannot escape this.

        It spares no tracker; so it is not the first that is tried.
        """
        if self._table.cgroup is not None:
            self._table.cgroup.kill()

    def _kill_round(self, members: tuple[ProcessInfo, ...], deadline: Seconds) -> None:
        trackers = {key(info) for info in members if is_tracker(info)}
        with opened(key(info) for info in members) as pidfds:
            others = {k: pidfd for k, pidfd in pidfds.items() if k not in trackers}
            until = min(deadline, time.monotonic() + _KILL_ROUND)
            if self._killed(others, until):
                last = {k: pidfd for k, pidfd in pidfds.items() if k in trackers}
                _wait_all(last.values(), min(deadline, time.monotonic() + _TRACKER_GRACE))
                self._killed(last, max(until, time.monotonic() + _KILL_ROUND))
        self._household.reap_orphans()
        self._pursue(set(map(key, members)))

    def _pursue(self, killed: set[Key]) -> None:
        """Kill whoever is left to us meanwhile: who forks and exits all the time outruns a scan.

        Between this look and its signal lies far less than a look at the whole box takes.
        """
        for _ in range(_CHASES):
            news = [key(i) for i in self._table.refresh() if key(i) not in killed]
            with opened(news) as pidfds:
                for pidfd in pidfds.values():
                    identity.send(pidfd, SIGKILL)
            if not news:
                return
            killed.update(news)
            self._household.reap_orphans()

    def _killed(self, pidfds: dict[Key, int], deadline: Seconds) -> bool:
        for pidfd in pidfds.values():
            identity.send(pidfd, SIGKILL)
        return _wait_all(pidfds.values(), deadline)


def is_tracker(info: ProcessInfo) -> bool:
    """Whether it is Python's resource tracker, which unlinks shared memory once it is alone.

    Who is stuck in the kernel is not asked: it may hold the lock that a look at its words needs.
    """
    return info.state != "D" and any(_TRACKER in word for word in procfs.cmdline(info.pid))


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


# --- survivors --------------------------------------------------------------------------------


def _unkillable(members: Sequence[ProcessInfo], why: str = "") -> ActionError:
    """What outlived the last rung: the first few in one line, more of each as evidence."""
    rows = [_stuck(info, _SHORT_STACK) for info in members[:_TOLD]]
    if len(members) > _TOLD:
        rows.append(f"and {len(members) - _TOLD} more")
    what = f"{len(members)} of the engine's processes" if members else "what the engine started"
    return ActionError(
        f"cannot end {what}: {'; '.join(rows) or why}",
        unkillable=True,
        evidence=tuple(
            (f"survivor_{info.pid}", _stuck(info, _LONG_STACK)) for info in members[:_KEPT]
        ),
    )


def _stuck(info: ProcessInfo, depth: int) -> str:
    """A survivor and the thread of it that most likely keeps it: what it waits for, and where."""
    text = f"{info.pid} {info.comm} {info.state}"
    living = [task for task in procfs.tasks(info.pid) if task.state not in "ZX"]
    task = min(living, key=lambda task: (task.state != "D", task.state not in "Tt"), default=None)
    if task is None:
        return text
    if task.tid != info.pid:
        text += f", thread {task.tid} {task.state}"
    stack = procfs.kernel_stack(info.pid, task.tid)[:depth]
    where = f" in {' < '.join(stack)}" if stack else f" in {task.wchan}" if task.wchan else ""
    return text + where
