"""Watches /proc all along: which generations of which engine live, and what the watchdog needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.chaos.journal import Invariant, Journal
from tests.chaos.sightings import (
    Sighting,
    command,
    descriptors,
    environment,
    everyone,
    look,
    resident,
    since_boot,
)

RUN = "CHAOS_RUN"
_GENERATION = "VLLM_WATCHDOG_GENERATION"
_ENGINE = "VLLM_WATCHDOG_ENGINE"
_PERIOD = 0.08
_YOUNG = 3.0
"""Seconds in which a process may still become somebody else: between its fork and its exec."""
_GONE = 5.0
"""Seconds after which the number of an empty session may be another's."""
_VITALS = 2.0
_SETTLED = 15.0
"""Seconds of life after which a watchdog has imported what it needs."""

Key = tuple[int, float]
Mark = tuple[str, str]
"""Engine and generation."""


@dataclass(frozen=True, slots=True)
class Vital:
    """What one watchdog needed at one moment. ``at`` is seconds since the beginning."""

    at: float
    pid: int
    resident: int
    descriptors: int


@dataclass
class Observer:
    """Believes nothing but /proc. ``run`` is in the environment of all that this run started."""

    journal: Journal
    run: str
    watchdog: Callable[[], int | None]
    born: dict[Mark, float] = field(default_factory=dict)
    places: set[str] = field(default_factory=set)
    """Where the engines had their temporary files."""
    vitals: list[Vital] = field(default_factory=list)
    look_at: Callable[[], Iterable[Sighting]] = everyone
    _marks: dict[Key, Mark | None] = field(default_factory=dict)
    _sessions: dict[int, Mark] = field(default_factory=dict)
    _seen_at: dict[int, float] = field(default_factory=dict)
    _told: set[frozenset[Mark]] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on."""
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def living(self) -> dict[Mark, list[Sighting]]:
        """Who lives of each generation, by one look at everybody."""
        with self._lock:
            found: dict[Mark, list[Sighting]] = {}
            present = {one.pid: one for one in self.look_at()}
            self._forget(present)
            for one in sorted(present.values(), key=lambda one: one.start):
                mark = self._mark(one, present)
                if mark is None:
                    continue
                self.born.setdefault(mark, one.start)
                if one.lives:
                    found.setdefault(mark, []).append(one)
            return found

    def of(self, engine: str) -> dict[str, list[Sighting]]:
        """Who lives of one engine, by generation."""
        return {mark[1]: found for mark, found in self.living().items() if mark[0] == engine}

    def audit(self) -> None:
        """One look, and one check of every engine that somebody of lives."""
        by_engine: dict[str, dict[Mark, list[Sighting]]] = {}
        for mark, found in self.living().items():
            by_engine.setdefault(mark[0], {})[mark] = found
        for engine, generations in by_engine.items():
            again = confirmed(generations) if len(generations) > 1 else {}
            pair = frozenset(again)
            if pair in self._told:
                continue
            fine = len(again) < 2
            evidence = "" if fine else f"{engine}: {described(again)}"
            if not self.journal.check(Invariant.ONE_GENERATION, fine, evidence):
                self._told.add(pair)

    def _watch(self) -> None:
        due = 0.0
        while not self._done.wait(_PERIOD):
            try:
                self.audit()
                if time.monotonic() >= due:
                    due = time.monotonic() + _VITALS
                    self._vitals()
            except Exception as error:  # noqa: BLE001 - an observer that died would see nothing
                self.journal.check(Invariant.HARNESS, False, f"observer: {error!r}")  # noqa: FBT003

    def _vitals(self) -> None:
        pid = self.watchdog()
        who = look(pid) if pid else None
        if who is not None and who.lives and since_boot() - who.start > _SETTLED:
            needs = resident(who.pid), descriptors(who.pid)
            if all(needs):
                self.vitals.append(Vital(self.journal.elapsed, who.pid, *needs))

    def _mark(self, one: Sighting, present: dict[int, Sighting]) -> Mark | None:
        if one.key not in self._marks:
            mark = self._found(one, present)
            if mark is None and since_boot() - one.start < _YOUNG:
                return None
            self._marks[one.key] = mark
        return self._marks[one.key]

    def _found(self, one: Sighting, present: dict[int, Sighting]) -> Mark | None:
        """By its own environment, its session, or its parent, who may have lost theirs."""
        told = environment(one.pid)
        if told:
            if told.get(RUN) != self.run or _GENERATION not in told:
                return None
            mark = told.get(_ENGINE, ""), told[_GENERATION]
            self._sessions[one.session] = mark
            self.places.add(told.get("TMPDIR", ""))
            self._seen_at[one.session] = time.monotonic()
            return mark
        parent = present.get(one.parent)
        inherited = self._marks.get(parent.key) if parent is not None else None
        return self._sessions.get(one.session) or inherited

    def _forget(self, present: dict[int, Sighting]) -> None:
        now = time.monotonic()
        sessions = {one.session for one in present.values()}
        self._seen_at |= dict.fromkeys(self._sessions.keys() & sessions, now)
        for number in [one for one, at in self._seen_at.items() if now - at > _GONE]:
            del self._seen_at[number]
            self._sessions.pop(number, None)
        keys = {one.key for one in present.values()}
        for key in [key for key in self._marks if key not in keys]:
            del self._marks[key]


def confirmed(generations: dict[Mark, list[Sighting]]) -> dict[Mark, list[Sighting]]:
    """Those that still live now that all have been seen: they did so at one moment."""
    found = {}
    for mark, members in generations.items():
        again = [now for one in members if (now := look(one.pid)) and now.key == one.key]
        if alive := [one for one in again if one.lives]:
            found[mark] = alive
    return found


def described(generations: dict[Mark, list[Sighting]]) -> str:
    """Generations with their processes, in words."""
    return "; ".join(
        f"generation {mark[1]}: "
        + ", ".join(f"{one.pid} {one.state} ({command(one.pid)[:80]})" for one in members)
        for mark, members in generations.items()
    )
