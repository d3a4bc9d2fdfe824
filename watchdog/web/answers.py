"""Is it serving, what broke, what did the watchdog do, what must I do? Each in a line or two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from watchdog.core.model import SERVING, ProcessState, Verdict
from watchdog.core.state import EngineState
from watchdog.snapshot import Snapshot
from watchdog.web import broken, deeds, standing, tasks, troubles
from watchdog.web.pasted import pasted
from watchdog.web.saying import clock
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
        _few(broken.broken(snapshot)),
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
    stopped = [one for one in engines if troubles.is_stopped_by_hand(one)]
    up = len(wanted) - len(down)
    if not down and not stopped:
        return _up(snapshot, wanted)
    told = "; ".join(standing.why(snapshot, one) for one in down[:_MOST])
    if up:
        told = "; ".join(filter(None, (told, _stopped(snapshot) if stopped else "")))
        return Level.WARNING, f"partly: {up} of {len(wanted) + len(stopped)} engines; {told}"
    if all(one.verdict is Verdict.DEGRADED for one in down):
        return Level.WARNING, f"not surely: {told}"
    fresh = all(_starts_first(snapshot, one) for one in down)
    return (Level.WARNING, f"not yet: {told}") if fresh else (Level.BAD, f"no: {told}")


def _up(snapshot: Snapshot, engines: list[EngineState]) -> tuple[Level, str]:
    """All serve; one that is not started again when it fails is no reason to sleep on."""
    last = [one.name for one in engines if troubles.is_at_its_last(snapshot, one)]
    if last:
        return Level.WARNING, f"yes: {_which(engines)}; no restart left of {', '.join(last)}"
    return Level.GOOD, f"yes: {_which(engines)}"


def _starts_first(snapshot: Snapshot, engine: EngineState) -> bool:
    """Whether it starts, and not because something had failed."""
    fresh = engine.verdict is Verdict.STARTING and engine.failed_at is None
    return fresh and not standing.ails(snapshot, engine)


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
