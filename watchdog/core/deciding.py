"""The stage of the decisions: every firing finding that has an action is acted upon or held."""

from __future__ import annotations

from dataclasses import replace

from watchdog.core import beside, cards, incidents, ladder, policy, rules, verdict
from watchdog.core.lifecycle import LIFE, move, set_out
from watchdog.core.model import (
    Cause,
    Decision,
    Finding,
    HoldReason,
    ProcessState,
    Record,
    Subject,
    SubjectKind,
)
from watchdog.core.state import EngineState, StoppedBy
from watchdog.core.watching import firing
from watchdog.core.work import Work

_FINAL = frozenset({HoldReason.BUDGET, HoldReason.BREAKER_OPEN})
"""Holds that only a person ends."""
_OUTRANKED = frozenset({HoldReason.INHIBITED, HoldReason.BLOCKED})
_AT_REST = frozenset({ProcessState.BACKOFF, ProcessState.STOPPED})

_Key = tuple[str, Subject]


def decide(work: Work) -> None:
    """One decision for each finding with an action, the loudest first."""
    for key, finding in firing(work.state):
        if not finding.actions:
            continue
        if finding.subject.kind is not SubjectKind.ENGINE:
            beside.decide(work, key, finding)
        elif finding.subject.name in work.state.engines:
            _decide_one(work, key, finding, work.state.engines[finding.subject.name])


def _decide_one(work: Work, key: _Key, finding: Finding, engine: EngineState) -> None:
    before = work.state.watches[key]
    action = ladder.action(work.state, key, finding)
    hold, words = _restraint(work, key, finding, engine, action)
    cause = _cause(engine, action)
    if hold is HoldReason.BUDGET:
        engine = policy.open_breaker(engine)
        keys = (("engine", engine.name), ("restarts", len(engine.history.restarts)))
        work.records.append(Record("breaker.opened", "error", keys))
    elif hold is None:
        engine = _acting(work, engine, action)
        work.state = ladder.acted(work.state, key, action, work.at)
    if _is_final(hold, engine) and engine.process in _AT_REST:
        engine = move(engine, ProcessState.GIVEN_UP, work.at)
    engine = _judged(work, engine)
    work.state = work.state.with_engine(engine)
    if hold is None or hold is not before.held:
        work.note(_decision(work, finding, engine, (action, cause), hold, words))
    watches = {**work.state.watches, key: replace(before, held=hold)}
    work.state = replace(work.state, watches=watches)


def _restraint(
    work: Work, key: _Key, finding: Finding, engine: EngineState, action: str
) -> tuple[HoldReason | None, str]:
    """Why ``action`` is not taken, and in words where the engine's own are not the reason."""
    barred = policy.barred(work.state, engine, finding)
    if barred is not None:
        outranked = cards.hold(work.state, engine) if barred in _OUTRANKED else None
        return barred, outranked[1] if outranked else ""
    inhibitor = ladder.inhibitor(work.state, finding, work.rules.by_name[finding.rule])
    if inhibitor is not None:
        return HoldReason.INHIBITED, f"{inhibitor.rule}: {cards.words(work.state, inhibitor)}"
    return _own_restraint(work, key, engine, action)


def _own_restraint(
    work: Work, key: _Key, engine: EngineState, action: str
) -> tuple[HoldReason | None, str]:
    if action in LIFE:
        spared = policy.spares(work.state, engine, action, work.at)
        if spared is not None:
            return spared
    elif engine.aside:
        return HoldReason.IN_FLIGHT, ""
    if ladder.rests(work.state, key, work.rules.by_name[key[0]], work.at):
        return HoldReason.COOLDOWN, ""
    if not _seen(work, key, engine):
        return HoldReason.STALE, ""
    counts = action in ladder.CHARGED
    return policy.spent(engine, work.at, work.settings) if counts else None, ""


def _seen(work: Work, key: _Key, engine: EngineState) -> bool:
    """Whether what is found is known now, for as long as it must be, and was looked for since.

    Since a gap, since the engine's present start, and since the last act.
    """
    seen, rule = work.state.watches[key], work.rules.by_name[key[0]]
    held = rules.holds_since(rule, seen)
    if seen.unseen_since is not None or held is None or work.at < held:
        return False
    track = work.state.tracks.get(key)
    ended = track.ended_at if track is not None else None
    since = (work.state.gap_at, engine.started_at, ended)
    moments = [at for at in since if at is not None]
    return not moments or ladder.looked(work.state, rule, engine, max(moments))


def _is_final(hold: HoldReason | None, engine: EngineState) -> bool:
    """A start that the box blocks can be made later; one that no retry cures cannot."""
    return hold in _FINAL or (hold is HoldReason.BLOCKED and engine.history.given_up is not None)


def _acting(work: Work, engine: EngineState, action: str) -> EngineState:
    """The engine under way. A rule that starts or stops it for good says what is wanted of it."""
    first = action == "start_engine" and engine.history.wanted
    charged = action in ladder.CHARGED and not first
    if charged:
        engine = policy.charge(engine, work.at, work.settings)
    if action == "start_engine":
        engine = _wanted(engine, StoppedBy.NOBODY)
    elif action == "stop_engine":
        engine = _wanted(engine, StoppedBy.RULE)
    engine = set_out(engine, action, work.at)
    return replace(engine, charged=charged) if action in LIFE else engine


def _wanted(engine: EngineState, stopped_by: StoppedBy) -> EngineState:
    wanted = stopped_by is StoppedBy.NOBODY
    return replace(engine, history=replace(engine.history, wanted=wanted, stopped_by=stopped_by))


def _cause(engine: EngineState, action: str) -> Cause:
    """Of what is done: nothing had failed before a first start."""
    if action == "start_engine":
        return Cause.OPERATOR if engine.history.wanted else Cause.RULE
    return Cause.RULE if engine.failed_at is None else engine.cause


def _judged(work: Work, engine: EngineState) -> EngineState:
    judged = verdict.judge(engine, work.at)
    faulty = verdict.with_gpus(judged, cards.faults(work.state, engine))
    return replace(engine, health=judged.verdict, verdict=faulty.verdict)


def _decision(  # noqa: PLR0913, PLR0917 - one decision, whole
    work: Work,
    finding: Finding,
    engine: EngineState,
    what: tuple[str, Cause],
    hold: HoldReason | None,
    words: str,
) -> Decision:
    incident = incidents.open_on(work.state, finding.subject)
    return Decision(
        at=work.at,
        rule=finding.rule,
        target=finding.subject,
        action=what[0],
        cause=what[1],
        hold=hold,
        detail=words or "; ".join(engine.reasons) or engine.explanation or finding.summary,
        incident=incident.id if incident is not None else "",
        generation=engine.generation,
    )
