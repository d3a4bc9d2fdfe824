"""The stage of the clearing: what is left of an engine that was given up is ended.

What outlives a leader, and a start that hangs, hold the memory of a GPU until somebody comes.
"""

from __future__ import annotations

from watchdog.core import cards, incidents, policy
from watchdog.core.lifecycle import set_out
from watchdog.core.model import Decision, Mode, ProcessState
from watchdog.core.state import EngineState, State
from watchdog.core.work import Work

RULE = "given-up"
"""In the place of a rule's name: no rule decides this, and no operator."""
_ACTION = "stop_engine"


def clear(work: Work) -> None:
    """End what was seen to live of engines that nobody starts any more; they stay given up."""
    state = work.state
    if state.mode is not Mode.ACT or state.pause is not None or state.shutting_down:
        return
    for engine in tuple(state.engines.values()):
        why = _remains(work.state, engine)
        if why:
            work.state = work.state.with_engine(set_out(engine, _ACTION, work.at))
            work.note(_decision(work, engine, why))


def _remains(state: State, engine: EngineState) -> str:
    """What is to be ended, in words; "" when nothing is, or nothing may be done."""
    if engine.in_flight or engine.pending is not None or not policy.is_given_up(engine):
        return ""
    if policy.is_only_told(engine):
        return ""
    if engine.process is ProcessState.STARTING and engine.failed_at is not None:
        why = "given up: its start hangs"
    elif engine.process is ProcessState.GIVEN_UP and _outlived(engine):
        why = f"given up: {engine.vitals.members} of its processes live on"
    else:
        return ""
    return "" if cards.hold(state, engine) or _unseen(state, engine) else why


def _outlived(engine: EngineState) -> bool:
    """Whether a look since it was given up has found processes of it."""
    vitals = engine.vitals
    seen = vitals.process_at is not None and vitals.process_at > engine.since
    return bool(engine.generation) and engine.leader is None and seen and vitals.members > 0


def _unseen(state: State, engine: EngineState) -> bool:
    """Whether nobody has looked since a gap."""
    seen = engine.vitals.process_at
    return state.gap_at is not None and (seen is None or seen < state.gap_at)


def _decision(work: Work, engine: EngineState, why: str) -> Decision:
    incident = incidents.open_on(work.state, engine.subject)
    return Decision(
        at=work.at,
        rule=RULE,
        target=engine.subject,
        action=_ACTION,
        cause=engine.cause,
        detail=why,
        incident=incident.id if incident is not None else "",
        generation=engine.generation,
    )
