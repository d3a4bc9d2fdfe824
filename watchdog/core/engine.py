"""The heart: ``step``. One event in; a new state, what was decided, and the journal out.

The stages run in the order of the flow, each on what the one before left: facts are taken in,
verdicts fused, rules watched, incidents kept, decisions made, and what was given up cleared away.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog.core import (
    fusing,
    incidents,
    ladder,
    policy,
    rule_set,
    rules,
    timeline,
    verdict,
    views,
    watching,
)
from watchdog.core.changing import changed
from watchdog.core.clearing import clear
from watchdog.core.commands import commanded, execute
from watchdog.core.deciding import decide
from watchdog.core.facts import took
from watchdog.core.model import Commanded, Event, ProcessState, Record, Seconds, Severity, Subject
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import Rule
from watchdog.core.state import PolicySettings, State, Step
from watchdog.core.watching import firing
from watchdog.core.work import Work

__all__ = ["firing", "step"]

GAP: Seconds = 15.0
"""The loop turns every second; when nothing came in for so long, nobody looked in between."""


def step(
    state: State, event: Event, rule_book: RuleSet | Sequence[Rule], settings: PolicySettings
) -> Step:
    """Take ``event`` in. Pure: the same arguments give the same step, on any machine, any day."""
    before = state
    state, records = took(state, event, settings)
    work = Work(event.at, state, rule_set.of(rule_book), settings, records=list(records))
    _forget_the_dead(work, before)
    _notice_gap(work)
    _expire_pause(work)
    if isinstance(event, Commanded):
        paused = work.state.pause is not None
        work.add(commanded(work.state, event))
        if paused and work.state.pause is None:
            _forget_windows(work)
    _carry_out_pending(work)
    watching.learn(work, event)
    fusing.fuse(work)
    watching.watch_engines(work, before, event)
    _keep_incidents(work)
    decide(work)
    clear(work)
    _note_the_restless(work)
    if work.records:
        work.state = timeline.told(work.state, work.records, work.at)
    return Step(
        state=work.state,
        findings=tuple(work.findings),
        decisions=tuple(work.decisions),
        records=tuple(work.records),
        wake_at=_wake_at(work),
    )


def _notice_gap(work: Work) -> None:
    """After a time in which nobody looked, what was pending must hold anew."""
    last, at = work.state.at, work.at
    if last is not None and at - last > GAP:
        work.state = changed(rules.restarted(work.state), gap_at=at)
        work.anew = True
        keys = (("seconds", round(at - last, 3)),)
        work.records.append(Record("watchdog.gap", "warning", keys))
    if last is None or at > last:
        work.state = changed(work.state, at=at)


def _expire_pause(work: Work) -> None:
    """A pause that ends leaves no debts: whatever was pending must hold anew."""
    pause = work.state.pause
    if pause is None or pause.until is None or work.at < pause.until:
        return
    work.state = changed(rules.rewound(work.state), pause=None)
    work.anew = True
    _forget_windows(work)
    work.records.append(Record("watchdog.resumed", "info", (("reason", "pause expired"),)))


def _forget_windows(work: Work) -> None:
    """What piled up during a pause in the windows of rules that act is not acted upon."""
    windows = [w for rule in work.rules if rule.actions for w in rule.when.windows]
    names = {name for window in windows for name in (window.name, window.covered)}
    if names:
        work.state = views.without_windows(work.state, names)


def _carry_out_pending(work: Work) -> None:
    for engine in tuple(work.state.engines.values()):
        if engine.pending is not None and not engine.in_flight:
            work.add(execute(work.state, engine, engine.pending, work.at))


def _forget_the_dead(work: Work, before: State) -> None:
    """What an action has ended, and what was seen of a generation that is gone."""
    if before.beside is not None and work.state.beside is None:
        action, subject = before.beside
        work.state = ladder.ended(work.state, subject, action, work.at)
    for engine in tuple(work.state.engines.values()):
        was = before.engines.get(engine.name)
        if was is None:
            continue
        for ran, runs in ((was.in_flight, engine.in_flight), (was.aside, engine.aside)):
            if ran and not runs:
                work.state = ladder.ended(work.state, engine.subject, ran, work.at)
        if (was.generation, was.leader) != (engine.generation, engine.leader):
            work.state = views.without_life(work.state, engine)


def _note_the_restless(work: Work) -> None:
    """Whom a decision changed after the rules had seen it: they must be asked again.

    So must be who stands by for others, of whom its view tells.
    """
    others = {
        name
        for name, engine in work.state.engines.items()
        if (seen := work.judged.get(name)) is not None and seen is not engine
    }
    if others:
        others |= {name for name, one in work.state.engines.items() if one.settings.standby}
    restless = frozenset(others | (work.state.restless - work.judged.keys()))
    if restless != work.state.restless:
        work.state = changed(work.state, restless=restless)


def _keep_incidents(work: Work) -> None:
    quiet = work.rules.quiet
    for _, finding in firing(work.state):
        rule = work.rules.by_name.get(finding.rule)
        louder = None if rule is None else ladder.inhibitor(work.state, finding, rule)
        if louder is not None and louder.severity is not Severity.INFO:
            continue
        work.state, records = incidents.opened(work.state, finding, work.at)
        work.records.extend(records)
    troubled = {
        subject
        for (rule_name, subject), seen in work.state.watches.items()
        if rule_name not in quiet and (seen.pending_since is not None or seen.firing is not None)
    }
    for incident in work.state.incidents:
        if incident.subject in troubled or _in_transition(work.state, incident.subject):
            continue
        if incident.resolved_at is None:
            work.state, records = incidents.resolved(work.state, incident.subject, work.at)
            work.records.extend(records)


def _in_transition(state: State, subject: Subject) -> bool:
    """Whether it is not known yet what becomes of the engine: its story goes on."""
    engine = state.engines.get(subject.name)
    if engine is None or engine.subject != subject:
        return False
    return engine.process in {ProcessState.STARTING, ProcessState.STOPPING}


def _wake_at(work: Work) -> Seconds | None:
    """The next moment at which time alone can change something."""
    state, at = work.state, work.at
    moments: list[Seconds | None] = [state.pause.until if state.pause is not None else None]
    for engine in state.engines.values():
        moments.append(policy.retry_at(engine, at, work.settings))
        moments.append(verdict.next_look(engine, at))
    for key, seen in state.watches.items():
        rule = work.rules.by_name.get(key[0])
        if rule is not None:
            moments.extend(rules.next_look(rule, seen))
            if seen.firing is not None and rule.actions:
                moments.append(ladder.resting_until(state, key, rule))
    return min((m for m in moments if m is not None and m > at), default=None)
