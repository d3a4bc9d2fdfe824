"""What broke? What is wrong now, the engines first; then what was, and is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from watchdog.core.model import Finding, Incident, ProcessState, Severity, Subject, SubjectKind
from watchdog.core.state import EngineState
from watchdog.snapshot import Snapshot
from watchdog.web import deeds, saying, standing, troubles
from watchdog.web.saying import clock, who

_FAILED = frozenset({ProcessState.BACKOFF, ProcessState.GIVEN_UP, ProcessState.UNKILLABLE})
_DOUBTFUL, _JUST_OVER = 1, 3

_Line = tuple[int, str]
"""How soon it has to be read, the lowest first, and the text."""


def broken(snapshot: Snapshot) -> Iterator[str]:
    """Each in a line, the worst first; "nothing" where that is so."""
    by_hand = [
        one.name for one in snapshot.state.engines.values() if troubles.is_stopped_by_hand(one)
    ]
    lines, last = [*_now(snapshot)], troubles.last(snapshot)
    if lines:
        over = troubles.just_over(snapshot)
        more = [] if over is None else [(_JUST_OVER, f"before that {_last(snapshot, over)}")]
        yield from (text for _, text in sorted((*lines, *more), key=lambda line: line[0]))
        return
    if by_hand:
        yield f"nothing: an operator stopped {', '.join(by_hand)}"
    if last is not None and (not by_hand or last.outcome == "operator"):
        before = "before that" if by_hand else "nothing now; the last was"
        yield f"{before} {_last(snapshot, last)}"
    elif not by_hand:
        yield "nothing"


def _last(snapshot: Snapshot, incident: Incident) -> str:
    cause = f" ({saying.word(incident.cause.value)})" if incident.explanation else ""
    cause += _often(snapshot, incident)
    outcome = deeds.OUTCOMES.get(incident.outcome, incident.outcome)
    ended = f"{outcome} at {clock(snapshot, incident.resolved_at)}"
    return f"{incident.rule} on {who(snapshot, incident.subject)}{cause}, {ended} ({incident.id})"


def _often(snapshot: Snapshot, incident: Incident) -> str:
    """That it was not the only one of late."""
    engine = troubles.engine_of(snapshot, incident.subject)
    since = incident.began_at - troubles.LATELY
    ids = [] if engine is None else troubles.before(snapshot, engine, since)
    return f", the last of {len(ids)} within an hour" if len(ids) > 1 else ""


def _now(snapshot: Snapshot) -> Iterator[_Line]:
    """An engine in one line, everything else a line each."""
    incidents = troubles.going_on(snapshot)
    for one in incidents:
        yield _rank(snapshot, one), _incident(snapshot, one)
    subjects = {one.subject for one in incidents}
    for _, finding in troubles.loud(snapshot):
        if finding.subject in subjects:
            continue
        yield _rank(snapshot, finding), _finding(snapshot, finding)
        if troubles.engine_of(snapshot, finding.subject) is not None:
            subjects.add(finding.subject)
    yield from ((_DOUBTFUL, text) for text in _doubtful(snapshot, subjects))


def _rank(snapshot: Snapshot, trouble: Finding | Incident) -> int:
    critical = trouble.severity is Severity.CRITICAL
    if troubles.engine_of(snapshot, trouble.subject) is not None:
        return 0 if critical else _DOUBTFUL
    return 2 if critical else 4


def _doubtful(snapshot: Snapshot, told: Iterable[Subject]) -> Iterator[str]:
    """Engines that serve less well than they should, or may not serve at all."""
    for engine in troubles.unsure(snapshot):
        if engine.subject not in told:
            since = _unwell_since(engine)
            when = f"{clock(snapshot, since)} " if since is not None else ""
            yield f"{when}{standing.why(snapshot, engine)}"
    for engine in troubles.saturated(snapshot):
        yield f"nothing: {engine.name} is busy: {'; '.join(engine.reasons)}"
    for engine in troubles.without_counters(snapshot):
        yield f"{engine.name}: {saying.blind(snapshot, engine)}"


def _unwell_since(engine: EngineState) -> float | None:
    vitals = engine.vitals
    return vitals.health_since if vitals.health not in {"", "ok"} else vitals.failing_since


def _finding(snapshot: Snapshot, finding: Finding) -> str:
    told = f"{clock(snapshot, finding.since)} {who(snapshot, finding.subject)}: {finding.summary}"
    named = _named(finding)
    return f"{told} ({named})" if named else told


def _incident(snapshot: Snapshot, one: Incident) -> str:
    """In the words of what fires now: it may have begun as something else."""
    engine = troubles.engine_of(snapshot, one.subject)
    found = [finding for _, finding in troubles.loud(snapshot) if finding.subject == one.subject]
    summary = found[0].summary if found and found[0].rule != one.rule else one.summary
    why = _because(snapshot, one, engine, found)
    told = f"{clock(snapshot, one.began_at)} {who(snapshot, one.subject)}: {summary}"
    return f"{told} ({why})" if why else told


def _because(
    snapshot: Snapshot, one: Incident, engine: EngineState | None, found: list[Finding]
) -> str:
    if engine is not None and (engine.failed_at is not None or engine.process in _FAILED):
        return saying.cause(snapshot, engine)
    if one.explanation:
        return f"{saying.word(one.cause.value)}: {saying.short(one.explanation)}"
    return _named(found[0] if found else one)


def _named(trouble: Finding | Incident) -> str:
    """Whom or what the evidence names: of an engine the reason, else the process, the path."""
    known = dict(trouble.evidence)
    if "engine.reason" in known:
        return saying.short(str(known["engine.reason"]))
    if trouble.subject.kind is SubjectKind.ENGINE:
        return ""
    names = (value for name, value in known.items() if not name.endswith("_trouble"))
    return saying.short(next((one for one in names if isinstance(one, str) and one), ""))
