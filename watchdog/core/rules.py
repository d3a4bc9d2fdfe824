"""Rules: judgement over time. A rule turns what is known of a subject into a finding.

A condition is three-valued: True fires after ``hold_for``, False clears after ``clear_for``, and
None (not known) neither fires nor resolves; what was pending must hold anew.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace

from watchdog.core.conditions import Condition, View
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
from watchdog.core.state import State, Watch

WatchKey = tuple[str, Subject]

FORGOTTEN: Seconds = 3600.0
"""A finding about the box, or one that holds restarts, ends when nobody could tell for so long."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``actions`` is a ladder: the next rung is for when the one before did not help.

    ``hold_for`` and ``clear_for`` are the configuration's ``for`` and ``clear_for``, in seconds;
    ``cooldown`` is the rest after an action of this rule. While a rule of ``inhibited_by`` fires
    about the same thing, this one neither acts nor opens an incident. ``runbook`` is the page for
    on-call, by default the one of the rule's name. ``holds`` names why restarts of the engines that
    the subject concerns are held while it fires; ``fault`` says that they cannot serve from it.
    ``evidence`` are names of a view; ``reason`` says why the rule is as it is. ``fix`` is what
    cures it, with ``{NAME}`` for what the evidence of that name says.
    """

    name: str
    subject: SubjectKind
    when: Condition
    severity: Severity
    summary: str
    hold_for: Seconds = 0.0
    clear_for: Seconds = 0.0
    cooldown: Seconds = 0.0
    actions: tuple[str, ...] = ()
    inhibited_by: tuple[str, ...] = ()
    mode: Mode = Mode.ACT
    runbook: str = ""
    evidence: tuple[str, ...] = ()
    holds: HoldReason | None = None
    fault: bool = False
    reason: str = ""
    fix: str = ""


SUBJECT = "subject"
"""In braces it stands in a fix for the name of what it is about: an engine's, a card's UUID."""
PLACE = re.compile(r"\{([^{}]*)\}")
"""What is filled in."""


def watch(rule: Rule, subject: Subject, view: View, before: Watch, at: Seconds) -> Watch:
    """One rule's watch on one subject after a look at ``at``."""
    match rule.when(view):
        case None:
            return _unknown(rule, before, at)
        case True:
            return _troubled(rule, subject, view, before, at)
        case False:
            return _clear(rule, before, at)


def _unknown(rule: Rule, before: Watch, at: Seconds) -> Watch:
    """A finding stays as it is; a duration that nobody saw begins anew.

    About the box a finding ends when nobody could tell for an hour, and so does one about an engine
    that holds its restarts: a card that was replaced is never told of again, nor is a stranger who
    left, and they must not hold restarts for ever.
    """
    if before.firing is None:
        return before if before.pending_since is None else Watch()
    since = before.unseen_since if before.unseen_since is not None else at
    if at >= since + FORGOTTEN and _ends_unseen(rule):
        return Watch()
    if (before.unseen_since, before.clear_since) == (since, None):
        return before
    return replace(before, clear_since=None, unseen_since=since)


def _ends_unseen(rule: Rule) -> bool:
    """A finding that led to a restart lives until the engine serves, however long that takes."""
    return rule.subject is not SubjectKind.ENGINE or rule.holds is not None


def _troubled(rule: Rule, subject: Subject, view: View, before: Watch, at: Seconds) -> Watch:
    settled = before.clear_since is None and before.unseen_since is None
    if before.firing is not None and before.pending_since is not None and settled:
        return before
    since = before.pending_since if before.pending_since is not None else at
    firing = before.firing
    if firing is None and at >= since + rule.hold_for:
        firing = _finding(rule, subject, _evidence(rule, view), at)
    return replace(before, pending_since=since, firing=firing, clear_since=None, unseen_since=None)


def _finding(
    rule: Rule, subject: Subject, evidence: tuple[tuple[str, Value], ...], at: Seconds
) -> Finding:
    return Finding(
        rule=rule.name,
        subject=subject,
        severity=rule.severity,
        summary=rule.summary,
        since=at,
        actions=rule.actions,
        evidence=evidence,
        runbook=rule.runbook or rule.name,
        mode=rule.mode,
        holds=rule.holds,
        fault=rule.fault,
        fix=_filled(rule.fix, subject, evidence),
    )


def _filled(fix: str, subject: Subject, evidence: tuple[tuple[str, Value], ...]) -> str:
    """What is not known stays as a name in braces: better than a command that says 0.

    All in one pass, as a value may have braces too.
    """
    known = {SUBJECT: subject.name, **dict(evidence)}
    return PLACE.sub(lambda place: _typed(known[place[1]]) if place[1] in known else place[0], fix)


def _typed(value: Value) -> str:
    """As it can be pasted into a shell: names of mounts and processes are chosen by anybody."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:g}"
    return shlex.quote(value) if isinstance(value, str) else str(value)


def _evidence(rule: Rule, view: View) -> tuple[tuple[str, Value], ...]:
    known = ((name, view.get(name)) for name in rule.evidence)
    return tuple((name, value) for name, value in known if value is not None)


def _clear(rule: Rule, before: Watch, at: Seconds) -> Watch:
    if before.firing is None:
        return Watch()
    since = before.clear_since if before.clear_since is not None else at
    if at >= since + rule.clear_for:
        return Watch()
    return replace(before, pending_since=None, clear_since=since, unseen_since=None)


def holds_since(rule: Rule, seen: Watch) -> Seconds | None:
    """Since when a finding may be acted upon, or when that will be; None while it does not hold.

    After a pause or a gap it must have held for ``for`` again.
    """
    return None if seen.pending_since is None else seen.pending_since + rule.hold_for


def next_look(rule: Rule, seen: Watch) -> tuple[Seconds, ...]:
    """The moments at which time alone will change what becomes of this watch."""
    moments = [holds_since(rule, seen)]
    if seen.firing is not None and seen.clear_since is not None:
        moments.append(seen.clear_since + rule.clear_for)
    if seen.unseen_since is not None and _ends_unseen(rule):
        moments.append(seen.unseen_since + FORGOTTEN)
    return tuple(moment for moment in moments if moment is not None)


def rewound(state: State) -> State:
    """``state`` after a pause: what was pending must hold anew, and so must what is acted upon.

    A finding goes on firing; that it holds is counted from now on.
    """
    watches = {
        key: replace(seen, pending_since=None, held=None)
        for key, seen in state.watches.items()
        if seen.firing is not None
    }
    return replace(state, watches=watches, judged=frozenset())


def restarted(state: State) -> State:
    """``state`` after a time in which nobody looked: what was seen before says nothing of now."""
    watches = {
        key: replace(seen, pending_since=None, clear_since=None, unseen_since=None, held=None)
        for key, seen in state.watches.items()
        if seen.firing is not None
    }
    return replace(state, watches=watches, judged=frozenset(), views={}, series={})
