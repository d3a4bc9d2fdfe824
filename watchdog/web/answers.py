"""Is it serving, what broke, what did the watchdog do, what must I do? Each in a line or two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from watchdog.core.model import SERVING, Finding, Incident, ProcessState, Verdict
from watchdog.core.state import EngineState
from watchdog.snapshot import Snapshot
from watchdog.web import deeds, saying, tasks, troubles
from watchdog.web.pasted import pasted
from watchdog.web.saying import clock, who
from watchdog.web.tasks import Todo

_MOST = 4
"""Lines an answer: it is read in one look."""
_FAILED = frozenset({ProcessState.BACKOFF, ProcessState.GIVEN_UP, ProcessState.UNKILLABLE})


class Level(StrEnum):
    """How the first answer looks from afar."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Answers:
    """Each answer is short lines of plain text. ``rest`` is said when there is nothing to do."""

    level: Level
    serving: str
    broke: tuple[str, ...]
    did: tuple[str, ...]
    todo: tuple[Todo, ...]
    rest: str


def answered(snapshot: Snapshot) -> Answers:
    """The four answers."""
    level, serving = _serving(snapshot)
    todo = [
        replace(one, text=pasted(one.text, snapshot.state_dir))
        for one in dict.fromkeys(tasks.tasks(snapshot))
    ]
    more = [Todo(f"and {len(todo) - _MOST} more: see the findings")] if len(todo) > _MOST else []
    return Answers(
        level,
        serving,
        _few(_broke(snapshot)),
        _few(deeds.deeds(snapshot)),
        (*todo[:_MOST], *more),
        tasks.rest(snapshot),
    )


def _few(lines: Iterable[str]) -> tuple[str, ...]:
    found = [*lines]
    more = (f"and {len(found) - _MOST} more",) if len(found) > _MOST else ()
    return (*found[:_MOST], *more)


def body(found: Answers) -> dict[str, object]:
    """The same for JSON."""
    return {
        "level": found.level.value,
        "serving": found.serving,
        "broke": list(found.broke),
        "did": list(found.did),
        "todo": [{"text": one.text, "runbook": one.runbook} for one in found.todo],
        "rest": found.rest,
    }


def _serving(snapshot: Snapshot) -> tuple[Level, str]:
    engines = snapshot.state.engines.values()
    wanted = [one for one in engines if one.history.wanted]
    if not wanted:
        return Level.WARNING, f"no: {_stopped(snapshot)}" if engines else "no: none is configured"
    down = [one for one in wanted if one.verdict not in SERVING]
    up = len(wanted) - len(down)
    if not down:
        return Level.GOOD, f"yes: {_which(wanted)}"
    told = "; ".join(_why(snapshot, one) for one in down[:_MOST])
    if up:
        return Level.WARNING, f"partly: {up} of {len(wanted)} engines; {told}"
    if all(one.verdict is Verdict.DEGRADED for one in down):
        return Level.WARNING, f"not surely: {told}"
    fresh = all(_starts_first(snapshot, one) for one in down)
    return (Level.WARNING, f"not yet: {told}") if fresh else (Level.BAD, f"no: {told}")


def _starts_first(snapshot: Snapshot, engine: EngineState) -> bool:
    """Whether it starts, and not because something had failed."""
    fresh = engine.verdict is Verdict.STARTING and engine.failed_at is None
    return fresh and not _ails(snapshot, engine)


def _ails(snapshot: Snapshot, engine: EngineState) -> bool:
    return any(one.subject == engine.subject for one in troubles.going_on(snapshot))


def _stopped(snapshot: Snapshot) -> str:
    by_hand = [one for one in snapshot.state.engines.values() if troubles.is_stopped_by_hand(one)]
    if not by_hand:
        return "stopped by design"
    told = [
        f"{one.name} was stopped by an operator at {clock(snapshot, one.since)}"
        if one.process is ProcessState.STOPPED
        else f"{one.name} is being stopped by an operator"
        for one in by_hand[:_MOST]
    ]
    return "; ".join(told)


