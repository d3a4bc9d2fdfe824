"""What a replay found: decisions now beside decisions then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from watchdog.core.model import Decision, Seconds, Subject

MOST = 100_000
"""Rows and findings that are kept; more are only counted."""


@dataclass(frozen=True, slots=True)
class Row:
    """One decision of now, of then, or of both about one subject by one rule at one moment.

    ``wall`` is seconds since the epoch. ``would`` says that the act did not happen, so that what
    follows of it is not known.
    """

    wall: float
    subject: Subject
    rule: str
    now: Decision | None
    then: Decision | None
    would: bool = False

    @property
    def same(self) -> bool:
        """Whether both decided the same."""
        return _core(self.now) == _core(self.then)


@dataclass(frozen=True, slots=True)
class Found:
    """A finding that fired, or was resolved, at the wall time."""

    wall: float
    subject: str
    rule: str
    severity: str
    resolved: bool = False


@dataclass(slots=True)
class Report:
    """The result. ``began`` and ``ended`` are wall times of the first and last event looked at.

    ``lost`` counts events that the recorder lost, ``bugs`` events over which the core stumbled.
    """

    rows: list[Row] = field(default_factory=list)
    findings: list[Found] = field(default_factory=list)
    began: float | None = None
    ended: float | None = None
    events: int = 0
    acts_now: int = 0
    acts_then: int = 0
    differences: int = 0
    runs: int = 0
    lost: int = 0
    bugs: int = 0
    left_out: int = 0

    @property
    def span(self) -> Seconds:
        """Seconds between the first event and the last."""
        return 0.0 if self.began is None or self.ended is None else self.ended - self.began

    def seen(self, wall: float) -> None:
        """Count an event."""
        self.events += 1
        self.began = wall if self.began is None else self.began
        self.ended = wall

    def add(self, row: Row) -> None:
        """Take a row in."""
        self.acts_now += _acts(row.now)
        self.acts_then += _acts(row.then)
        self.differences += not row.same
        if len(self.rows) < MOST:
            self.rows.append(row)
        else:
            self.left_out += 1

    def find(self, found: Found) -> None:
        """Take a finding in."""
        if len(self.findings) < MOST:
            self.findings.append(found)
        else:
            self.left_out += 1


def paired(
    now: tuple[Decision, ...], then: tuple[Decision, ...]
) -> Iterator[tuple[Decision | None, Decision | None]]:
    """Decisions of one event side by side: those of one rule on one subject belong together."""
    rest = list(then)
    for one in now:
        other = next((d for d in rest if (d.rule, d.target) == (one.rule, one.target)), None)
        if other is not None:
            rest.remove(other)
        yield one, other
    for other in rest:
        yield None, other


def _core(decision: Decision | None) -> object:
    return None if decision is None else (decision.action, decision.hold)


def _acts(decision: Decision | None) -> bool:
    return decision is not None and decision.hold is None
