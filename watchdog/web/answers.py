"""Is it serving, what broke, what did the watchdog do, what must I do? Each in a line or two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from watchdog.core.engine import firing
from watchdog.core.model import (
    SERVING,
    Entry,
    Finding,
    HoldReason,
    Incident,
    Mode,
    ProcessState,
    Seconds,
    Severity,
    Verdict,
)
from watchdog.core.state import EngineState, StoppedBy
from watchdog.snapshot import Snapshot

_MOST = 4
"""Lines an answer: it is read in one look."""
_REMEMBERED: Seconds = 86400.0
"""After a day nobody asks what broke."""
_SAME_DAY: Seconds = 43200.0
_DEEDS: Mapping[str, str] = {
    "decision.act": "decided",
    "decision.hold": "held back",
    "action.finished": "done",
    "engine.started": "started",
    "engine.ready": "serves",
    "engine.adopted": "adopted",
    "breaker.opened": "gave up",
}
"""What is told of a story here, and the word for it."""
_WAITED_FOR = frozenset(
    {
        None,
        HoldReason.COOLDOWN,
        HoldReason.BACKOFF,
        HoldReason.IN_FLIGHT,
        HoldReason.STALE,
        HoldReason.INHIBITED,
    }
)
"""Holds that end by themselves, or with another finding."""


class Level(StrEnum):
    """How the first answer looks from afar."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Todo:
    """One thing to do. ``runbook`` is the page that says more; empty where there is none."""

    text: str
    runbook: str = ""


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
    return Answers(
        level,
        serving,
        tuple(islice(_broke(snapshot), _MOST)),
        tuple(islice(_did(snapshot), _MOST)),
        tuple(islice(dict.fromkeys(_todo(snapshot)), _MOST)),
        "nothing yet: the watchdog is at it" if _open(snapshot) else "nothing",
    )


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
        who = "its operator" if _by_hand(snapshot) else "design"
        return Level.WARNING, f"no: stopped by {who}" if engines else "no: no engine is configured"
    down = [one for one in wanted if one.verdict not in SERVING]
    up = len(wanted) - len(down)
    if not down:
        return Level.GOOD, f"yes: {_which(wanted)}"
    told = "; ".join(_why(snapshot, one) for one in down[:_MOST])
    if up:
        return Level.WARNING, f"partly: {up} of {len(wanted)} engines; {told}"
    fresh = all(one.verdict is Verdict.STARTING and one.failed_at is None for one in down)
    return (Level.WARNING, f"not yet: {told}") if fresh else (Level.BAD, f"no: {told}")


def _by_hand(snapshot: Snapshot) -> bool:
    engines = snapshot.state.engines.values()
    return any(one.history.stopped_by is StoppedBy.OPERATOR for one in engines)


def _which(engines: list[EngineState]) -> str:
    if len(engines) == 1:
        return f"{engines[0].name} is {engines[0].verdict.value}"
    return f"all {len(engines)} engines"


def _why(snapshot: Snapshot, engine: EngineState) -> str:
    waits = snapshot.waiting.get(engine.name)
    reasons = [*engine.reasons[:1], *([f"waits for {waits}"] if waits else [])]
    said = f"{engine.name} is {engine.verdict.value}"
    return f"{said}: {', '.join(reasons)}" if reasons else said


def _open(snapshot: Snapshot) -> list[Incident]:
    """The newest first, the critical before the others."""
    going_on = [one for one in reversed(snapshot.state.incidents) if one.resolved_at is None]
    return sorted(going_on, key=lambda one: one.severity is not Severity.CRITICAL)


def _last(snapshot: Snapshot) -> Incident | None:
    """The incident that ended last, if that was within a day."""
    ended = [
        (one.resolved_at, one)
        for one in snapshot.state.incidents
        if one.resolved_at is not None and snapshot.at - one.resolved_at < _REMEMBERED
    ]
    return max(ended, key=lambda pair: pair[0])[1] if ended else None


def _broke(snapshot: Snapshot) -> Iterator[str]:
    going_on = _open(snapshot)
    for one in going_on:
        cause = f" ({one.cause.value}: {one.explanation})" if one.explanation else ""
        yield f"{_clock(snapshot, one.began_at)} {one.subject}: {one.summary}{cause}"
    told = {one.subject for one in going_on}
    others = [one for one in _loud(snapshot) if one.subject not in told]
    for finding in others:
        yield f"{_clock(snapshot, finding.since)} {finding.subject}: {finding.summary}"
    if going_on or others:
        return
    last = _last(snapshot)
    if last is None:
        yield "nothing"
        return
    cause = f" ({last.cause.value})" if last.explanation else ""
    ended = f"{last.outcome} at {_clock(snapshot, last.resolved_at)}"
    yield f"nothing now; the last was {last.rule} on {last.subject}{cause}, {ended} ({last.id})"


