"""How people are told of times, things and words of our own."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog.core.model import (
    HOST,
    SERVING,
    HoldReason,
    ProcessState,
    Seconds,
    Subject,
    SubjectKind,
    Verdict,
)
from watchdog.core.state import EngineState
from watchdog.snapshot import Snapshot

_SAME_DAY: Seconds = 43200.0
_LONGEST = 160
"""Characters of a text from outside in the middle of a sentence that goes on after it."""
_HOLDS: Mapping[HoldReason, str] = {
    HoldReason.COOLDOWN: "it rests after what was done last",
    HoldReason.BACKOFF: "it waits for its next try",
    HoldReason.BUDGET: "its restarts are used up",
    HoldReason.BREAKER_OPEN: "its restarts are used up",
    HoldReason.IN_FLIGHT: "something is under way",
    HoldReason.PAUSED: "paused",
    HoldReason.OBSERVE: "the watchdog only looks",
    HoldReason.STALE: "a look that is new enough is waited for",
    HoldReason.BLOCKED: "it could not succeed now",
    HoldReason.UNKILLABLE: "processes cannot be killed",
    HoldReason.INHIBITED: "something else comes first",
}
_ACTIONS = {"start_engine": "start", "stop_engine": "stop", "restart_engine": "restart"}


def word(one: str) -> str:
    """A word of the journal for people: ``given_up`` is ``given up``."""
    return one.replace("_", " ")


def action(name: str) -> str:
    """What an action does, in a word: ``restart_engine`` is ``restart``."""
    return _ACTIONS.get(name, name)


def is_restarted(engine: EngineState) -> bool:
    """Whether it stops only to be started again."""
    return engine.process is ProcessState.STOPPING and engine.in_flight == "restart_engine"


def hold(reason: HoldReason, engine: EngineState | None, snapshot: Snapshot) -> str:
    """Why something is not done, with the time of the next try where one is known."""
    due = None if engine is None else next_try(snapshot, engine)
    if reason is HoldReason.BACKOFF and due:
        return f"the next try is at {due} ({reason.value})"
    return _HOLDS[reason]


def next_try(snapshot: Snapshot, engine: EngineState) -> str:
    """When it is started again; "" when nothing is waited for."""
    at = snapshot.retries.get(engine.name, engine.retry_at)
    waits = engine.process is ProcessState.BACKOFF or _is_held_back(snapshot, engine)
    if not waits or snapshot.state.pause is not None or at is None or at <= snapshot.at:
        return ""
    return clock(snapshot, at)


def _is_held_back(snapshot: Snapshot, engine: EngineState) -> bool:
    """Whether what is to be done about it, while it runs, waits for its turn."""
    return any(
        watch.held is HoldReason.BACKOFF
        and watch.firing is not None
        and watch.firing.subject == engine.subject
        for watch in snapshot.state.watches.values()
    )


def who(snapshot: Snapshot, subject: Subject) -> str:
    """A subject, as a person says it."""
    if subject == HOST:
        return "this host"
    if subject.kind is SubjectKind.GPU and subject in snapshot.state.cards:
        return f"GPU {snapshot.state.cards[subject]}"
    return subject.name if subject.kind is SubjectKind.ENGINE else str(subject)


def left(snapshot: Snapshot, name: str) -> str:
    """The restarts that an engine has left: ``3 of 5 restarts left``."""
    count, of = snapshot.budget.get(name), snapshot.budgets.get(name)
    if count is None:
        return ""
    word_ = "restart" if count == 1 and of is None else "restarts"
    return f"{count} {word_} left" if of is None else f"{count} of {of} {word_} left"


def cause(snapshot: Snapshot, engine: EngineState) -> str:
    """What made it fail: ``bad arguments: no such flag``, the text not longer than a line.

    When it is about the model, that is named.
    """
    told = engine.explanation
    what = word(engine.cause.value)
    said = f"{what}: {short(told)}" if told else what
    model = snapshot.models.get(engine.name) if engine.cause.value.startswith("model_") else None
    return f"{said} (model {short(model)})" if model else said


def short(text: str) -> str:
    """``text``, cut."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def brief(text: str) -> str:
    """The first clause of ``text``: where it has to fit beside others."""
    return short(text.partition("; ")[0])


def blind(snapshot: Snapshot, engine: EngineState) -> str:
    """That its counters cannot be read while it runs, and why; "" when they can."""
    if engine.process is not ProcessState.RUNNING or engine.verdict not in _SEEN:
        return ""
    reading = snapshot.state.readings.get(("engine_metrics", engine.name))
    if reading is None or reading.generation != engine.generation:
        return ""
    unread = [one.error for one in reading.unread if not one.sample]
    error = reading.error or next(iter(unread), "")
    return f"its counters cannot be read: {short(error)}" if error else ""


_SEEN = SERVING | {Verdict.DEGRADED}
"""Of an engine that is known to be down nobody asks for counters."""


def clock(snapshot: Snapshot, at: Seconds | None) -> str:
    """The time of day in UTC, with the date where that is not clear."""
    stamp = snapshot.stamp(at) or ""
    old = at is not None and snapshot.at - at > _SAME_DAY
    return stamp[:19].replace("T", " ") if old else stamp[11:19]
