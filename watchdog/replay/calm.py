"""A way around most steps: a reading by which no answer changes, changes nothing but the time.

Nothing here decides anything: whenever an answer might differ, the core is asked. Of the box it is
the rules that are asked, for the values that moved; of an engine, its verdict while it serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from watchdog.core import facts, verdict, views
from watchdog.core.model import (
    SERVING,
    ProcessState,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    Subject,
    Value,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import Rule
from watchdog.core.state import EngineState, PolicySettings, State, Watch
from watchdog.core.views import BoxView

_LONGEST: Seconds = 120.0
"""A stream of readings is shown to the core this often at least."""
_RESTING = frozenset({ProcessState.STOPPED, ProcessState.GIVEN_UP})

_Stream = tuple[str, Subject | None]


class Calm:
    """Knows what the core was shown last, and what was kept from it since."""

    def __init__(self, rules: RuleSet, settings: PolicySettings) -> None:
        self._settings = settings
        self._asking: dict[str, list[Rule]] = {}
        for rule in (*rules.of_box, *rules.of_engines):
            for name in rule.when.samples:
                self._asking.setdefault(name, []).append(rule)
        self._probes = {name.partition(".")[0] for name in self._asking}
        windows = [window for found in rules.windows.values() for window in found]
        self._looked_back_at = frozenset(rules.windows)
        self._longest = min([_LONGEST, *(window.seconds / 3 for window in windows)])
        self._shown: dict[_Stream, Reading] = {}
        self._withheld: dict[_Stream, ReadingTaken] = {}
        self._watches: Mapping[tuple[str, Subject], Watch] | None = None
        self._troubled: frozenset[Subject] = frozenset()
        self._faulty = self._quiet = False

    def reset(self) -> None:
        """The core begins anew."""
        self._shown.clear()
        self._withheld.clear()

    def shown(self, event: ReadingTaken) -> None:
        """The core has seen it."""
        stream = (event.reading.probe, event.reading.subject)
        self._shown[stream] = event.reading
        self._withheld.pop(stream, None)

    def owed(self, state: State) -> list[ReadingTaken]:
        """What was withheld and counts now: whether cards work, when completions are overdue."""
        if not self._withheld or not _is_overdue(state):
            return []
        found = sorted(self._withheld.values(), key=lambda event: event.at)
        self._withheld.clear()
        return found

    def around(
        self, state: State, event: ReadingTaken, wake_at: Seconds | None
    ) -> tuple[State, Seconds | None] | None:
        """The state after ``event`` and when to look again; None when the core must be asked.

        ``wake_at`` is when to look as things stand.
        """
        reading = event.reading
        stream = (reading.probe, reading.subject)
        last = self._shown.get(stream)
        if last is None or state.at is None or event.at - last.at >= self._longest:
            return None
        if state.shutting_down or not _alike(reading, last):
            return None
        if reading.subject is not None:
            return self._engine(state, event, last, wake_at)
        if not _is_idle_news(state, reading) or not self._same_answers(state, reading, last):
            return None
        self._withheld[stream] = event
        state, _ = facts.took(state, event, self._settings)  # when it looked last is asked for too
        return replace(state, at=max(state.at or event.at, event.at)), wake_at

    def _same_answers(self, state: State, reading: Reading, last: Reading) -> bool:
        """Whether every rule about the box says what it said of the reading before."""
        if len(reading.samples) != len(last.samples):
            return False
        changed: dict[Subject, dict[str, Value]] = {}
        for one, other in zip(reading.samples, last.samples, strict=True):
            if one is other or one == other:
                continue
            if not _only_number_moved(one, other):
                return False
            name = views.name_of(reading.probe, one)
            if name in self._looked_back_at:
                return False
            changed.setdefault(one.subject, {})[name] = one.value
        return all(self._keeps(state, reading.probe, *pair) for pair in changed.items())

    def _keeps(
        self, state: State, probe: str, subject: Subject, values: Mapping[str, Value]
    ) -> bool:
        rules = {
            rule.name: rule
            for name in values
            for rule in self._about(name)
            if rule.subject is subject.kind
        }
        if not rules:
            return True
        parts = views.of(state, subject).parts
        view = BoxView({**parts, probe: {**parts.get(probe, {}), **values}})
        return all(self._answers(state, rule, subject, view) for rule in rules.values())

    def _about(self, name: str) -> list[Rule]:
        """The rules that ask for the sample, or for all of its labels."""
        if name not in self._asking:
            head, dot, _ = name.rpartition(".")
            self._asking[name] = self._about(head) if dot else []
        return self._asking[name]

    def _answers(self, state: State, rule: Rule, subject: Subject, view: BoxView) -> bool:
        seen = state.watches.get((rule.name, subject))
        troubled = seen is not None and seen.clear_since is None and not _is_silent(seen)
        return (rule.when(view) is True) == troubled

    def _engine(
        self, state: State, event: ReadingTaken, last: Reading, wake_at: Seconds | None
    ) -> tuple[State, Seconds | None] | None:
        """Its vitals move; what they mean must be as it was."""
        reading = event.reading
        if reading.probe in self._probes and not _same(reading.samples, last.samples):
            return None
        before = state.engines.get(reading.subject.name) if reading.subject else None
        if before is None or not _serves(before) or not self._is_untroubled(state, before):
            return None
        state, _ = facts.took(state, event, self._settings)
        engine = state.engines[before.name]
        judged = verdict.judge(engine, event.at)
        told = (judged.verdict, judged.verdict, judged.reasons)
        if told != (engine.health, engine.verdict, engine.reasons):
            return None
        if engine.vitals.members != before.vitals.members or not _serves(engine):
            return None
        state = replace(state, at=max(state.at or event.at, event.at))
        return state, _wake_at(state, event.at) if self._quiet else wake_at

    def _is_untroubled(self, state: State, engine: EngineState) -> bool:
        """Whether no rule says anything of it, nor of a card that would take it out of service."""
        if state.watches is not self._watches:
            self._watches = state.watches
            loud = {key[1]: seen for key, seen in state.watches.items() if not _is_silent(seen)}
            self._troubled = frozenset(loud)
            self._faulty = any(one.firing and one.firing.fault for one in loud.values())
        resting = all(_rests(one) for one in state.engines.values())
        self._quiet = resting and not self._troubled
        return not self._faulty and engine.subject not in self._troubled


def _is_silent(seen: Watch) -> bool:
    return seen.firing is None and seen.pending_since is None


def _is_overdue(state: State) -> bool:
    return any(engine.vitals.failing_since is not None for engine in state.engines.values())


def _is_idle_news(state: State, reading: Reading) -> bool:
    """Whether no engine learns from it now: that its cards work, or which are its own."""
    if reading.probe == "gpu":
        return not _is_overdue(state)
    return reading.probe != "gpu_processes" or all(map(_rests, state.engines.values()))


def _serves(engine: EngineState) -> bool:
    running = engine.process is ProcessState.RUNNING and not engine.in_flight
    return running and engine.verdict in SERVING and engine.vitals.failing_since is None


def _rests(engine: EngineState) -> bool:
    still = engine.process in _RESTING and not engine.in_flight and engine.failed_at is None
    return (still or _serves(engine)) and engine.pending is None


def _alike(reading: Reading, last: Reading) -> bool:
    """Whether it worked as the one before did, and saw the same start."""
    return (
        reading.error is None
        and last.error is None
        and reading.unread == last.unread
        and reading.generation == last.generation
    )


def _only_number_moved(one: Sampled, other: Sampled) -> bool:
    words = isinstance(one.value, (bool, str)) or isinstance(other.value, (bool, str))
    return not words and (one.subject, one.sample, one.labels) == (
        other.subject,
        other.sample,
        other.labels,
    )


def _same(samples: Sequence[Sampled], others: Sequence[Sampled]) -> bool:
    return len(samples) == len(others) and all(map(_equal, samples, others))


def _equal(one: Sampled, other: Sampled) -> bool:
    return one is other or one == other


def _wake_at(state: State, at: Seconds) -> Seconds | None:
    """As the core's own, of a quiet state: no rule waits for anything."""
    moments = [state.pause.until] if state.pause is not None else []
    for engine in state.engines.values():
        moments += [engine.retry_at, verdict.next_look(engine, at)]
    return min((moment for moment in moments if moment is not None and moment > at), default=None)
