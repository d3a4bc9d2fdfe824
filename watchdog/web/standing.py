"""How an engine stands, in a sentence."""

from __future__ import annotations

from watchdog.core.model import Verdict
from watchdog.core.state import EngineState
from watchdog.snapshot import Snapshot
from watchdog.web import saying, troubles
from watchdog.web.saying import clock


def ails(snapshot: Snapshot, engine: EngineState) -> bool:
    """Whether an incident about it goes on."""
    return any(one.subject == engine.subject for one in troubles.going_on(snapshot))


def why(snapshot: Snapshot, engine: EngineState) -> str:
    """What it is, and why: what it waits for, when it is tried again."""
    waits = snapshot.waiting.get(engine.name)
    due = saying.next_try(snapshot, engine)
    given_up = troubles.is_given_up(engine)
    reasons = [
        *([saying.cause(snapshot, engine)] if given_up else map(saying.brief, engine.reasons[:1])),
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
    if engine.verdict is Verdict.STARTING and ails(snapshot, engine):
        return "is starting again"
    return f"is {saying.word(engine.verdict.value)}"


def _flows(snapshot: Snapshot, engine: EngineState) -> str:
    """Of an engine that may or may not serve: whether tokens were seen lately."""
    seen = engine.vitals.progressed_at
    if engine.verdict is not Verdict.DEGRADED or seen is None:
        return ""
    vitals = engine.vitals
    doubts = (vitals.core_gone_since, vitals.failing_since, vitals.health_since)
    since = min((one for one in doubts if one is not None), default=None)
    lately = snapshot.at - seen <= engine.settings.fusion.stale_after
    lately = lately and (since is None or seen > since)
    return "though tokens flow" if lately else f"the last token was seen at {clock(snapshot, seen)}"
