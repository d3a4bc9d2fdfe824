"""Takes in a reading of the box that has the samples of the one before: most of them have.

What is known of the box is then changed in place of being built anew, with the same result as that
of the core's own stage; whatever is not as usual is left to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from watchdog.core import lessons, rules, views
from watchdog.core.changing import changed
from watchdog.core.conditions import Figure, Window
from watchdog.core.model import Reading, ReadingTaken, Sampled, Subject, Value
from watchdog.core.rule_set import RuleSet
from watchdog.core.series import Series
from watchdog.core.state import State, Watch

_Part = Mapping[str, Value]
_Changes = dict[Subject, dict[str, Value]]
_UNSEEN = Watch()


@dataclass(slots=True)
class _Shape:
    """How the last reading of a probe became parts of views."""

    last: Reading
    names: tuple[str, ...]
    watched: tuple[tuple[int, tuple[Window, ...]], ...]
    parts: dict[Subject, _Part]
    cards: Mapping[Subject, str]


class Flat:
    """Knows the shapes of readings. Its state is always the one that the core would have."""

    def __init__(self, book: RuleSet) -> None:
        self._rules = book
        self._shapes: dict[str, _Shape] = {}

    def learnt(self, state: State, event: ReadingTaken) -> State | None:
        """``state`` with a reading of the box; None when it is not a usual one.

        No rule about the box may be pending, clearing or without an answer.
        """
        reading = event.reading
        shape = self._shape(state, reading)
        if shape is None:
            return None
        changes = _changes(shape, reading)
        if changes is None:
            return None
        series = self._series(state, shape, reading, changes)
        parts = {one: {**shape.parts[one], **new} for one, new in changes.items()}
        seen = dict(state.views)
        for subject, part in parts.items():
            seen[subject] = {**seen[subject], reading.probe: part}
        key = (reading.probe, "")
        known = changed(
            state,
            readings={**state.readings, key: reading},
            views=seen,
            series=series,
            at=event.at if state.at is None else max(state.at, event.at),
        )
        known, records = lessons.taught(known, reading)
        if records or not self._answers_stay(known, shape, changes, event):
            return None
        shape.last = reading
        shape.parts |= parts
        return known

    def _shape(self, state: State, reading: Reading) -> _Shape | None:
        probe = reading.probe
        last = state.readings.get((probe, ""))
        told = last is not None and (last.error, reading.error) == (None, None)
        usual = probe in state.proven - state.failing and {probe, views.SELF} <= state.judged
        if last is None or not told or not usual or state.absent:
            return None
        if len(last.samples) != len(reading.samples):
            return None
        shape = self._shapes.get(probe)
        if shape is None or not _is_current(shape, state, last):
            shape = self._learnt_shape(state, last)
        return shape

    def _learnt_shape(self, state: State, last: Reading) -> _Shape | None:
        """The shape of the last reading, if its parts are what that alone made of them."""
        self._shapes.pop(last.probe, None)
        names = tuple(views.name_of(last.probe, one) for one in last.samples)
        made: _Changes = {}
        for name, one in zip(names, last.samples, strict=True):
            made.setdefault(one.subject, {})[name] = one.value
        parts = {one: all_[last.probe] for one, all_ in state.views.items() if last.probe in all_}
        windows = self._rules.windows
        figures = {text for name in names for w in windows.get(name, ()) for text in _texts(w)}
        sound = made.keys() == parts.keys() and sum(map(len, made.values())) == len(names)
        named = all(not one.name.startswith(("index-", "pci-")) for one in made)
        if (
            not sound
            or not named
            or any(
                made[one] != {name: v for name, v in part.items() if name not in figures}
                for one, part in parts.items()
            )
        ):
            return None
        watched = tuple((at, windows[name]) for at, name in enumerate(names) if name in windows)
        shape = _Shape(last, names, watched, parts, state.cards)
        self._shapes[last.probe] = shape
        return shape

    def _series(
        self, state: State, shape: _Shape, reading: Reading, changes: _Changes
    ) -> Mapping[tuple[Subject, str], Series]:
        """All series, with a point for each sample that is looked back at; figures change too."""
        if not shape.watched:
            return state.series
        series = dict(state.series)
        for place, windows in shape.watched:
            one = reading.samples[place]
            part = shape.parts[one.subject]
            for window in windows:
                key = (one.subject, window.name)
                kept = series.get(key)
                if not isinstance(one.value, str) or window.figure is Figure.CHANGES:
                    kept = kept or Series(window.figure, window.seconds)
                    kept = series[key] = kept.with_point(reading.at, one.value)
                if kept is None:
                    continue
                for name, value in ((window.name, kept.value), (window.covered, kept.covered)):
                    if part.get(name) != value or type(part[name]) is not type(value):
                        changes.setdefault(one.subject, {})[name] = value
        return series

    def _answers_stay(
        self, state: State, shape: _Shape, changes: _Changes, event: ReadingTaken
    ) -> bool:
        """Whether every rule about the box that may say something else says the same."""
        asked = self._rules.asked_by(event.reading.probe)
        for subject in shape.parts:
            names = frozenset(wholly(changes.get(subject, ())))
            found = None
            for rule in asked:
                if rule.subject is not subject.kind or not self._rules.may_differ(rule, names):
                    continue
                found = found or views.of(state, subject)
                before = state.watches.get((rule.name, subject), _UNSEEN)
                if rules.watch(rule, subject, found, before, event.at) != before:
                    return False
        return True


def _is_current(shape: _Shape, state: State, last: Reading) -> bool:
    if shape.last is not last or shape.cards is not state.cards:
        return False
    return all(
        state.views.get(one, {}).get(last.probe) is part for one, part in shape.parts.items()
    )


def _texts(window: Window) -> tuple[str, str]:
    return window.name, window.covered


def _changes(shape: _Shape, reading: Reading) -> _Changes | None:
    """The values that are others, by name; None when they are values of other samples."""
    changes: _Changes = {}
    for name, one, other in zip(shape.names, reading.samples, shape.last.samples, strict=True):
        if one is other:
            continue
        if not _is_same_sample(one, other):
            return None
        if one.value != other.value or type(one.value) is not type(other.value):
            changes.setdefault(one.subject, {})[name] = one.value
    return changes


def _is_same_sample(one: Sampled, other: Sampled) -> bool:
    return (one.sample, one.labels, one.subject) == (other.sample, other.labels, other.subject)


def wholly(names: Iterable[str]) -> set[str]:
    """The names, and those of the samples whose label's value they are."""
    found = set(names)
    return found.union(".".join(name.split(".", 2)[:2]) for name in found)


def running(watches: Mapping[tuple[str, Subject], Watch]) -> bool:
    """Whether time alone, or one more look, changes a watch."""
    return any(
        seen.clear_since is not None or seen.unseen_since is not None or seen.pending_since is None
        if seen.firing is not None
        else seen.pending_since is not None
        for seen in watches.values()
    )
