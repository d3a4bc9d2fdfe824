"""What operators ask for. A command outranks backoff, budget and pause, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from watchdog.core import cards, incidents, ladder, rules
from watchdog.core.lifecycle import set_out
from watchdog.core.model import (
    Cause,
    Commanded,
    Decision,
    HoldReason,
    Mode,
    Pause,
    ProcessState,
    Record,
    Seconds,
    Verb,
)
from watchdog.core.policy import forgiven, is_only_told, is_out_of_sight
from watchdog.core.state import Attach, EngineState, State, StoppedBy

_Done = tuple[State, tuple[Decision, ...], tuple[Record, ...]]

_ACTIONS = {
    Verb.START: "start_engine",
    Verb.STOP: "stop_engine",
    Verb.RESTART: "restart_engine",
    Verb.SHUTDOWN: "stop_engine",
}
_LIVE = frozenset({ProcessState.STARTING, ProcessState.RUNNING})


def commanded(state: State, event: Commanded) -> _Done:
    """Carry ``event`` out, or keep it for when the action in flight has ended."""
    match event.verb:
        case Verb.PAUSE:
            pause = Pause(event.reason, event.owner, event.at, event.until)
            keys = (("reason", event.reason), ("owner", event.owner))
            return replace(state, pause=pause), (), (Record("watchdog.paused", "warning", keys),)
        case Verb.RESUME if state.pause is None:
            return state, (), ()
        case Verb.RESUME:
            state = replace(rules.rewound(state), pause=None)
            return state, (), (Record("watchdog.resumed", "info"),)
        case Verb.LEAVE:
            return replace(state, shutting_down=True), (), ()
        case Verb.SHUTDOWN:
            return _each(replace(state, shutting_down=True), event)
        case Verb.START | Verb.STOP | Verb.RESTART | Verb.RESET_BREAKER:
            return _each(state, event)


def _each(state: State, event: Commanded) -> _Done:
    decisions: list[Decision] = []
    records: list[Record] = []
    for engine in tuple(state.engines.values()):
        if event.engine in {"", engine.name} and not _outlives_us(engine, event.verb):
            state, more, lines = execute(state, engine, event.verb, event.at)
            decisions.extend(more)
            records.extend(lines)
    return state, tuple(decisions), tuple(records)


def execute(state: State, engine: EngineState, verb: Verb, at: Seconds) -> _Done:
    """One verb on one engine. While an action runs it waits, a later verb in its place."""
    if verb is Verb.RESET_BREAKER:
        return _reset(state, engine, at)
    held = _held(state, engine, verb)
    if held is not None:
        decision = _decision(state, engine, verb, at)
        return state, (replace(decision, hold=held[0], detail=held[1]),), ()
    if engine.pending is Verb.SHUTDOWN and verb is not Verb.SHUTDOWN:
        return state, (), ()  # nothing outranks our own end
    engine = _meant(engine, verb)
    if engine.in_flight:
        return state.with_engine(replace(engine, pending=verb)), (), ()
    engine = replace(engine, pending=None)
    if _done_already(engine, verb):
        return state.with_engine(engine), (), ()
    engine = set_out(engine, _action(engine, verb), at)
    state = state.with_engine(engine)
    return state, (_decision(state, engine, verb, at),), ()


def _held(state: State, engine: EngineState, verb: Verb) -> tuple[HoldReason, str] | None:
    """Why the command must not be carried out, and in words."""
    if state.mode is not Mode.ACT:
        return HoldReason.OBSERVE, verb.value
    if (foreign := not_ours(engine, verb)) is not None:
        return foreign
    return cards.spares(state, engine) if verb is Verb.RESTART else None


def _outlives_us(engine: EngineState, verb: Verb) -> bool:
    """Whether it is somebody else's that is not ended with us."""
    return verb is Verb.SHUTDOWN and engine.settings.attach is not None


def not_ours(engine: EngineState, verb: Verb) -> tuple[HoldReason, str] | None:
    """Why the command is for whoever starts this engine, and in words; None when it is for us."""
    if engine.settings.attach is not Attach.REPORT and is_out_of_sight(engine):
        return HoldReason.BLOCKED, "its processes cannot be seen: nobody here can end this engine"
    if is_only_told(engine):
        return HoldReason.OBSERVE, "attached to report: somebody else starts and stops this engine"
    if verb is Verb.STOP and engine.settings.attach is not None:
        return HoldReason.BLOCKED, "somebody else would start this engine again: stop it there"
    return None


def _reset(state: State, engine: EngineState, at: Seconds) -> _Done:
    """Close the breaker, and start what should be running unless something is under way."""
    records: tuple[Record, ...] = ()
    if engine.history.breaker_open:
        records = (Record("breaker.closed", "info", (("engine", engine.name),)),)
    engine = forgiven(engine)
    state = ladder.forgiven(state.with_engine(engine), engine.subject)
    if engine.in_flight or engine.pending is not None or not engine.history.wanted:
        return state, (), records
    state, decisions, more = execute(state, engine, Verb.START, at)
    return state, decisions, (*records, *more)


def _action(engine: EngineState, verb: Verb) -> str:
    """A start of what is not cleanly stopped removes the leftovers first."""
    if verb is Verb.START and engine.process is not ProcessState.STOPPED:
        return "restart_engine"
    return _ACTIONS[verb]


def _meant(engine: EngineState, verb: Verb) -> EngineState:
    """What the operator wants from now on; a stop is sticky, our own shutdown is not."""
    history = engine.history
    match verb:
        case Verb.STOP:
            history = replace(history, wanted=False, stopped_by=StoppedBy.OPERATOR)
        case Verb.START | Verb.RESTART:
            history = replace(history, wanted=True, given_up=None, stopped_by=StoppedBy.NOBODY)
        case _:
            pass
    return replace(engine, history=history)


def _done_already(engine: EngineState, verb: Verb) -> bool:
    match verb:
        case Verb.START:
            return engine.process in _LIVE or not engine.history.wanted
        case Verb.STOP | Verb.SHUTDOWN:
            return engine.process is ProcessState.STOPPED
        case _:
            return False


def _decision(state: State, engine: EngineState, verb: Verb, at: Seconds) -> Decision:
    incident = incidents.open_on(state, engine.subject)
    return Decision(
        at=at,
        rule="operator",
        target=engine.subject,
        action=engine.in_flight or _action(engine, verb),
        cause=Cause.OPERATOR,
        detail=verb.value,
        incident=incident.id if incident is not None else "",
        generation=engine.generation,
    )
