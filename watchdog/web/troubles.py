"""What goes on, and what was: the troubles of which the four answers tell."""

from __future__ import annotations

from collections.abc import Sequence

from watchdog.core.engine import firing
from watchdog.core.model import (
    SERVING,
    Finding,
    HoldReason,
    Incident,
    ProcessState,
    Seconds,
    Severity,
    Subject,
    Verdict,
)
from watchdog.core.state import EngineState, StoppedBy
from watchdog.snapshot import Snapshot
from watchdog.web import saying

_REMEMBERED: Seconds = 86400.0
"""After a day nobody asks what broke."""
LATELY: Seconds = 3600.0
"""So long an outage that is over is told beside lesser troubles."""
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
_UNDER_WAY = frozenset({ProcessState.STARTING, ProcessState.STOPPING, ProcessState.BACKOFF})
_TRIED = SERVING | {Verdict.STARTING, Verdict.STOPPING, Verdict.DEGRADED}
_AWAY = frozenset({ProcessState.STOPPED, ProcessState.BACKOFF, ProcessState.GIVEN_UP})

Key = tuple[str, Subject]


def going_on(snapshot: Snapshot) -> list[Incident]:
    """The newest first; the critical before the others, of those the engines first."""
    found = [one for one in reversed(snapshot.state.incidents) if one.resolved_at is None]
    return sorted(found, key=lambda one: _weight(snapshot, one))


def _weight(snapshot: Snapshot, trouble: Finding | Incident) -> tuple[bool, bool]:
    """What sorts first is worse."""
    about_engine = engine_of(snapshot, trouble.subject) is not None
    return trouble.severity is not Severity.CRITICAL, not about_engine


_WORST = (False, False)


def last(snapshot: Snapshot) -> Incident | None:
    """What ended last within a day; an outage just now before anything else."""
    ended = _ended(snapshot, _REMEMBERED)
    return just_over(snapshot) or (ended[-1] if ended else None)


def just_over(snapshot: Snapshot) -> Incident | None:
    """The outage that ended last, if that was just now and no engine is down or in doubt again."""
    troubles: list[Finding | Incident] = [*going_on(snapshot)]
    troubles += [finding for _, finding in loud(snapshot)]
    if unsure(snapshot) or any(_weight(snapshot, one) == _WORST for one in troubles):
        return None
    found = [one for one in _ended(snapshot, LATELY) if engine_of(snapshot, one.subject)]
    return found[-1] if found else None


def _ended(snapshot: Snapshot, within: Seconds) -> list[Incident]:
    """The latest last."""
    found = [
        (one.resolved_at, one)
        for one in snapshot.state.incidents
        if one.resolved_at is not None and snapshot.at - one.resolved_at < within
    ]
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def loud(snapshot: Snapshot) -> list[tuple[Key, Finding]]:
    """What fires, without what is only information or said by a louder one; the worst first."""
    found = [
        (key, finding)
        for key, finding in firing(snapshot.state)
        if finding.severity is not Severity.INFO and key not in snapshot.outranked
    ]
    return sorted(found, key=lambda one: _weight(snapshot, one[1]))


def engine_of(snapshot: Snapshot, subject: Subject) -> EngineState | None:
    """The engine that ``subject`` is."""
    engine = snapshot.state.engines.get(subject.name)
    return engine if engine is not None and engine.subject == subject else None


def is_seen_to(snapshot: Snapshot, key: Key, finding: Finding) -> bool:
    """Whether the watchdog is at it, or will be: nothing for a person to do."""
    if not finding.actions or snapshot.state.watches[key].held not in _WAITED_FOR:
        return False
    engine = engine_of(snapshot, finding.subject)
    if engine is None:
        return not _has_failed(snapshot, finding)
    return not (is_given_up(engine) or is_awaited(snapshot, engine))


def _has_failed(snapshot: Snapshot, finding: Finding) -> bool:
    """Whether the last thing that was done about it did not work."""
    texts = (
        entry.text
        for one in going_on(snapshot)
        if one.subject == finding.subject
        for entry in reversed(one.timeline)
        if entry.event == "action.finished"
    )
    return next(texts, "").split()[1:2] == ["failed"]


def is_repaired(snapshot: Snapshot, incident: Incident) -> bool:
    """Whether the watchdog is at the engine of an incident that goes on."""
    found = [(key, one) for key, one in loud(snapshot) if one.subject == incident.subject]
    if any(one.actions for _, one in found):
        return all(is_seen_to(snapshot, key, one) for key, one in found if one.actions)
    engine = engine_of(snapshot, incident.subject)
    if engine is None or (snapshot.state.pause is not None and not engine.in_flight):
        return False
    return engine.process in _UNDER_WAY and not found


def is_given_up(engine: EngineState) -> bool:
    """Whether a person has to go on: not of one that an operator has started in spite of it."""
    if engine.process is ProcessState.GIVEN_UP:
        return True
    return engine.history.breaker_open and engine.verdict not in _TRIED


def is_at_its_last(snapshot: Snapshot, engine: EngineState) -> bool:
    """Whether it serves or starts, and stays down when it fails once more."""
    if not engine.history.wanted or engine.settings.attach is not None:
        return False
    none_left = engine.history.breaker_open or snapshot.budget.get(engine.name) == 0
    return none_left and engine.verdict in _TRIED


def is_awaited(snapshot: Snapshot, engine: EngineState) -> bool:
    """Whether it is not there, and somebody else has to start it."""
    if engine.settings.attach is None or not engine.history.wanted:
        return False
    return engine.process in _AWAY or engine.name in snapshot.waiting


def is_stopped_by_hand(engine: EngineState) -> bool:
    """Whether an operator wants it to stay stopped."""
    return not engine.history.wanted and engine.history.stopped_by is StoppedBy.OPERATOR


def unsure(snapshot: Snapshot) -> list[EngineState]:
    """Engines that should serve, and may or may not."""
    engines = snapshot.state.engines.values()
    return [one for one in engines if one.history.wanted and one.verdict is Verdict.DEGRADED]


def saturated(snapshot: Snapshot) -> list[EngineState]:
    """Engines that serve, with more to do than they can at once."""
    return [
        one
        for one in snapshot.state.engines.values()
        if one.history.wanted
        and one.verdict is Verdict.BUSY
        and (bool(one.vitals.waiting) or one.vitals.failing_since is not None)
    ]


def without_counters(snapshot: Snapshot) -> list[EngineState]:
    """Engines whose counters cannot be read."""
    return [one for one in snapshot.state.engines.values() if saying.blind(snapshot, one)]


def before(snapshot: Snapshot, engine: EngineState, since: Seconds) -> Sequence[str]:
    """The ids of the incidents about ``engine`` that ended since then."""
    return [
        one.id
        for one in snapshot.state.incidents
        if one.subject == engine.subject
        and one.resolved_at is not None
        and one.resolved_at >= since
        and one.outcome != "operator"
    ]
