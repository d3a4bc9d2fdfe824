"""The set: every process that belongs to one generation of an engine, as long as one lives.

A member is whoever was recorded (pid and start ticks), sits in the generation's own cgroup or in
the leader's session, descends from a member, carries the generation id in its environment, or was
left to us by a member. Environments are a hint only: vLLM's children overwrite theirs. So members
are recorded while they can be traced.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

from watchdog import procfs
from watchdog.contracts import ProcessInfo
from watchdog.supervisor.cgroup import Cgroup
from watchdog.supervisor.household import Household

_SEARCH_SHARE = 200
"""Rest so many times as long as the search took: eight workers have thousands of threads."""
GENERATION_VARIABLE = "VLLM_WATCHDOG_GENERATION"

Key = tuple[int, int]
"""A pid and its start ticks."""


def key(info: ProcessInfo) -> Key:
    """What tells a process from a later one with its pid."""
    return info.pid, info.start_ticks


class MemberTable:
    """Everyone ever seen of one generation; refresh finds the newcomers. Safe from any thread.

    ``leader`` is None when it was never recorded (we died between plan and spawn): then the
    environment alone leads to the set. ``spawned`` says that the leader is a child of ours: only
    then can an orphan of ours that nothing else explains be its, and only while no other
    generation lives and no hook can have left it. ``cgroup`` is to be set when the generation has
    one of its own: an extra mark, for a process may have left the tree before it was moved there.
    """

    def __init__(
        self,
        generation: str,
        leader: Key | None,
        household: Household,
        *,
        recorded: Iterable[Key] = (),
        spawned: bool = True,
    ) -> None:
        self.cgroup: Cgroup | None = None
        self.generation = generation
        self.leader = leader
        self.lost: tuple[str, ...] = ()
        self._household = household
        self._known = {*recorded, *((leader,) if leader is not None else ())}
        self._pids_ever = {pid for pid, _ in self._known}
        self._living: dict[Key, ProcessInfo] = {}
        self._spawned = spawned
        self._search_due = 0.0
        self._lock = threading.RLock()

    def known(self) -> tuple[Key, ...]:
        """The members that lived at the last refresh; all recorded ones before the first."""
        with self._lock:
            return tuple(self._known)

    def pids_ever(self) -> frozenset[int]:
        """Every pid that a member ever had: what the kernel's log may name."""
        with self._lock:
            return frozenset(self._pids_ever)

    def refresh(self, *, full: bool = False, spare: bool = False) -> tuple[ProcessInfo, ...]:
        """Look again; the living members, the leader first.

        ``full`` scans all processes. Otherwise only children of members and of ours are read,
        which costs in proportion to the threads of the set: with ``spare`` newcomers are looked
        for only as often as keeps that cost below half a percent of one core.
        """
        with self._lock:
            found = self._by_scan() if full else self._by_descent(spare=spare)
            self._note_lost(found)
            self._living = found
            self._known = set(found)
            self._pids_ever.update(pid for pid, _ in found)
        return tuple(sorted(found.values(), key=lambda info: (key(info) != self.leader, info.pid)))

    def _note_lost(self, found: dict[Key, ProcessInfo]) -> None:
        """Names of members that went before the leader did: who died first explains the exit."""
        if self.leader in found:
            went = (info.comm for k, info in self._living.items() if k not in found)
            self.lost = (*self.lost, *went)[-16:]

    # --- cheap --------------------------------------------------------------------------------

    def _by_descent(self, *, spare: bool) -> dict[Key, ProcessInfo]:
        found = {k: info for k in self._known if (info := self._at(k)) is not None}
        began = time.monotonic()
        if spare and began < self._search_due:
            return found
        self._search(found)
        self._search_due = began + (time.monotonic() - began) * _SEARCH_SHARE
        return found

    def _search(self, found: dict[Key, ProcessInfo]) -> None:
        orphans = [info for info in self._household.orphans() if procfs.lives(info)]
        self._adopt_orphans(found, orphans)
        self._add_inmates(found)
        frontier = list(found)
        while frontier:
            for pid in procfs.children(frontier.pop()[0]):
                info = procfs.stat(pid)
                if info is not None and procfs.lives(info) and key(info) not in found:
                    found[key(info)] = info
                    frontier.append(key(info))

    def _add_inmates(self, found: dict[Key, ProcessInfo]) -> None:
        """Whoever sits in the generation's own cgroup."""
        for pid in self.cgroup.pids() if self.cgroup is not None else ():
            info = procfs.stat(pid)
            if info is not None and procfs.lives(info) and pid != os.getpid():
                found.setdefault(key(info), info)

    def _at(self, known: Key) -> ProcessInfo | None:
        info = procfs.stat(known[0])
        return info if info is not None and key(info) == known and procfs.lives(info) else None

    # --- full ---------------------------------------------------------------------------------

    def _by_scan(self) -> dict[Key, ProcessInfo]:
        everyone = procfs.scan()
        living = [info for info in everyone if procfs.lives(info)]
        found = {key(info): info for info in living if key(info) in self._known}
        session = self._session(everyone, found)
        for info in living:
            if key(info) not in found and self._bears_mark(info, session):
                found[key(info)] = info
        orphans = [info for info in self._household.orphans() if procfs.lives(info)]
        self._adopt_orphans(found, orphans)
        self._add_inmates(found)
        _add_descendants(found, living)
        return found

    def _session(
        self, everyone: Iterable[ProcessInfo], found: dict[Key, ProcessInfo]
    ) -> int | None:
        """The leader's session while its number is certainly still the leader's.

        The kernel keeps a pid from being reused while it names a session with members: so it is
        ours as long as the leader (a zombie will do) or one recorded member in it is there.
        """
        if self.leader is None:
            return None
        number = self.leader[0]
        kept = any(key(info) == self.leader for info in everyone)
        kept = kept or any(info.session == number for info in found.values())
        return number if kept else None

    def _bears_mark(self, info: ProcessInfo, session: int | None) -> bool:
        if info.pid == os.getpid():
            return False
        if info.session == session:
            return True
        if self.leader is not None and info.start_ticks < self.leader[1]:
            return False  # older than the leader: saves reading most environments
        return procfs.environ_value(info.pid, GENERATION_VARIABLE) == self.generation

    # --- orphans ------------------------------------------------------------------------------

    def _adopt_orphans(self, found: dict[Key, ProcessInfo], orphans: list[ProcessInfo]) -> None:
        for info in orphans:
            if key(info) not in found and self._left_by_us(info):
                found[key(info)] = info

    def _left_by_us(self, info: ProcessInfo) -> bool:
        """Whether an unexplained child of ours was left by a member of this generation."""
        if self.leader is None or not self._spawned or info.start_ticks < self.leader[1]:
            return False
        named = procfs.environ_value(info.pid, GENERATION_VARIABLE)
        if named is not None:
            return named == self.generation
        if info.session in self._pids_ever:
            return True
        return self._household.comes_from(self.generation, info.start_ticks)


def _add_descendants(found: dict[Key, ProcessInfo], living: list[ProcessInfo]) -> None:
    below: dict[int, list[ProcessInfo]] = {}
    for info in living:
        below.setdefault(info.ppid, []).append(info)
    frontier = [pid for pid, _ in found]
    while frontier:
        for info in below.get(frontier.pop(), ()):
            if key(info) not in found:
                found[key(info)] = info
                frontier.append(info.pid)
