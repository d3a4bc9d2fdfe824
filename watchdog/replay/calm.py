"""A way around half of most steps: where nothing fires about an engine, nothing is decided.

A reading is taken in by the core's own stages. What is left out is what comes to nothing: rules
about engines whose view is as it was, and decisions without a finding. Whenever that is not sure,
the core is asked. The state is at every moment the one that the core would have.
"""

from __future__ import annotations

from collections.abc import Mapping

from watchdog.core import facts, fusing, itself, policy, rules, verdict, views, watching
from watchdog.core.changing import changed
from watchdog.core.engine import GAP
from watchdog.core.model import ReadingTaken, Seconds, Subject, SubjectKind, Value
from watchdog.core.rule_set import RuleSet
from watchdog.core.state import EngineState, PolicySettings, State, Watch
from watchdog.core.work import Work
from watchdog.replay.flat import Flat, running, wholly

_LOAD = ("engine.requests_", "engine.others_")
"""What is known of them ends by time alone."""

_Watches = Mapping[tuple[str, Subject], Watch]


class Calm:
    """Remembers what it saw of watches, which seldom change."""

    def __init__(self, book: RuleSet, settings: PolicySettings) -> None:
        self._rules, self._settings = book, settings
        asked = {name for rule in book.of_engines for name in rule.when.samples}
        windows = [window for rule in book.of_engines for window in rule.when.windows]
        figures = {name for window in windows for name in (window.name, window.covered)}
        self._asked = asked | figures
        self._load_counts = any(name.startswith(_LOAD) for name in asked)
        self._watches: _Watches | None = None
        self._flat = Flat(book)
        self._undecided = self._running = False
        self._moments: tuple[Seconds, ...] = ()

    def around(self, state: State, event: ReadingTaken) -> tuple[State, Seconds | None] | None:
        """The state after ``event`` and when to look again; None when the core must be asked."""
        if not self._is_calm(state, event.at):
            return None
        work = self._learnt(state, event)
        known = work.state
        fusing.fuse(work)
        same = work.state is known and known.watches is state.watches
        if not same or work.records or not self._says_nothing_new(state, known):
            return None
        return known, self._wake_at(known, event.at)

    def _learnt(self, state: State, event: ReadingTaken) -> Work:
        """What is known after a reading, as the core's own stages take it in."""
        if event.reading.subject is None and not self._running:
            flat = self._flat.learnt(state, event)
            if flat is not None:
                return Work(event.at, flat, self._rules, self._settings)
        taken, records = facts.took(state, event, self._settings)
        work = Work(event.at, taken, self._rules, self._settings, records=list(records))
        if state.at is None or event.at > state.at:
            work.state = changed(work.state, at=event.at)
        watching.learn(work, event)
        return work

    def _is_calm(self, state: State, at: Seconds) -> bool:
        """Whether nothing that was known before leads to anything at ``at``."""
        if state.watches is not self._watches:
            self._look_at(state.watches)
        if self._undecided or state.restless or state.at is None or at - state.at > GAP:
            return False
        if state.pause is not None and state.pause.until is not None and at >= state.pause.until:
            return False
        return all(engine.pending is None for engine in state.engines.values())

    def _look_at(self, watches: _Watches) -> None:
        self._watches = watches
        self._undecided = any(map(self._is_decided_about, watches))
        self._running = running(watches)
        self._moments = tuple(
            moment
            for (name, _), seen in watches.items()
            if (rule := self._rules.by_name.get(name)) is not None
            for moment in rules.next_look(rule, seen)
        )

    def _is_decided_about(self, key: tuple[str, Subject]) -> bool:
        rule = self._rules.by_name.get(key[0])
        return key[1].kind is SubjectKind.ENGINE or (rule is not None and bool(rule.actions))

    def _says_nothing_new(self, before: State, now: State) -> bool:
        """Whether rules about engines are asked nothing else than they were asked before."""
        moved = before.engines is not now.engines
        return all(
            self._looks_alike(before, now, engine)
            for engine in now.engines.values()
            if (moved and engine.settings.standby)
            or before.engines[engine.name] is not engine
            or before.views.get(engine.subject) is not now.views.get(engine.subject)
        )

    def _looks_alike(self, before: State, now: State, engine: EngineState) -> bool:
        was = before.engines[engine.name]
        if policy.is_stale(before, was) or policy.is_stale(now, engine):
            return False
        if (was.cards, was.cards_of, was.xids) != (engine.cards, engine.cards_of, engine.xids):
            return False
        parts = views.of_engine(now, engine).parts
        if self._load_counts and itself.has_aged(now, engine):
            return False
        told = views.of_engine(before, was).parts
        return all(
            told.get(probe) is parts.get(probe)
            or self._asked.isdisjoint(wholly(_different(told.get(probe, {}), parts.get(probe, {}))))
            for probe in told.keys() | parts.keys()
        )

    def _wake_at(self, state: State, at: Seconds) -> Seconds | None:
        """As the core's own, where no action of a rule rests."""
        moments = [*self._moments, None if state.pause is None else state.pause.until]
        for engine in state.engines.values():
            moments += [
                policy.retry_at(engine, at, self._settings),
                verdict.next_look(engine, at),
            ]
        return min((one for one in moments if one is not None and one > at), default=None)


def _different(part: Mapping[str, Value], other: Mapping[str, Value]) -> set[str]:
    """The names whose values are not the same in both."""
    changed = {name for name, value in part.items() if name not in other or other[name] != value}
    return changed | (other.keys() - part.keys())
