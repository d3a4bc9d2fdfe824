"""Takes in what happened: readings, spawns, exits and outcomes become state. Nothing is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from watchdog.core import cards, lessons, vitals
from watchdog.core.changing import changed
from watchdog.core.lifecycle import LIFE, move
from watchdog.core.model import (
    ActionFinished,
    Cause,
    Commanded,
    EngineExited,
    EngineSpawned,
    Event,
    Mode,
    Outcome,
    ProcessState,
    Reading,
    ReadingTaken,
    Record,
    Seconds,
    SubjectKind,
    Tick,
    Verb,
)
from watchdog.core.policy import backoff, failed, is_given_up, refunded
from watchdog.core.state import EngineState, PolicySettings, State, StoppedBy

_REFUSED_BY_THE_BOX = frozenset(
    {
        Cause.GPU_MEMORY_SHORT,
        Cause.DRIVER_MISMATCH,
        Cause.PLACE_TAKEN,
        Cause.PORT_IN_USE,
        Cause.DISK_FULL,
        Cause.SHM_SHORT,
    }
)
"""An action that fails so was refused before anything was started, and may succeed later."""
_REFUSED_PAUSE: Seconds = 1.0
"""No backoff is shorter after that: what the box lacks does not come within milliseconds."""

_UNTOUCHED_PAUSE: Seconds = 30.0
"""Nothing is tried again before: who may not be signalled now may hardly be in a moment."""

_Taken = tuple[State, tuple[Record, ...]]


def took(state: State, event: Event, settings: PolicySettings) -> _Taken:
    """``state`` with the fact that ``event`` reports, and the journal lines about it."""
    match event:
        case ReadingTaken():
            return _read(state, event.reading), ()
        case EngineSpawned():
            return _spawned(state, event)
        case EngineExited():
            return _exited(state, event, settings)
        case ActionFinished():
            return _finished(state, event, settings)
        case Tick() | Commanded():
            return state, ()
        case _:
            assert_never(event)


def _read(state: State, reading: Reading) -> State:
    name = reading.subject.name if reading.subject is not None else ""
    readings = {**state.readings, (reading.probe, name): reading}
    engine = state.engines.get(name)
    if engine is None or not _believed(engine, reading):
        return changed(state, readings=readings)
    seen = vitals.absorb(engine.vitals, reading, engine.settings.fusion)
    engines = {**state.engines, name: changed(engine, vitals=seen)}
    return changed(state, readings=readings, engines=engines)


def _believed(engine: EngineState, reading: Reading) -> bool:
    return bool(engine.generation) and (reading.error, reading.generation) == (
        None,
        engine.generation,
    )


def _spawned(state: State, event: EngineSpawned) -> _Taken:
    engine = state.engines.get(event.engine)
    if engine is None:
        return state, ()
    history = engine.history
    if not event.adopted:
        history = changed(history, starts=history.starts + 1)
    elif engine.settings.standby and history.stopped_by is StoppedBy.NOBODY:
        history = changed(history, wanted=True)  # it runs: the memory of who started it is lost
    to = ProcessState.RUNNING if event.ready else ProcessState.STARTING
    began = event.spawned_at if event.spawned_at is not None else event.at
    engine = changed(
        move(engine, to, event.at),
        generation=event.generation,
        leader=event.pid,
        started_at=began,
        ready_at=_ready_at(event),
        start_cause=event.cause,
        adopted=event.adopted,
        vitals=vitals.begin(event.at),
        history=history,
        failed_at=None,
        began_at=None,
        retry_at=None,
    )
    strange = engine.settings.attach is not None
    if event.adopted and not history.wanted and state.mode is Mode.ACT and not strange:
        # Its watchdog died before a stop was done. As our own end, that is nobody's new word.
        engine = changed(engine, pending=Verb.SHUTDOWN)
    name = "engine.adopted" if event.adopted else "engine.started"
    keys = (
        ("engine", engine.name),
        ("pid", event.pid),
        ("generation", event.generation),
        ("cause", event.cause.value),
        ("starts", history.starts),
    )
    return state.with_engine(engine), (Record(name, "info", keys),)


def _ready_at(event: EngineSpawned) -> float | None:
    if not event.ready:
        return None
    return event.ready_at if event.ready_at is not None else event.at


def _exited(state: State, event: EngineExited, settings: PolicySettings) -> _Taken:
    engine = state.engines.get(event.engine)
    if engine is None or event.generation != engine.generation:
        return state, ()
    asked = engine.process is ProcessState.STOPPING
    if not asked:
        event = _explained(engine, event)
    meant = asked and engine.in_flight == "stop_engine" and not is_given_up(engine)
    cause = Cause.OPERATOR if meant else event.cause
    keys: tuple[tuple[str, object], ...] = (
        ("engine", engine.name),
        ("generation", event.generation),
        ("exit_code", event.exit_code),
        ("signal", event.signal),
        ("cause", cause.value),
        ("explanation", event.explanation),
        *((("advice", event.advice),) if event.advice and not asked else ()),
        ("expected", asked),
    )
    record = Record("engine.exited", "info" if asked else "error", keys)
    engine = changed(engine, leader=None)
    if asked and event.cause is Cause.OOM_KILLED and not meant:
        state, told = lessons.amended(state, engine, event.cause, event.explanation)
        return state, (record, *told)
    if not asked and engine.process is not ProcessState.UNKILLABLE:
        engine = _lost(engine, event, settings)
    return state.with_engine(engine), (record,)


def _explained(engine: EngineState, event: EngineExited) -> EngineExited:
    cause, explanation = lessons.explained(engine, event.at, event.cause, event.explanation)
    return replace(event, cause=cause, explanation=explanation)


def _lost(engine: EngineState, event: EngineExited, settings: PolicySettings) -> EngineState:
    """An exit that nobody asked for is a failure, whatever its code."""
    same = engine.failed_at is not None
    engine = failed(engine, event.at, event.cause, event.explanation, settings, same=same)
    engine = changed(engine, exited_at=event.at)
    reasons = (event.explanation or event.cause.value,)
    if not engine.history.wanted:  # its orphans may live: stopped is only what was proven so
        engine = changed(engine, pending=Verb.STOP)
    return changed(move(engine, _after_failure(engine), event.at), reasons=reasons)


def _after_failure(engine: EngineState) -> ProcessState:
    given_up = engine.history.given_up is not None or engine.history.breaker_open
    return ProcessState.GIVEN_UP if given_up else ProcessState.BACKOFF


def _finished(state: State, event: ActionFinished, settings: PolicySettings) -> _Taken:
    outcome = event.outcome
    if outcome.target.kind is not SubjectKind.ENGINE:
        return changed(state, beside=None), (_record(state, outcome),)
    engine = state.engines.get(outcome.target.name)
    if engine is None:
        return state, ()
    if outcome.action not in LIFE:
        engine = changed(engine, aside="")  # its processes are as they were
    else:
        engine = changed(engine, in_flight="")
    if outcome.action in LIFE and not outcome.ok:
        engine = _not_done(engine, event, settings)
    elif outcome.action == "stop_engine" and not _came_meanwhile(engine):
        engine = _stopped(state, engine, event)
    records = [_record(state, outcome)]
    if outcome.ok and outcome.action in LIFE and engine.process is ProcessState.STOPPED:
        records.append(Record("engine.stopped", "info", (("engine", engine.name),)))
    return state.with_engine(engine), tuple(records)


def _record(state: State, outcome: Outcome) -> Record:
    keys: tuple[tuple[str, object], ...] = (
        ("engine", ",".join(cards.concerned(state, outcome.target))),
        ("subject", str(outcome.target)),
        ("action", outcome.action),
        ("result", "ok" if outcome.ok else "failed"),
        ("took_s", round(outcome.took, 3)),
        ("explanation", outcome.explanation),
        *outcome.evidence,
    )
    return Record("action.finished", "info" if outcome.ok else "error", keys)


def _came_meanwhile(engine: EngineState) -> bool:
    """Whether somebody else has started it since: what was to be stopped had gone before."""
    there = engine.process in {ProcessState.STARTING, ProcessState.RUNNING}
    return engine.settings.attach is not None and there


def _stopped(state: State, engine: EngineState, event: ActionFinished) -> EngineState:
    if is_given_up(engine) and not state.shutting_down:
        return _cleared(engine, event)
    engine = move(engine, ProcessState.STOPPED, event.at)
    return changed(
        engine,
        generation="",
        leader=None,
        vitals=vitals.begin(event.at),
        reasons=(),
        failed_at=None,
        began_at=None,
        retry_at=None,
    )


def _cleared(engine: EngineState, event: ActionFinished) -> EngineState:
    """It stays given up, for the reason for which it was."""
    engine = move(engine, ProcessState.GIVEN_UP, event.at)
    return changed(engine, generation="", leader=None, vitals=vitals.begin(event.at))


def _not_done(engine: EngineState, event: ActionFinished, settings: PolicySettings) -> EngineState:
    outcome = event.outcome
    if outcome.unkillable:
        engine = move(engine, ProcessState.UNKILLABLE, event.at)
        return changed(engine, reasons=(outcome.explanation,))
    if outcome.untouched and engine.leader is not None:
        return _as_it_was(engine, event, settings)
    if outcome.action == "stop_engine" and is_given_up(engine):
        return _cleared(engine, event)  # once: what a stop could not do, the next could not either
    refused = outcome.cause in _REFUSED_BY_THE_BOX
    if refused and engine.charged:
        engine = refunded(engine)  # it must not use up the engine's budget
    engine = changed(engine, leader=None, ready_at=None)
    engine = failed(engine, event.at, outcome.cause, outcome.explanation, settings, curable=refused)
    if refused:
        due = event.at + _REFUSED_PAUSE
        engine = changed(engine, retry_at=max(engine.retry_at or due, due))
    reasons = (outcome.explanation,)
    return changed(move(engine, _after_failure(engine), event.at), reasons=reasons)


def _as_it_was(engine: EngineState, event: ActionFinished, settings: PolicySettings) -> EngineState:
    """Nobody was signalled: it serves as it did, its account pays nothing, and a try is far off."""
    if engine.charged:
        engine = refunded(engine)
    to = ProcessState.STARTING if engine.ready_at is None else ProcessState.RUNNING
    due = event.at + backoff(engine.history.failures, engine.generation, settings)
    return changed(move(engine, to, event.at), retry_at=max(due, event.at + _UNTOUCHED_PAUSE))
