"""What was checked how often, what was violated, and which faults were in force then."""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.plan import Fault, Step

_MOST_EVIDENCE = 3000
_MOST = 20
"""Violations after which a run ends."""


class Invariant(StrEnum):
    """What must hold all along."""

    ONE_GENERATION = "never two generations of an engine alive"
    STRANGERS = "never a stranger signalled"
    LIVEZ = "always an answer on /livez"
    BUDGET = "restart budget kept in every window"
    BUSY = "a busy engine never restarted"
    RECOVERS = "every engine serves again after its fault"
    STAYS = "the watchdog ends only when it is killed or told to"
    MEMORY = "memory of the watchdog flat"
    DESCRIPTORS = "descriptors of the watchdog flat"
    NOTHING_ALIVE = "nothing left alive at the end"
    NOTHING_LEFT = "no mount and no file outside the folder at the end"
    HARNESS = "the harness itself works"


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold. ``at`` is seconds since the beginning."""

    invariant: Invariant
    at: float
    during: tuple[str, ...]
    evidence: str


@dataclass
class Journal:
    """Everything that is told at the end. Safe from all threads."""

    seed: int
    began: float = field(default_factory=time.monotonic)
    checks: collections.Counter[Invariant] = field(default_factory=collections.Counter)
    faults: collections.Counter[Fault] = field(default_factory=collections.Counter)
    sequence: list[tuple[float, Step]] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    notes: collections.Counter[str] = field(default_factory=collections.Counter)
    _now: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    @property
    def hopeless(self) -> bool:
        """Whether there is nothing more to learn."""
        return len(self.violations) >= _MOST

    def check(self, invariant: Invariant, holds: bool, evidence: str) -> bool:  # noqa: FBT001
        """Count one check; one that fails is printed at once, with seed and steps."""
        with self._lock:
            self.checks[invariant] += 1
            if not holds:
                during = tuple(self._now.values())
                one = Violation(invariant, self.elapsed, during, evidence[:_MOST_EVIDENCE])
                self.violations.append(one)
                sys.stderr.write(f"VIOLATION {told(one, self.seed)}\n")
                sys.stderr.flush()
        return holds

    def note(self, what: str) -> None:
        """Count something that is worth a line and violates nothing."""
        with self._lock:
            self.notes[what] += 1

    @contextlib.contextmanager
    def during(self, step: Step) -> Iterator[None]:
        """The step is in force."""
        with self._lock:
            self._now[step.track] = step.name
            self.sequence.append((self.elapsed, step))
            self.faults[step.fault] += 1
            sys.stderr.write(f"{self.elapsed:7.1f} {step.name}\n")
        yield
        with self._lock:
            sys.stderr.write(f"{self.elapsed:7.1f} {step.name}: over\n")
            self._now.pop(step.track, None)


def told(one: Violation, seed: int) -> str:
    """A violation in words."""
    during = "; ".join(one.during) or "no fault"
    return f"seed {seed}, {one.at:.1f} s, during [{during}]: {one.invariant}: {one.evidence}"
