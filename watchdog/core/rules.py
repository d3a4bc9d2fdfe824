"""Rules: judgement over time. A rule turns what is known of a subject into a finding.

A condition is three-valued: True fires after ``hold_for``, False clears after ``clear_for``, and
None (not known) changes nothing, in either direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from watchdog.core.model import (
    Finding,
    HoldReason,
    Mode,
    Seconds,
    Severity,
    Subject,
    SubjectKind,
    Value,
)
from watchdog.core.state import Watch

View = Mapping[str, Value]
WatchKey = tuple[str, Subject]


class Condition(Protocol):
    """Says whether trouble is there, given all that is known of the subject."""

    def __call__(self, view: View) -> bool | None:
        """True, False, or None when a value that it needs is not known."""
        ...


@dataclass(frozen=True, slots=True)
class OneOf:
    """True when ``sample`` has one of ``values``, unknown when it has one of ``undecided``."""

    sample: str
    values: tuple[Value, ...]
    undecided: tuple[Value, ...] = ()

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        known = view.get(self.sample)
        if known is None or known in self.undecided:
            return None
        return known in self.values


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds; one part that does not decides, whatever is unknown beside it."""

    parts: tuple[Condition, ...]

    def __call__(self, view: View) -> bool | None:
        """See ``Condition``."""
        answers = [part(view) for part in self.parts]
        if False in answers:
            return False
        return None if None in answers else True


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``actions`` is a ladder: the next rung is for when the one before did not help.

    ``hold_for`` and ``clear_for`` are the configuration's ``for`` and ``clear_for``, in seconds.
    """

    name: str
    subject: SubjectKind
    when: Condition
    severity: Severity
    summary: str
    hold_for: Seconds = 0.0
    clear_for: Seconds = 0.0
    actions: tuple[str, ...] = ()
    mode: Mode = Mode.ACT
    runbook: str = ""
    evidence: tuple[str, ...] = ()


_IN_TRANSITION = ("starting", "stopping", "unkillable")
"""Neither sick nor healed: a finding that led to a restart lives until the engine serves again."""

_WANTED = OneOf("wanted", (True,))

DEFAULT_RULES = (
    Rule(
        name="engine-down",
        subject=SubjectKind.ENGINE,
        when=All((OneOf("process", ("stopped",)), _WANTED)),
        severity=Severity.INFO,
        summary="the engine should run and has not been started",
        actions=("start_engine",),
        runbook="engine-down",
    ),
    Rule(
        name="engine-unkillable",
        subject=SubjectKind.ENGINE,
        when=OneOf("process", ("unkillable",), ("stopping", "starting")),
        severity=Severity.CRITICAL,
        summary="processes of the engine survive SIGKILL; nothing is started on top of them",
        runbook="engine-unkillable",
        evidence=("reason",),
    ),
    Rule(
        name="engine-dead",
        subject=SubjectKind.ENGINE,
        when=All((OneOf("verdict", ("dead", "given_up"), _IN_TRANSITION), _WANTED)),
        severity=Severity.CRITICAL,
        summary="the engine is dead: its processes are gone, or cannot serve any more",
        actions=("restart_engine",),
        runbook="engine-dead",
        evidence=("verdict", "cause", "reason"),
    ),
    Rule(
        name="engine-stalled",
        subject=SubjectKind.ENGINE,
        when=All((OneOf("verdict", ("stalled",), _IN_TRANSITION), _WANTED)),
        severity=Severity.CRITICAL,
        summary="the engine lives but generates no tokens",
        actions=("restart_engine",),
        runbook="engine-stalled",
        evidence=("verdict", "cause", "reason"),
    ),
)


def watch(rule: Rule, subject: Subject, view: View, before: Watch, at: Seconds) -> Watch:
    """One rule's watch on one subject after a look at ``at``."""
    match rule.when(view):
        case None:
            return before
        case True:
            return _troubled(rule, subject, view, before, at)
        case False:
            return _clear(rule, before, at)


def _troubled(rule: Rule, subject: Subject, view: View, before: Watch, at: Seconds) -> Watch:
    since = before.pending_since if before.pending_since is not None else at
    firing = before.firing
    if firing is None and at - since >= rule.hold_for:
        firing = Finding(
            rule=rule.name,
            subject=subject,
            severity=rule.severity,
            summary=rule.summary,
            since=at,
            actions=rule.actions,
            evidence=tuple((name, view[name]) for name in rule.evidence if name in view),
            runbook=rule.runbook,
            mode=rule.mode,
        )
    return replace(before, pending_since=since, firing=firing, clear_since=None)


def _clear(rule: Rule, before: Watch, at: Seconds) -> Watch:
    if before.firing is None:
        return Watch()
    since = before.clear_since if before.clear_since is not None else at
    if at - since >= rule.clear_for:
        return Watch()
    return replace(before, pending_since=None, clear_since=since)


def next_look(rule: Rule, seen: Watch) -> Seconds | None:
    """When time alone will make this watch fire or clear; None when it will not."""
    if seen.firing is not None:
        return None if seen.clear_since is None else seen.clear_since + rule.clear_for
    return None if seen.pending_since is None else seen.pending_since + rule.hold_for


def rewound(watches: Mapping[WatchKey, Watch]) -> dict[WatchKey, Watch]:
    """Watches after a pause: what it held back, and what was pending, must hold anew."""
    return {
        key: replace(seen, pending_since=None, firing=None, held=None) if _held_back(seen) else seen
        for key, seen in watches.items()
    }


def _held_back(seen: Watch) -> bool:
    return seen.firing is None or seen.held is HoldReason.PAUSED
