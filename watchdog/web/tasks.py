"""What must I do? The command that helps now comes first, and no task twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from watchdog.core.model import Finding, Incident, Mode, ProcessState, Severity
from watchdog.core.state import Attach, EngineState
from watchdog.snapshot import Snapshot
from watchdog.web import saying, troubles
from watchdog.web.pasted import pasted
from watchdog.web.saying import clock

_ADVICE = 300
_AT_IT = "nothing yet: the watchdog is at it"
_STARTS = r"vllm-watchdog (?:--state-dir (?:'[^']*'|\S+) )?(?:start|restart|reset-breaker)"
_AT_LAST = re.compile(rf"[;,] (?:then|else):? {_STARTS}\b[^;]*$")
"""The start with which a fix ends, once all else is done."""


@dataclass(frozen=True, slots=True)
class Todo:
    """One thing to do. ``runbook`` is the page that says more; empty where there is none."""

    text: str
    runbook: str = ""


def tasks(snapshot: Snapshot) -> Iterator[Todo]:
    """All of them, the most urgent first; before them, what the watchdog is at itself."""
    found = [*_tasks(snapshot)]
    if found and (names := ", ".join(_repaired(snapshot))):
        yield Todo(f"{names}: {_AT_IT}")
    yield from found


def _repaired(snapshot: Snapshot) -> Iterator[str]:
    """The engines that the watchdog is at."""
    for one in troubles.going_on(snapshot):
        engine = troubles.engine_of(snapshot, one.subject)
        if engine is not None and troubles.is_repaired(snapshot, one):
            yield engine.name


def _tasks(snapshot: Snapshot) -> Iterator[Todo]:
    pause, down = snapshot.state.pause, [*_down(snapshot)]
    if pause is not None and down:
        yield Todo(f"while it is paused nobody restarts {', '.join(down)}: vllm-watchdog resume")
    for engine in snapshot.state.engines.values():
        yield from _for_engine(snapshot, engine)
    for key, finding in troubles.loud(snapshot):
        if troubles.is_seen_to(snapshot, key, finding) or _is_told(snapshot, finding):
            continue
        if finding.fix:
            yield Todo(finding.fix, finding.runbook)
        elif finding.severity is Severity.CRITICAL:
            yield Todo(f"{finding.rule}: its page says what", finding.runbook)
    if pause is not None and not down:
        yield Todo(
            "nothing is restarted while it is paused; when you are done: vllm-watchdog resume"
        )


def rest(snapshot: Snapshot) -> str:
    """What is said when there is nothing to do."""
    found = troubles.going_on(snapshot)
    if any(troubles.is_repaired(snapshot, one) for one in found):
        return _AT_IT
    if found or troubles.unsure(snapshot) or troubles.without_counters(snapshot):
        return "nothing yet: if it lasts, it is said here what to do"
    over = troubles.just_over(snapshot)
    better = "" if over is None else prevention(over.fix)
    return f"nothing now; against the next time: {better[:_ADVICE]}" if better else "nothing"


def fix_of(snapshot: Snapshot, incident: Incident) -> tuple[str, str]:
    """What an incident asks for, and the word for that; what is over asks for nothing."""
    if incident.resolved_at is not None:
        better = prevention(incident.fix)
        return ("next time", better) if better else ("", "")
    if troubles.is_repaired(snapshot, incident):
        return "to do", _AT_IT
    return ("fix", incident.fix) if incident.fix else ("", "")


def prevention(fix: str) -> str:
    """What of a fix keeps it from happening again; "" where all of it is about the engine's state.

    Once an engine serves again nobody must start or restart it.
    """
    return "" if re.match(_STARTS, fix) else _AT_LAST.sub("", fix)


def shown_fix(snapshot: Snapshot, key: troubles.Key, finding: Finding) -> str:
    """The fix of a finding, ready to be pasted; "" where it is no task, or told already."""
    outranked = key in snapshot.outranked
    if outranked or troubles.is_seen_to(snapshot, key, finding) or _is_told(snapshot, finding):
        return ""
    return pasted(finding.fix, snapshot.state_dir)


def _down(snapshot: Snapshot) -> Iterator[str]:
    """Engines that would be restarted if it were not paused."""
    for key, finding in troubles.loud(snapshot):
        engine = troubles.engine_of(snapshot, finding.subject)
        acts = bool(finding.actions) and not snapshot.state.watches[key].clear_since
        if engine is not None and acts and not troubles.is_given_up(engine):
            yield engine.name


def _is_told(snapshot: Snapshot, finding: Finding) -> bool:
    """Whether it is about an engine of which is told already what it needs."""
    engine = troubles.engine_of(snapshot, finding.subject)
    if engine is None:
        return False
    paused = snapshot.state.pause is not None and bool(finding.actions)
    own = finding.rule == "engine-absent"
    return not own and (paused or any(_for_engine(snapshot, engine)))


def _for_engine(snapshot: Snapshot, engine: EngineState) -> Iterator[Todo]:
    name = engine.name
    if engine.process is ProcessState.UNKILLABLE:
        text = f"{name}: a process of it cannot be killed: reset the GPU or reboot"
        yield Todo(f"{text}, then: vllm-watchdog start {name}", "engine-unkillable")
    elif troubles.is_stopped_by_hand(engine):
        if engine.process is ProcessState.STOPPED:
            when = clock(snapshot, engine.since)
            text = f"{name} was stopped by an operator at {when}; when it may serve again"
            yield Todo(f"{text}: vllm-watchdog start {name}")
    elif troubles.is_awaited(snapshot, engine):
        yield from _elsewhere(snapshot, engine)
    elif snapshot.state.mode is not Mode.ACT and engine.failed_at is not None:
        yield Todo(f"{name}: restart it yourself: in observe mode nobody else does", "engine-dead")
        yield from _look(snapshot, engine)
    elif troubles.is_given_up(engine):
        verb = "reset-breaker" if engine.history.breaker_open else "start"
        what = _advice(snapshot, engine) or f"correct the cause ({saying.cause(snapshot, engine)})"
        yield Todo(f"{name}: {what}; then: vllm-watchdog {verb} {name}", "engine-dead")
        yield from _look(snapshot, engine)
    elif troubles.is_at_its_last(snapshot, engine):
        text = (
            f"{name} has no restart left and stays down when it fails again: find out why it fails"
        )
        ids = troubles.before(snapshot, engine, 0.0)
        known = f" (vllm-watchdog incidents {ids[-1]})" if ids else ""
        yield Todo(f"{text}{known}; then: vllm-watchdog reset-breaker {name}", "engine-dead")
    elif snapshot.state.pause is not None and engine.failed_at is not None:
        advice = _advice(snapshot, engine)
        yield from [Todo(f"{name}: {advice}", "engine-dead")] if advice else []
        yield from _look(snapshot, engine)


def _elsewhere(snapshot: Snapshot, engine: EngineState) -> Iterator[Todo]:
    if any(finding.rule == "engine-absent" for _, finding in troubles.loud(snapshot)):
        return
    waits = "waits for it" if engine.settings.attach is Attach.SIGNAL else "only looks"
    text = f"{engine.name}: start it where it is started: the watchdog is attached, and {waits}"
    yield Todo(text, "engine-absent")


def _look(snapshot: Snapshot, engine: EngineState) -> Iterator[Todo]:
    """Where it is written what happened."""
    log = snapshot.logs.get(engine.name)
    own = [one.id for one in troubles.going_on(snapshot) if one.subject == engine.subject]
    bundles = [path for name in own for path in snapshot.bundles.get(name, ())]
    places = [*([f"its log {log}"] if log else []), *(f"evidence {one}" for one in bundles[-1:])]
    if places:
        yield Todo(f"{engine.name}: look at {', '.join(places)}")


def _advice(snapshot: Snapshot, engine: EngineState) -> str:
    """What to do about this very exit; empty where only its rule says what to do."""
    usual = {one.fix for _, one in troubles.loud(snapshot) if one.subject == engine.subject}
    found = troubles.going_on(snapshot)
    fixes = (one.fix for one in found if one.subject == engine.subject)
    return next((fix for fix in fixes if fix not in usual), "")[:_ADVICE]
