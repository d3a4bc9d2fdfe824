"""Incidents: one story per subject from the first firing finding to the last one cleared."""

from __future__ import annotations

from dataclasses import replace

from watchdog.core import cards
from watchdog.core.model import (
    SERVING,
    Cause,
    Decision,
    Finding,
    Incident,
    ProcessState,
    Record,
    Seconds,
    Severity,
    Subject,
)
from watchdog.core.state import EngineState, State, StoppedBy

_KEPT = 50
"""Closed incidents that stay in memory; the store keeps more."""


def open_on(state: State, subject: Subject) -> Incident | None:
    """The open incident of ``subject``, if there is one."""
    for incident in state.incidents:
        if incident.subject == subject and incident.resolved_at is None:
            return incident
    return None


_FAILED = frozenset({ProcessState.BACKOFF, ProcessState.GIVEN_UP, ProcessState.UNKILLABLE})


def opened(state: State, finding: Finding, at: Seconds) -> tuple[State, tuple[Record, ...]]:
    """``state`` with an incident for ``finding``, unless one is open or it is only information."""
    if finding.severity is Severity.INFO or open_on(state, finding.subject) is not None:
        return state, ()
    engine = _engine(state, finding.subject)
    began = engine.began_at if engine is not None and engine.began_at is not None else at
    failed = engine if engine is not None and _ails(engine) else None
    incident = Incident(
        id=f"inc-{state.incident_serial + 1:06d}",
        rule=finding.rule,
        subject=finding.subject,
        severity=finding.severity,
        summary=finding.summary,
        opened_at=at,
        began_at=began,
        cause=failed.cause if failed is not None else Cause.UNKNOWN,
        explanation=failed.explanation if failed is not None else "",
        evidence=finding.evidence,
        fix=finding.fix,
    )
    kept = tuple(i for i in state.incidents[:-_KEPT] if i.resolved_at is None)
    kept = (*kept, *state.incidents[-_KEPT:], incident)
    state = replace(state, incidents=kept, incident_serial=state.incident_serial + 1)
    return state, (Record("incident.opened", "error", _keys(state, incident)),)


def _ails(engine: EngineState) -> bool:
    """Whether the last failure is what is dealt with, and not an old story."""
    return engine.failed_at is not None or engine.process in _FAILED


def decided(state: State, decision: Decision) -> State:
    """``state`` with a decision written into the incident of its target: when the first was made.

    A hold is one, too: what keeps us from acting is no part of the time in which trouble is seen.
    """
    incident = open_on(state, decision.target)
    if incident is None:
        return state
    first = incident.decided_at if incident.decided_at is not None else decision.at
    actions = incident.actions
    if decision.hold is None:
        actions = (*actions, decision.action)
    elif incident.decided_at is not None:
        return state
    return _swap(state, replace(incident, decided_at=first, actions=actions))


def explained(state: State, subject: Subject, cause: Cause, explanation: str) -> State:
    """``state`` with a cause that was found later; the open incident, if any, gets it."""
    incident = open_on(state, subject)
    if incident is None:
        return state
    return _swap(state, replace(incident, cause=cause, explanation=explanation))


def resolved(state: State, subject: Subject, at: Seconds) -> tuple[State, tuple[Record, ...]]:
    """``state`` with the incident of ``subject`` closed: nothing about it fires any more."""
    incident = open_on(state, subject)
    if incident is None:
        return state, ()
    incident = replace(
        incident, resolved_at=at, outcome=_outcome(incident, _engine(state, subject))
    )
    times: tuple[tuple[str, object], ...] = (
        ("outcome", incident.outcome),
        ("detected_after_s", _span(incident.began_at, incident.decided_at or incident.opened_at)),
        ("recovered_after_s", _span(incident.decided_at or incident.opened_at, at)),
        ("actions", list(incident.actions)),
    )
    record = Record("incident.resolved", "info", _keys(state, incident) + times)
    return _swap(state, incident), (record,)


def _outcome(incident: Incident, engine: EngineState | None) -> str:
    if engine is None:
        return "cleared"
    if engine.verdict in SERVING:
        by_hand = engine.start_cause is Cause.OPERATOR and incident.actions
        return "operator" if by_hand else "recovered" if incident.actions else "cleared"
    if engine.history.stopped_by is StoppedBy.RULE:
        return "given_up"
    return "cleared" if engine.history.wanted else "operator"


def _keys(state: State, incident: Incident) -> tuple[tuple[str, object], ...]:
    return (
        ("incident", incident.id),
        ("rule", incident.rule),
        ("severity", incident.severity.value),
        ("subject", str(incident.subject)),
        ("engine", ",".join(cards.concerned(state, incident.subject))),
        ("cause", incident.cause.value),
        ("explanation", incident.explanation),
    )


def _span(begin: Seconds, end: Seconds) -> float:
    return round(max(end - begin, 0.0), 3)


def _engine(state: State, subject: Subject) -> EngineState | None:
    engine = state.engines.get(subject.name)
    return engine if engine is not None and engine.subject == subject else None


def _swap(state: State, incident: Incident) -> State:
    swapped = tuple(incident if old.id == incident.id else old for old in state.incidents)
    return replace(state, incidents=swapped)