def _loud(snapshot: Snapshot) -> list[Finding]:
    found = (finding for _, finding in firing(snapshot.state))
    return [finding for finding in found if finding.severity is not Severity.INFO]


def _did(snapshot: Snapshot) -> Iterator[str]:
    restraint = _restraint(snapshot)
    if restraint:
        yield restraint
    going_on = _open(snapshot)
    deeds = [
        (entry.at, entry) for one in going_on for entry in one.timeline if entry.event in _DEEDS
    ]
    latest = sorted(deeds, key=lambda pair: pair[0])[-_MOST + bool(restraint) :]
    for at, entry in latest:
        yield f"{_clock(snapshot, at)} {_deed(entry)}"
    if latest or restraint:
        return
    last = _last(snapshot)
    if going_on or _loud(snapshot):
        yield "told, and nothing else: for this it restarts nothing"
    elif last is None:
        yield "nothing: there was no need"
    else:
        yield f"{last.id}: {_ending(last)}"


def _restraint(snapshot: Snapshot) -> str:
    pause = snapshot.state.pause
    if snapshot.state.mode is not Mode.ACT:
        return "only looks: observe mode"
    return "" if pause is None else f"only looks: paused by {pause.owner}: {pause.reason}"


def _deed(entry: Entry) -> str:
    """Why is told where it says what broke; of what was held back it is the point."""
    acts = entry.event == "decision.act"
    return f"{_DEEDS[entry.event]}: {entry.text.partition(': ')[0] if acts else entry.text}"


def _ending(incident: Incident) -> str:
    if not incident.actions:
        return "nothing: it cleared by itself"
    begin = incident.decided_at if incident.decided_at is not None else incident.opened_at
    after = (incident.resolved_at or begin) - begin
    return f"{', '.join(dict.fromkeys(incident.actions))}; {incident.outcome} after {after:.1f} s"


def _todo(snapshot: Snapshot) -> Iterator[Todo]:
    for engine in snapshot.state.engines.values():
        known = [*_for_engine(engine)]
        advice = _advice(snapshot, engine) if known else ""
        yield from [Todo(f"{engine.name}: {advice}", known[0].runbook)] if advice else []
        yield from known
    found = [one for one in firing(snapshot.state) if one[1].severity is not Severity.INFO]
    for key, finding in sorted(found, key=lambda one: one[1].severity is not Severity.CRITICAL):
        if finding.actions and snapshot.state.watches[key].held in _WAITED_FOR:
            continue
        if _is_lost(snapshot, finding):
            continue
        if finding.fix:
            yield Todo(finding.fix, finding.runbook)
        elif finding.severity is Severity.CRITICAL:
            yield Todo(f"{finding.rule}: its page says what", finding.runbook)
    if snapshot.state.pause is not None:
        yield Todo("vllm-watchdog resume, when you are done: until then nothing is restarted")


def _advice(snapshot: Snapshot, engine: EngineState) -> str:
    """What to do about this very exit; empty where only its rule says what to do."""
    usual = {one.fix for _, one in firing(snapshot.state) if one.subject == engine.subject}
    fixes = (one.fix for one in _open(snapshot) if one.subject == engine.subject)
    return next((fix for fix in fixes if fix not in usual), "")


def _is_lost(snapshot: Snapshot, finding: Finding) -> bool:
    """Whether it is about an engine of which is told already what it needs."""
    engine = snapshot.state.engines.get(finding.subject.name)
    return engine is not None and engine.subject == finding.subject and bool([*_for_engine(engine)])


def _for_engine(engine: EngineState) -> Iterator[Todo]:
    name = engine.name
    why = f": {engine.explanation}" if engine.explanation else ""
    cure = f"{name}: correct the cause ({engine.cause.value}{why}), then: vllm-watchdog"
    if engine.process is ProcessState.UNKILLABLE:
        yield Todo(f"{name}: a process of it cannot be killed", "engine-unkillable")
    elif engine.history.breaker_open:
        yield Todo(f"{cure} reset-breaker {name}", "engine-dead")
    elif engine.process is ProcessState.GIVEN_UP:
        yield Todo(f"{cure} start {name}", "engine-dead")


def _clock(snapshot: Snapshot, at: Seconds | None) -> str:
    """The time of day in UTC, with the date where that is not clear."""
    stamp = snapshot.stamp(at) or ""
    old = at is not None and snapshot.at - at > _SAME_DAY
    return stamp[:19].replace("T", " ") if old else stamp[11:19]
