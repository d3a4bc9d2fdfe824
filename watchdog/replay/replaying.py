"""Feeds a recording to the core as the loop would, with rules and policy of today.

Facts come as they were recorded. An act of today that did not happen then is hypothetical: what the
world would have done is not known. It is put on the account and stays in flight until the recording
brings the engine's next fact, or for a minute; the engine's life goes on as it was recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from watchdog.core import facts, ladder, rule_set
from watchdog.core.engine import GAP, step
from watchdog.core.lifecycle import LIFE, set_out
from watchdog.core.model import (
    ActionFinished,
    Decision,
    EngineExited,
    EngineSpawned,
    Event,
    Mode,
    Outcome,
    ReadingTaken,
    Seconds,
    Subject,
    SubjectKind,
    Tick,
    engine_subject,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import Rule
from watchdog.core.state import PolicySettings, State, Step
from watchdog.recorder import Start, Told
from watchdog.replay.calm import Calm
from watchdog.replay.report import Found, Report, Row, paired

HEARTBEAT: Seconds = 1.0
"""The loop turns at least this often: that late it may have noticed what was due."""
_DAY: Seconds = 86400.0
FLIGHT: Seconds = 60.0
"""How long a hypothetical act counts as under way."""


def replay(  # noqa: PLR0913 - the options are given by name
    recording: Iterable[Start | Told],
    rules: RuleSet | Sequence[Rule],
    settings: PolicySettings,
    *,
    since: float | None = None,
    mode: Mode | None = None,
    every_step: bool = False,
) -> Report:
    """Judge a recording anew. Rows before the wall time ``since`` are not in the report.

    ``mode`` judges as if the watchdog had been in it, whatever it was in. ``every_step`` asks the
    core about every reading, also where nothing can come of it: it takes ten times as long.
    """
    run = _Replay(rule_set.of(rules), settings, -math.inf if since is None else since, mode)
    run.every_step = every_step
    for entry in recording:
        if isinstance(entry, Start):
            run.start(entry)
        elif math.isfinite(entry.event.at):
            run.tell(entry)
    return run.report


_Hand = tuple[Subject, bool]
"""What can be under way at the same time: on each subject something that starts or stops it, and
something beside that."""


def _hand_of(act: Decision | Outcome) -> _Hand:
    return act.target, act.action in LIFE


def _fact_about(event: Event) -> _Hand | None:
    """What the event tells something of that was done, or happened to its processes."""
    match event:
        case EngineSpawned() | EngineExited():
            return engine_subject(event.engine), True
        case ActionFinished():
            return _hand_of(event.outcome)
        case _:
            return None


class _Replay:
    def __init__(
        self, rules: RuleSet, settings: PolicySettings, since: float, mode: Mode | None
    ) -> None:
        self.report = Report()
        self._rules, self._settings = rules, settings
        self._since, self._mode = since, mode
        self._state = State()
        self._wake: Seconds | None = None
        self._offset = 0.0
        self._flights: dict[_Hand, tuple[Seconds, str]] = {}
        self._calm = Calm(rules, settings)
        self.every_step = False

    def start(self, entry: Start) -> None:
        """Go on from a checkpoint; the rest is kept when it is the same run."""
        state = entry.state
        if not entry.fresh:
            state = replace(
                self._state,
                engines=state.engines,
                mode=state.mode,
                pause=state.pause,
                shutting_down=state.shutting_down,
                cards=state.cards,
                tracks=state.tracks,
            )
            late = state.at is not None and entry.at - state.at > GAP
            state = replace(state, at=entry.at) if late else state
        self._state = state if self._mode is None else replace(state, mode=self._mode)
        self._wake = None
        self._flights.clear()
        self.report.runs += entry.fresh
        self.report.lost += entry.lost

    def tell(self, told: Told) -> None:
        """One recorded event, after the turns of the loop that lie before it."""
        self._offset = told.offset
        self._turn_until(told)
        wall = told.event.at + told.offset
        if wall >= self._since:
            self.report.seen(wall)
        if not self._passed(told):
            self._step(told.event, told.decisions)

    def _passed(self, told: Told) -> bool:
        """Whether nothing comes of it, so that the core need not be asked."""
        event = told.event
        if self.every_step or self._flights or told.decisions or told.gap_since is not None:
            return False
        if not isinstance(event, ReadingTaken):
            return False
        found = self._calm.around(self._state, event)
        if found is not None:
            self._state, self._wake = found
        return found is not None

    def _turn_until(self, told: Told) -> None:
        """Tick when something is due. Where nobody looked, nobody looks now."""
        event, until = told.event, told.event.at
        if told.gap_since is not None:
            until = min(until, told.gap_since)
        answered = isinstance(event, Tick) or bool(told.decisions)
        while (due := self._due(until, answered=answered)) is not None:
            self._step(Tick(due), ())
        at = self._state.at
        if told.gap_since is not None and (at is None or at < told.gap_since):
            self._step(Tick(told.gap_since), ())

    def _due(self, until: Seconds, *, answered: bool) -> Seconds | None:
        """When to tick next, at most at ``until``.

        ``answered``: the event there may be what the loop made of it, a moment late.
        """
        at = self._state.at
        if at is None:
            return None
        moments = [until for until, _ in self._flights.values()]
        if self._wake is not None:
            moments.append(self._wake)
        due = max(min(moments, default=math.inf), at)
        if due > until or (answered and until - due <= HEARTBEAT):
            due = math.inf
        if (
            GAP < until - at < _DAY
        ):  # the loop's heart beat all the time, with nothing worth recording
            due = min(due, at + GAP)
        return due if due < math.inf else None

    def _step(self, event: Event, then: tuple[Decision, ...]) -> None:
        self._land(event)
        before = self._state
        try:
            done = step(before, event, self._rules, self._settings)
        except Exception:  # noqa: BLE001 - as the loop: a bug costs one event, and is told
            self.report.bugs += 1
            self._state, self._wake = replace(before, at=event.at), None
            return
        self._state, self._wake = done.state, done.wake_at
        acted = {_hand_of(decision): decision for decision in then if decision.hold is None}
        acts = {_hand_of(one): one for one in done.decisions if one.hold is None}
        for hand in acts.keys() - acted.keys():
            self._take_off(before, event, acts[hand])
        for hand in acted.keys() - acts.keys():
            self._follow(acted[hand], event.at)
        self._report(event.at, done, then, would=acts.keys() - acted.keys())

    # --- what did not happen ------------------------------------------------------------------

    def _take_off(self, before: State, event: Event, act: Decision) -> None:
        """Put a hypothetical act on the account, and leave the engine's life as it was."""
        self._flights[_hand_of(act)] = event.at + FLIGHT, act.action
        if act.action not in LIFE:
            return
        name = act.target.name
        after = self._state.engines[name]
        lived = facts.took(before, event, self._settings)[0].engines[name]
        first = act.action == "start_engine"
        engine = replace(
            after,
            process=lived.process,
            since=lived.since,
            vitals=lived.vitals,
            started_at=lived.started_at,
            ready_at=lived.ready_at,
            failed_at=lived.failed_at if first else after.failed_at,
            health=lived.health,
            verdict=lived.verdict,
        )
        self._state = self._state.with_engine(engine)

    def _land(self, event: Event) -> None:
        """Hypothetical acts end with the next fact about their target, or with their time."""
        if not self._flights:
            return
        told = _fact_about(event)
        for hand, (until, action) in tuple(self._flights.items()):
            if hand == told or event.at >= until:
                del self._flights[hand]
                self._let_go(hand, action, event.at)

    def _let_go(self, hand: _Hand, action: str, at: Seconds) -> None:
        state, (subject, lives) = self._state, hand
        engine = state.engines.get(subject.name)
        if lives and engine is not None:
            state = state.with_engine(replace(engine, in_flight="", charged=False))
        elif subject.kind is not SubjectKind.ENGINE:
            state = state if state.beside != (action, subject) else replace(state, beside=None)
        elif engine is not None and engine.aside == action:
            state = state.with_engine(replace(engine, aside=""))
        self._state = ladder.ended(state, subject, action, at)

    def _follow(self, act: Decision, at: Seconds) -> None:
        """It was done then: what the recording tells next is understood as its doing."""
        engine = self._state.engines.get(act.target.name)
        if act.target.kind is not SubjectKind.ENGINE:
            self._flights.pop(_hand_of(act), None)
            self._state = replace(self._state, beside=(act.action, act.target))
        elif engine is not None:
            self._flights.pop(_hand_of(act), None)
            self._state = self._state.with_engine(set_out(engine, act.action, at))

    # --- what is told -------------------------------------------------------------------------

    def _report(
        self, at: Seconds, done: Step, then: tuple[Decision, ...], would: set[_Hand]
    ) -> None:
        wall = at + self._offset
        if wall < self._since:
            return
        for now, old in paired(done.decisions, then):
            one = now or old
            if one is not None:
                hypothetical = now is not None and now.hold is None and _hand_of(now) in would
                self.report.add(Row(wall, one.target, one.rule, now, old, hypothetical))
        for record in done.records:
            if record.event in {"finding.firing", "finding.resolved"}:
                keys = dict(record.keys)
                words = (str(keys["subject"]), str(keys["rule"]), str(keys["severity"]))
                self.report.find(Found(wall, *words, resolved=record.event.endswith("resolved")))
