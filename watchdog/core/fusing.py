"""The stage of the verdicts: what is known of each engine becomes one word about its health."""

from __future__ import annotations

from watchdog.core import cards, lessons, policy, verdict
from watchdog.core.changing import changed
from watchdog.core.lifecycle import move
from watchdog.core.model import ProcessState, Record, Verdict
from watchdog.core.state import EngineState
from watchdog.core.work import Work

_FAILED = frozenset({Verdict.DEAD, Verdict.STALLED})


def fuse(work: Work) -> None:
    """Judge the health of every engine anew."""
    engines = {name: _fused(work, engine) for name, engine in work.state.engines.items()}
    if any(engine is not work.state.engines[name] for name, engine in engines.items()):
        work.state = changed(work.state, engines=engines)


def _fused(work: Work, engine: EngineState) -> EngineState:
    at = work.at
    if engine.process is ProcessState.STARTING and verdict.is_first_ready(
        engine.vitals, expects_log=engine.settings.expects_log
    ):
        engine = _first_ready(work, engine)
    judged = verdict.judge(engine, at)
    live = engine.process in {ProcessState.STARTING, ProcessState.RUNNING}
    if live and judged.verdict in _FAILED and engine.failed_at is None:
        cause, why = lessons.explained(engine, at, judged.cause, "; ".join(judged.reasons))
        engine = policy.failed(engine, at, cause, why, work.settings)
        engine = changed(engine, began_at=judged.began_at or at)
    elif live and judged.verdict not in _FAILED and engine.failed_at is not None:
        engine = policy.healed(engine)
    health, judged = judged.verdict, verdict.with_gpus(judged, cards.faults(work.state, engine))
    if (engine.health, engine.verdict, engine.reasons) == (health, judged.verdict, judged.reasons):
        return engine
    return changed(engine, health=health, verdict=judged.verdict, reasons=judged.reasons)


def _first_ready(work: Work, engine: EngineState) -> EngineState:
    at = work.at
    began = engine.started_at if engine.started_at is not None else at
    engine = changed(move(engine, ProcessState.RUNNING, at), ready_at=at, ready_seconds=at - began)
    keys = (
        ("engine", engine.name),
        ("generation", engine.generation),
        ("ready_seconds", round(at - began, 3)),
        ("canary", engine.vitals.canary),
    )
    proven = engine.vitals.progressed_at is not None
    work.records.append(Record("engine.ready" if proven else "engine.unproven", "info", keys))
    return engine
