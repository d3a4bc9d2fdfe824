"""What the core knows of an engine by itself, by the names that rules have for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watchdog.core.model import SERVING, Seconds, Value, Verdict, number
from watchdog.core.state import EngineState, State

_RUNNING = "engine.requests_running"
_WAITING = "engine.requests_waiting"


def told(state: State, engine: EngineState) -> dict[str, Value]:
    """All of it; what is not known is not there."""
    return {**_own(engine), **_load(engine, state.at), **_others(state, engine)}


def has_aged(state: State, engine: EngineState) -> bool:
    """Whether requests that its view would tell of were counted, and too long ago."""
    others = others_serving(state, engine) if engine.settings.standby else ()
    return any(
        one.vitals.metrics_at is not None and not _load(one, state.at) for one in (engine, *others)
    )


def _load(engine: EngineState, at: Seconds | None) -> Mapping[str, Value]:
    """Requests in the engine, as far as its counters were read lately."""
    vitals = engine.vitals
    seen, limit = vitals.metrics_at, engine.settings.fusion.stale_after
    if seen is None or at is None or at - seen > limit:
        return {}
    load = ((_RUNNING, vitals.running), (_WAITING, vitals.waiting))
    return {name: value for name, value in load if value is not None}


def _others(state: State, engine: EngineState) -> Mapping[str, Value]:
    """What the others do that serve, in the view of an engine that stands by for them.

    Their sums are not known while those of one of them are not, nor when nobody serves.
    """
    if not engine.settings.standby:
        return {}
    loads = [_load(other, state.at) for other in others_serving(state, engine)]
    values: dict[str, Value] = {"engine.others_serving": len(loads)}
    for name, of_one in (("engine.others_running", _RUNNING), ("engine.others_waiting", _WAITING)):
        known = [load[of_one] for load in loads if of_one in load]
        if known and len(known) == len(loads):
            values[name] = sum(map(number, known))
    return values


def others_serving(state: State, engine: EngineState) -> Iterator[EngineState]:
    """All engines but this one that serve tokens."""
    for other in state.engines.values():
        if other.name != engine.name and other.verdict in SERVING:
            yield other


def _own(engine: EngineState) -> Mapping[str, Value]:
    """Its health is not known in transition: a finding that led to a restart lives until it serves.

    What is wanted is not known while it is started or stopped: a finding lives until the outcome.
    """
    values: dict[str, Value] = {
        "engine.process": engine.process.value,
        "engine.verdict": engine.verdict.value,
        "engine.cause": engine.cause.value,
        "engine.reason": "; ".join(engine.reasons) or engine.explanation,
        "engine.members": engine.vitals.members,
        "engine.action": engine.in_flight or engine.aside,
        "engine.standby": engine.settings.standby,
        "engine.attached": engine.settings.attach is not None,
    }
    if engine.health not in _IN_TRANSITION:
        values["engine.health"] = engine.health.value
    if not engine.in_flight:
        values["engine.wanted"] = engine.history.wanted
    return values


_IN_TRANSITION = frozenset({Verdict.STARTING, Verdict.STOPPING, Verdict.UNKILLABLE})