def _which(engines: list[EngineState]) -> str:
    busy = [one for one in engines if one.verdict is Verdict.BUSY and one.reasons]
    told = "; ".join(f"{one.name} is busy: {one.reasons[0]}" for one in busy[:_MOST])
    if len(engines) == 1:
        return told or f"{engines[0].name} is {engines[0].verdict.value}"
    return f"all {len(engines)} engines" + (f"; {told}" if told else "")


def _why(snapshot: Snapshot, engine: EngineState) -> str:
    waits = snapshot.waiting.get(engine.name)
    due = saying.next_try(snapshot, engine)
    given_up = troubles.is_given_up(engine)
    reasons = [
        *([saying.cause(snapshot, engine)] if given_up else map(saying.short, engine.reasons[:1])),
        *([f"waits for {waits}"] if waits else []),
        *([f"the next try is at {due}"] if due else []),
        *([seen] if (seen := _flows(snapshot, engine)) else []),
    ]
    said = f"{engine.name} {_is(snapshot, engine)}"
    return f"{said}: {', '.join(reasons)}" if reasons else said


def _is(snapshot: Snapshot, engine: EngineState) -> str:
    if troubles.is_awaited(snapshot, engine):
        return "is not there"
    if engine.in_flight == "restart_engine":
        return "is being restarted"
    if troubles.is_given_up(engine):
        return "is given up"
    if engine.verdict is Verdict.STARTING and _ails(snapshot, engine):
        return "is starting again"
    return f"is {saying.word(engine.verdict.value)}"


def _flows(snapshot: Snapshot, engine: EngineState) -> str:
    """Of an engine that may or may not serve: whether tokens were seen lately."""
    seen = engine.vitals.progressed_at
    if engine.verdict is not Verdict.DEGRADED or seen is None:
        return ""
    lately = snapshot.at - seen <= engine.settings.fusion.stale_after
    return "though tokens flow" if lately else f"the last token was seen at {clock(snapshot, seen)}"


def _broke(snapshot: Snapshot) -> Iterator[str]:
    lines = [*_now(snapshot)]
    yield from lines
    if lines:
        return
    by_hand = [
        one.name for one in snapshot.state.engines.values() if troubles.is_stopped_by_hand(one)
    ]
    last = troubles.last(snapshot)
    if by_hand:
        yield f"nothing: an operator stopped {', '.join(by_hand)}"
    if last is not None and (not by_hand or last.outcome == "operator"):
        cause = f" ({last.cause.value})" if last.explanation else ""
        outcome = deeds.OUTCOMES.get(last.outcome, last.outcome)
        ended = f"{outcome} at {clock(snapshot, last.resolved_at)}"
        name = who(snapshot, last.subject)
        before = "before that" if by_hand else "nothing now; the last was"
        yield f"{before} {last.rule} on {name}{cause}, {ended} ({last.id})"
    elif not by_hand:
        yield "nothing"


def _now(snapshot: Snapshot) -> Iterator[str]:
    """What is wrong at present: an engine in one line, everything else a line each."""
    incidents = troubles.going_on(snapshot)
    for one in incidents:
        yield _incident(snapshot, one)
    subjects = {one.subject for one in incidents}
    for _, finding in troubles.loud(snapshot):
        if finding.subject in subjects:
            continue
        name = who(snapshot, finding.subject)
        yield f"{clock(snapshot, finding.since)} {name}: {finding.summary}"
        if troubles.engine_of(snapshot, finding.subject) is not None:
            subjects.add(finding.subject)
    for engine in troubles.unsure(snapshot):
        if engine.subject not in subjects:
            since = _unwell_since(engine)
            when = f"{clock(snapshot, since)} " if since is not None else ""
            yield f"{when}{_why(snapshot, engine)}"
    for engine in troubles.saturated(snapshot):
        yield f"nothing: {engine.name} is busy: {'; '.join(engine.reasons)}"
    for engine in troubles.without_counters(snapshot):
        yield f"{engine.name}: {saying.blind(snapshot, engine)}"


def _unwell_since(engine: EngineState) -> float | None:
    vitals = engine.vitals
    return vitals.health_since if vitals.health not in {"", "ok"} else vitals.failing_since


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
        return f"{one.cause.value}: {saying.short(one.explanation)}"
    evidence = dict(found[0].evidence if found else one.evidence)
    return saying.short(str(evidence.get("engine.reason", "")))
