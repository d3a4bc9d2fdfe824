"""What did the watchdog do? What it does now, or leaves alone on purpose, before what it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watchdog.core.model import Entry, HoldReason, Incident, Mode, ProcessState
from watchdog.core.state import Attach, EngineState
from watchdog.snapshot import Snapshot
from watchdog.web import saying, troubles
from watchdog.web.saying import clock, who

_MOST = 4
_IDS = 5
_DEEDS: Mapping[str, str] = {
    "decision.act": "decided",
    "action.finished": "done",
    "engine.started": "started",
    "engine.ready": "serves",
    "engine.adopted": "adopted",
}
"""What is told of a story here, and the word for it."""
OUTCOMES: Mapping[str, str] = {
    "recovered": "recovered",
    "cleared": "cleared by itself",
    "given_up": "given up",
    "operator": "ended by an operator",
}
"""How an incident ended, in words."""


def deeds(snapshot: Snapshot) -> Iterator[str]:
    """Each in a line: the present ones first; never an old repair while something is wrong."""
    present = [*_present(snapshot), *_before(snapshot)]
    done = [*_done(snapshot)][-max(_MOST - len(present), 1) :]
    yield from present
    yield from done
    if present or done:
        return
    last = troubles.last(snapshot)
    if troubles.going_on(snapshot) or troubles.loud(snapshot):
        yield "told, and nothing else: for this it restarts nothing"
    elif troubles.without_counters(snapshot):
        yield "nothing: what cannot be read proves nothing"
    elif last is None:
        yield "nothing: there was no need"
    else:
        yield f"nothing now; {_ending(last)}"


def _before(snapshot: Snapshot) -> Iterator[str]:
    """The repair of an outage that is just over, while something else is wrong."""
    over = troubles.just_over(snapshot)
    if over is not None and (troubles.going_on(snapshot) or troubles.loud(snapshot)):
        yield f"before that {_ending(over)}"


def _present(snapshot: Snapshot) -> Iterator[str]:
    restraint = _restraint(snapshot)
    yield from [restraint] if restraint else []
    for engine in snapshot.state.engines.values():
        line = _of(snapshot, engine)
        if line:
            yield line
    for one in troubles.unsure(snapshot):
        yield f"left {one.name} alone on purpose: it may still serve"
    for one in troubles.saturated(snapshot):
        yield f"left {one.name} alone on purpose: a busy engine is never restarted"


def _restraint(snapshot: Snapshot) -> str:
    pause = snapshot.state.pause
    if snapshot.state.mode is not Mode.ACT:
        return "only looks: observe mode"
    if pause is None:
        return ""
    until = f" until {clock(snapshot, pause.until)}" if pause.until is not None else ""
    return f"only looks: paused by {pause.owner}{until}: {saying.short(pause.reason)}"


def _of(snapshot: Snapshot, engine: EngineState) -> str:
    """What it has decided about an engine for good, or why it does nothing about it now."""
    if troubles.is_stopped_by_hand(engine):
        if engine.process is not ProcessState.STOPPED:
            return f"stops {engine.name}: an operator asked for it"
        return f"{clock(snapshot, engine.since)} stopped {engine.name}: an operator asked for it"
    if engine.history.breaker_open and troubles.is_given_up(engine):
        return _breaker(snapshot, engine)
    if engine.process is ProcessState.GIVEN_UP:
        when = clock(snapshot, engine.since)
        cause = saying.word(engine.cause.value)
        return f"{when} gave {engine.name} up: a retry cannot cure it ({cause})"
    return _held(snapshot, engine)


def _breaker(snapshot: Snapshot, engine: EngineState) -> str:
    restarts = engine.history.restarts
    if not restarts:
        return f"gave {engine.name} up: its restarts did not help (breaker open)"
    since = restarts[0].at
    ids = troubles.before(snapshot, engine, since)
    told = f"; before: {', '.join(ids[-_IDS:])}" if ids else ""
    count = f"{len(restarts)} restart{'s' if len(restarts) > 1 else ''}"
    return (
        f"gave {engine.name} up (breaker open): {count} since {clock(snapshot, since)} "
        f"did not last{told}"
    )


def held(snapshot: Snapshot, incident: Incident) -> str:
    """What it does not do about the engine of an incident that goes on, and why; "" for nothing."""
    engine = troubles.engine_of(snapshot, incident.subject)
    return "" if engine is None else _held(snapshot, engine)


def _held(snapshot: Snapshot, engine: EngineState) -> str:
    if engine.in_flight:
        return ""
    for key, finding in troubles.loud(snapshot):
        held = snapshot.state.watches[key].held
        mine = finding.subject == engine.subject and bool(finding.actions)
        if not mine or held in {None, HoldReason.IN_FLIGHT}:
            continue
        if engine.settings.attach is Attach.REPORT:
            return f"told, and nothing else: it is attached to report, others start {engine.name}"
        what = saying.action(finding.actions[0])
        return f"held back: {what} of {engine.name}: {saying.hold(held, engine, snapshot)}"
    return ""


def _done(snapshot: Snapshot) -> Iterator[str]:
    found = [
        (entry.at, entry, one)
        for one in troubles.going_on(snapshot)
        for entry in one.timeline
        if entry.event in _DEEDS
    ]
    for at, entry, one in sorted(found, key=lambda each: each[0]):
        yield f"{clock(snapshot, at)} {_deed(snapshot, entry, one)}"


def _deed(snapshot: Snapshot, entry: Entry, incident: Incident) -> str:
    """Why is told where it says what broke."""
    name = who(snapshot, incident.subject)
    what, _, rest = entry.text.partition(" ")
    match entry.event:
        case "decision.act":
            return f"decided: {saying.action(what.rstrip(','))} {name}, {rest.partition(': ')[0]}"
        case "action.finished":
            return f"done: {saying.action(what)} {name}: {saying.short(rest)}"
        case _:
            return f"{_DEEDS[entry.event]}: {name}, {saying.short(entry.text)}"


def _ending(incident: Incident) -> str:
    outcome = OUTCOMES.get(incident.outcome, incident.outcome)
    if not incident.actions or incident.outcome == "operator":
        return f"{incident.id} was {outcome}" if incident.actions else f"{incident.id} {outcome}"
    begin = incident.decided_at if incident.decided_at is not None else incident.opened_at
    after = (incident.resolved_at or begin) - begin
    done = ", ".join(saying.action(one) for one in dict.fromkeys(incident.actions))
    return f"{incident.id}: {done}, {outcome} {after:.1f} s after it was noticed"
