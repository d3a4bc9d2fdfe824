"""What engines learn from readings of the box: their cards, that these work, their own Xids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watchdog.core import cards, incidents
from watchdog.core.changing import changed
from watchdog.core.model import (
    Cause,
    Reading,
    Record,
    Sampled,
    Seconds,
    Subject,
    Value,
    number,
)
from watchdog.core.state import EngineState, FusionSettings, State

LINK: Seconds = 15.0
"""An Xid and an exit within so long belong together: vLLM needs seconds to end after the error,
and the kernel's log is looked at once a second."""

_VAGUE = frozenset(
    {Cause.CRASH, Cause.SIGNAL, Cause.ENGINE_CORE_DIED, Cause.WORKER_DIED, Cause.UNKNOWN}
)
"""Causes that an Xid explains; the others know better."""
_HARMLESS = "ignored"
_APPLICATION = "application"
_SEVERE = "severe"

_Taught = tuple[State, tuple[Record, ...]]


def taught(state: State, reading: Reading) -> _Taught:
    """``state`` with what its engines learn from a reading of the box, and the journal lines."""
    if reading.error is not None:
        return state, ()
    match reading.probe:
        case "gpu":
            return _at_work(state, reading), ()
        case "gpu_processes":
            return _seen_on(state, reading), ()
        case "xid":
            return _errors(state, reading)
        case _:
            return state, ()


# --- work -----------------------------------------------------------------------------------------


_SIGNS = frozenset(
    {"utilization_percent", "memory_utilization_percent", "power_watts", "power_limit_watts"}
)


def _at_work(state: State, reading: Reading) -> State:
    values: dict[Subject, dict[str, Value]] = {}
    for sample in reading.samples:
        if sample.sample in _SIGNS:
            values.setdefault(sample.subject, {})[sample.sample] = sample.value
    for engine in tuple(state.engines.values()):
        own, settings = cards.own(state, engine), engine.settings.fusion
        if any(_busy(values.get(card, {}), settings) for card in own):
            vitals = changed(engine.vitals, gpu_busy_at=reading.at)
            state = state.with_engine(changed(engine, vitals=vitals))
    return state


def _busy(card: Mapping[str, Value], settings: FusionSettings) -> bool:
    """Work, as against a kernel that spins: it moves memory, or draws power."""
    used = _number(card, "utilization_percent")
    if used is None or used < settings.gpu_busy_percent:
        return False
    memory = _number(card, "memory_utilization_percent")
    power, limit = _number(card, "power_watts"), _number(card, "power_limit_watts")
    if memory is None:
        return True
    hungry = power is not None and limit is not None and power > limit * settings.gpu_busy_power
    return memory > 0 or hungry


def _number(card: Mapping[str, Value], name: str) -> float | None:
    value = card.get(name)
    return None if value is None or isinstance(value, str) else number(value)


# --- cards ----------------------------------------------------------------------------------------


def _seen_on(state: State, reading: Reading) -> State:
    seen: dict[str, set[Subject]] = {}
    for sample in _of_engines(reading, "engine_memory_bytes"):
        seen.setdefault(dict(sample.labels)["engine"], set()).add(sample.subject)
    for name, subjects in seen.items():
        engine = state.engines.get(name)
        if engine is not None and engine.generation:
            state = state.with_engine(_on(engine, frozenset(subjects)))
    return state


def _on(engine: EngineState, subjects: frozenset[Subject]) -> EngineState:
    """A card once used stays the generation's own: one that is lost lists nobody any more."""
    if engine.cards_of == engine.generation:
        subjects |= engine.cards
    return changed(engine, cards=subjects, cards_of=engine.generation)


def _of_engines(reading: Reading, name: str) -> Iterator[Sampled]:
    return (s for s in reading.samples if s.sample == name and "engine" in dict(s.labels))


# --- Xid errors -----------------------------------------------------------------------------------


def _errors(state: State, reading: Reading) -> _Taught:
    records: list[Record] = []
    for engine in tuple(state.engines.values()):
        state, more = _own_errors(state, engine, reading)
        records.extend(more)
    return state, tuple(records)


def _own_errors(state: State, engine: EngineState, reading: Reading) -> _Taught:
    told = [s for s in _of_engines(reading, "engine_errors") if s.subject == engine.subject]
    if not told:  # nothing is known now: what was counted stays
        return state, ()
    counts = {_APPLICATION: 0, _SEVERE: 0}
    for sample in told:
        kind = dict(sample.labels)["class"]
        if kind != _HARMLESS:
            counts[kind if kind == _APPLICATION else _SEVERE] += int(sample.value)
    now = (counts[_APPLICATION], counts[_SEVERE])
    before, engine = engine.xids, changed(engine, xids=now)
    if sum(now) <= sum(before):  # nothing new, or the probe began anew
        return state.with_engine(engine), ()
    engine = changed(
        engine,
        xid=_text(reading, engine),
        xid_cause=Cause.GPU_FAULT if now[1] > before[1] else Cause.XID,
        xid_at=reading.at,
    )
    return _late(state.with_engine(engine), engine, reading.at)


def _text(reading: Reading, engine: EngineState) -> str:
    texts = (
        str(s.value)
        for s in reading.samples
        if s.subject == engine.subject and s.sample == "engine_last"
    )
    return next(texts, "an Xid error")


def _late(state: State, engine: EngineState, at: Seconds) -> _Taught:
    """The exit was noticed within milliseconds, its reason a second later: amend the incident."""
    if engine.exited_at is None or at - engine.exited_at > LINK or engine.cause not in _VAGUE:
        return state, ()
    return amended(state, engine, engine.xid_cause, engine.xid)


def amended(state: State, engine: EngineState, cause: Cause, explanation: str) -> _Taught:
    """``state`` with what was found out later about the failure that is being dealt with."""
    state = incidents.explained(state, engine.subject, cause, explanation)
    engine = changed(engine, cause=cause, explanation=explanation)
    keys: tuple[tuple[str, object], ...] = (
        ("engine", engine.name),
        ("cause", cause.value),
        ("explanation", explanation),
    )
    return state.with_engine(engine), (Record("engine.explained", "error", keys),)


def explained(
    engine: EngineState, at: Seconds, cause: Cause, explanation: str
) -> tuple[Cause, str]:
    """Cause and explanation of a failure, with the Xid that came before it."""
    recent = engine.xid_at is not None and at - engine.xid_at <= LINK
    if not recent or cause not in _VAGUE:
        return cause, explanation
    return engine.xid_cause, "; ".join(filter(None, (engine.xid, explanation)))
