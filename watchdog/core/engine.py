"""The heart: ``step``. One event in; a new state, what was decided, and the journal out.

The stages run in the order of the flow, each on what the one before left: facts are taken in,
verdicts fused, rules watched, incidents kept, decisions made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from watchdog.core import cards, incidents, lessons, policy, rules, verdict, views
from watchdog.core.commands import commanded, execute
from watchdog.core.conditions import View
from watchdog.core.facts import took
from watchdog.core.lifecycle import move, set_out
from watchdog.core.model import (
    Cause,
    Commanded,
    Decision,
    Event,
    Finding,
    HoldReason,
    Mode,
    ProcessState,
    Reading,
    ReadingTaken,
    Record,
    Seconds,
    Severity,
    Subject,
    SubjectKind,
    Tick,
    Value,
    Verdict,
)
from watchdog.core.rules import Rule
from watchdog.core.state import EngineState, Parts, PolicySettings, State, Step, Watch

_FAILED = frozenset({Verdict.DEAD, Verdict.STALLED})
_FINAL = frozenset({HoldReason.BUDGET, HoldReason.BREAKER_OPEN})
"""Holds that only a person ends."""
_OUTRANKED = frozenset({HoldReason.INHIBITED, HoldReason.BLOCKED})
_AT_REST = frozenset({ProcessState.BACKOFF, ProcessState.STOPPED})
_LOUD = {"info": "info", "warning": "warning", "critical": "error"}


@dataclass(slots=True)
class _Work:
    """What a step has gathered so far. Lives for one step only."""

    at: Seconds
    state: State
    findings: list[Finding] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


def step(state: State, event: Event, rule_set: Sequence[Rule], settings: PolicySettings) -> Step:
    """Take ``event`` in. Pure: the same arguments give the same step, on any machine, any day."""
    state, records = took(state, event, settings)
    work = _Work(event.at, state, records=list(records))
    _expire_pause(work)
    if isinstance(event, Commanded):
        _add(work, commanded(work.state, event))
    _carry_out_pending(work)
    _watch_box(work, event, tuple(rule_set))
    _fuse(work, settings)
    _watch_engines(work, rule_set)
    _keep_incidents(work, rule_set)
    _decide(work, settings)
    return Step(
        state=work.state,
        findings=tuple(work.findings),
        decisions=tuple(work.decisions),
        records=tuple(work.records),
        wake_at=_wake_at(work.state, rule_set, event.at),
    )


def _add(work: _Work, done: tuple[State, tuple[Decision, ...], tuple[Record, ...]]) -> None:
    work.state, decisions, records = done
    work.records.extend(records)
    for decision in decisions:
        _note(work, decision)


def _expire_pause(work: _Work) -> None:
    """A pause that ends leaves no debts: whatever was pending must hold anew."""
    pause = work.state.pause
    if pause is None or pause.until is None or work.at < pause.until:
        return
    work.state = replace(work.state, pause=None, watches=rules.rewound(work.state.watches))
    work.records.append(Record("watchdog.resumed", "info", (("reason", "pause expired"),)))


def _carry_out_pending(work: _Work) -> None:
    for engine in tuple(work.state.engines.values()):
        if engine.pending is not None and not engine.in_flight:
            _add(work, execute(work.state, engine, engine.pending, work.at))


def _fuse(work: _Work, settings: PolicySettings) -> None:
    engines = {name: _fused(work, engine, settings) for name, engine in work.state.engines.items()}
    work.state = replace(work.state, engines=engines)


def _fused(work: _Work, engine: EngineState, settings: PolicySettings) -> EngineState:
    at = work.at
    if engine.process is ProcessState.STARTING and verdict.is_first_ready(engine.vitals):
        engine = _first_ready(work, engine)
    judged = verdict.judge(engine, at)
    live = engine.process in {ProcessState.STARTING, ProcessState.RUNNING}
    if live and judged.verdict in _FAILED and engine.failed_at is None:
        cause, why = lessons.explained(engine, at, judged.cause, "; ".join(judged.reasons))
        engine = policy.failed(engine, at, cause, why, settings)
        engine = replace(engine, began_at=judged.began_at or at)
    elif live and judged.verdict not in _FAILED and engine.failed_at is not None:
        engine = replace(engine, failed_at=None, began_at=None, retry_at=None)
    health, judged = judged.verdict, verdict.with_gpus(judged, cards.faults(work.state, engine))
    if (engine.health, engine.verdict, engine.reasons) == (health, judged.verdict, judged.reasons):
        return engine
    return replace(engine, health=health, verdict=judged.verdict, reasons=judged.reasons)


def _first_ready(work: _Work, engine: EngineState) -> EngineState:
    at = work.at
    began = engine.started_at if engine.started_at is not None else at
    engine = replace(move(engine, ProcessState.RUNNING, at), ready_at=at, ready_seconds=at - began)
    keys = (
        ("engine", engine.name),
        ("generation", engine.generation),
        ("ready_seconds", round(at - began, 3)),
        ("canary", engine.vitals.canary),
    )
    proven = engine.vitals.progressed_at is not None
    work.records.append(Record("engine.ready" if proven else "engine.unproven", "info", keys))
    return engine


def view_of(engine: EngineState, parts: Parts = MappingProxyType({})) -> Mapping[str, Value]:
    """All that rules can ask about an engine: its state, and what probes of the box found.

    What is wanted is not known while an action runs: a finding lives until its outcome is in.
    """
    values: dict[str, Value] = {
        "process": engine.process.value,
        "health": engine.health.value,
        "verdict": engine.verdict.value,
        "cause": engine.cause.value,
        "reason": "; ".join(engine.reasons) or engine.explanation,
        "members": engine.vitals.members,
    }
    if not engine.in_flight:
        values["wanted"] = engine.history.wanted
    for part in parts.values():
        values.update(part)
    return values


def _watch_box(work: _Work, event: Event, rule_set: tuple[Rule, ...]) -> None:
    """Rules about GPUs and the host: those that a reading can change, and those that are due."""
    match event:
        case ReadingTaken(reading=Reading(subject=None) as reading):
            needed = views.wanted(rule_set)
            work.state, subjects = views.absorb(work.state, reading, needed)
            _forget_renamed(work, reading)
            work.state, records = lessons.taught(work.state, reading)
            work.records.extend(records)
            found = {subject: views.of(work.state, subject) for subject in subjects}
            for rule in views.asking(rule_set, reading.probe):
                _watch(work, rule, [s for s in found.items() if s[0].kind is rule.subject])
        case Tick():
            for rule in views.about_box(rule_set):
                _watch(work, rule, _due(work, rule))
        case _:
            pass


def _forget_renamed(work: _Work, reading: Reading) -> None:
    """A card that has its name now: what was found under its place in the list is over."""
    gone = views.renamed(work.state, reading)
    if not gone:
        return
    for (name, subject), seen in tuple(work.state.watches.items()):
        if subject in gone:
            _note_change(work, seen, Watch())
            kept = {k: v for k, v in work.state.watches.items() if k != (name, subject)}
            work.state = replace(work.state, watches=kept)
    work.state = views.forgotten(work.state, gone)


def _due(work: _Work, rule: Rule) -> list[tuple[Subject, View]]:
    """The subjects of which time alone may change what the rule says."""
    moments = {
        subject: rules.next_look(rule, seen)
        for (name, subject), seen in work.state.watches.items()
        if name == rule.name
    }
    due = [one for one, moment in moments.items() if moment is not None and moment <= work.at]
    return [(subject, views.of(work.state, subject)) for subject in due]


def _watch_engines(work: _Work, rule_set: Sequence[Rule]) -> None:
    state = work.state
    found: list[tuple[Subject, View]] = [
        (engine.subject, view_of(engine, state.views.get(engine.subject, {})))
        for engine in state.engines.values()
    ]
    for rule in rule_set:
        if rule.subject is SubjectKind.ENGINE and rule.mode is not Mode.OFF:
            _watch(work, rule, found)


def _watch(work: _Work, rule: Rule, found: Iterable[tuple[Subject, View]]) -> None:
    for subject, view in found:
        key = (rule.name, subject)
        before = work.state.watches.get(key, Watch())
        after = rules.watch(rule, subject, view, before, work.at)
        if after != before:
            work.state = replace(work.state, watches={**work.state.watches, key: after})
            _note_change(work, before, after)


def _note_change(work: _Work, before: Watch, after: Watch) -> None:
    if before.firing is None and after.firing is not None:
        work.findings.append(after.firing)
        level = _LOUD[after.firing.severity.value]
        work.records.append(Record("finding.firing", level, _finding_keys(work, after.firing)))
    elif before.firing is not None and after.firing is None:
        keys = _finding_keys(work, before.firing)
        work.records.append(Record("finding.resolved", "info", keys))


def _finding_keys(work: _Work, finding: Finding) -> tuple[tuple[str, object], ...]:
    incident = incidents.open_on(work.state, finding.subject)
    return (
        ("rule", finding.rule),
        ("severity", finding.severity.value),
        ("subject", str(finding.subject)),
        ("engine", ",".join(cards.concerned(work.state, finding.subject))),
        ("summary", finding.summary),
        ("incident", incident.id if incident is not None else ""),
        *finding.evidence,
    )


def firing(state: State) -> list[tuple[tuple[str, Subject], Finding]]:
    """Every firing finding with the key of its watch, loudest first."""
    found = [(key, seen.firing) for key, seen in state.watches.items() if seen.firing is not None]
    order = {"critical": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda pair: order[pair[1].severity.value])


def _keep_incidents(work: _Work, rule_set: Sequence[Rule]) -> None:
    fires = firing(work.state)
    for _, finding in fires:
        work.state, records = incidents.opened(work.state, finding, work.at)
        work.records.extend(records)
    watches = work.state.watches.items()
    told = {r.name for r in rule_set if r.severity is Severity.INFO and not r.actions}
    troubled = {
        subject
        for (rule, subject), seen in watches
        if rule not in told and (seen.pending_since is not None or seen.firing is not None)
    }
    for incident in work.state.incidents:
        if incident.resolved_at is None and incident.subject not in troubled:
            work.state, records = incidents.resolved(work.state, incident.subject, work.at)
            work.records.extend(records)


def _decide(work: _Work, settings: PolicySettings) -> None:
    for key, finding in firing(work.state):
        engine = work.state.engines.get(finding.subject.name)
        if engine is None or not finding.actions:
            continue
        _decide_one(work, key, finding, engine, settings)


def _decide_one(
    work: _Work,
    key: tuple[str, Subject],
    finding: Finding,
    engine: EngineState,
    settings: PolicySettings,
) -> None:
    before = work.state.watches[key]
    hold = policy.restraint(work.state, engine, finding, work.at, settings)
    if before.clear_since is not None:
        hold = HoldReason.COOLDOWN  # it is healing; only time may still take the finding away
    if hold is HoldReason.BUDGET:
        engine = policy.open_breaker(engine)
        keys = (("engine", engine.name), ("restarts", len(engine.history.restarts)))
        work.records.append(Record("breaker.opened", "error", keys))
    elif hold is None:
        engine = _acting(engine, finding, work.at, settings)
    if _is_final(hold, engine) and engine.process in _AT_REST:
        engine = move(engine, ProcessState.GIVEN_UP, work.at)
    judged = verdict.judge(engine, work.at)
    faulty = verdict.with_gpus(judged, cards.faults(work.state, engine))
    engine = replace(engine, health=judged.verdict, verdict=faulty.verdict)
    work.state = work.state.with_engine(engine)
    if hold is None or hold is not before.held:
        _note(work, _decision(work, finding, engine, hold))
    watches = {**work.state.watches, key: replace(before, held=hold)}
    work.state = replace(work.state, watches=watches)


def _is_final(hold: HoldReason | None, engine: EngineState) -> bool:
    """A start that the box blocks can be made later; one that no retry cures cannot."""
    return hold in _FINAL or (hold is HoldReason.BLOCKED and engine.history.given_up is not None)


def _acting(
    engine: EngineState, finding: Finding, at: Seconds, settings: PolicySettings
) -> EngineState:
    action = finding.actions[0]
    if action == "start_engine":  # nothing had failed before a first start
        return set_out(engine, action, at)
    return replace(set_out(policy.charge(engine, at, settings), action, at), charged=True)


def _decision(
    work: _Work, finding: Finding, engine: EngineState, hold: HoldReason | None
) -> Decision:
    incident = incidents.open_on(work.state, finding.subject)
    first = finding.actions[0] == "start_engine"
    return Decision(
        at=work.at,
        rule=finding.rule,
        target=finding.subject,
        action=finding.actions[0],
        cause=Cause.OPERATOR if first else engine.cause,
        hold=hold,
        detail=_detail(work, engine, hold),
        incident=incident.id if incident is not None else "",
    )


def _detail(work: _Work, engine: EngineState, hold: HoldReason | None) -> str:
    outranked = cards.hold(work.state, engine) if hold in _OUTRANKED else None
    return outranked[1] if outranked else "; ".join(engine.reasons) or engine.explanation


def _note(work: _Work, decision: Decision) -> None:
    work.decisions.append(decision)
    if decision.hold is None:
        work.state = incidents.acted(work.state, decision)
    keys: tuple[tuple[str, object], ...] = (
        ("rule", decision.rule),
        ("engine", decision.target.name),
        ("action", decision.action),
        ("cause", decision.cause.value),
        ("detail", decision.detail),
        ("incident", decision.incident),
    )
    if decision.hold is not None:
        keys = (*keys, ("reason", decision.hold.value))
    event = "decision.act" if decision.hold is None else "decision.hold"
    work.records.append(Record(event, "info", keys))


def _wake_at(state: State, rule_set: Sequence[Rule], at: Seconds) -> Seconds | None:
    moments: list[Seconds | None] = [state.pause.until if state.pause is not None else None]
    for engine in state.engines.values():
        moments.append(engine.retry_at)
        moments.append(verdict.next_look(engine, at))
    by_name = {rule.name: rule for rule in rule_set}
    for (name, _), seen in state.watches.items():
        if name in by_name:
            moments.append(rules.next_look(by_name[name], seen))
    return min((m for m in moments if m is not None and m > at), default=None)
