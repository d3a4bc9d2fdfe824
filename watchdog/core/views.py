"""What is known of GPUs, the host and engines, ready for rules.

A view is rebuilt from one reading at a time: what a probe did not bring again is not known any
more. Names are ``probe.sample``, with ``.label`` behind it for labels of the sample's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache

from watchdog.core import cards, itself
from watchdog.core.changing import changed
from watchdog.core.conditions import Figure, Window
from watchdog.core.model import (
    HOST,
    Labels,
    ProcessState,
    Reading,
    Sampled,
    Seconds,
    Subject,
    SubjectKind,
    Value,
)
from watchdog.core.series import Series
from watchdog.core.state import EngineState, Parts, State

News = Mapping[Subject, frozenset[str] | None]
"""Of whom something was told, and under which names it is new; None: under all."""

SELF = "watchdog"
"""The part of the host's view that is about ourselves."""
_UNNAMED = "index-"
_PLACES = (_UNNAMED, "pci-")
IDENTITY: Mapping[SubjectKind, frozenset[str]] = {
    SubjectKind.GPU: frozenset({"gpu", "uuid"}),
    SubjectKind.ENGINE: frozenset({"engine"}),
}
"""Labels that name the subject, and so are not part of a sample's name."""


@dataclass(frozen=True, slots=True)
class BoxView:
    """A view over the parts that several probes gave."""

    parts: Parts

    def get(self, name: str, /) -> Value | None:
        """The value, or None when it is not known."""
        part = self.parts.get(_part(name))
        return None if part is None else part.get(name)

    def labelled(self, name: str, /) -> Mapping[str, Value]:
        """The known values of a sample by its label."""
        start = f"{name}."
        part = self.parts.get(_part(name), {})
        return {
            key.removeprefix(start): value for key, value in part.items() if key.startswith(start)
        }


@lru_cache(maxsize=4096)
def _part(name: str) -> str:
    """The probe whose part has it: ``gpu`` of ``gpu.state`` and ``increase(gpu.replays, 5m)``."""
    head, bracket, rest = name.partition("(")
    return (rest if bracket and "." not in head else name).partition(".")[0]


def of(state: State, subject: Subject) -> BoxView:
    """All that is known of a GPU or the host; of a GPU also what its engines want of it."""
    parts = state.views.get(subject, {})
    if subject.kind is SubjectKind.GPU:
        parts = {**parts, "engines": _engines(state, subject)}
    return BoxView(parts)


def _engines(state: State, card: Subject) -> Mapping[str, Value]:
    users = tuple(cards.on_card(state, card))
    waiting = [user.vitals.waiting for user in users if user.vitals.waiting is not None]
    values: dict[str, Value] = {"engines.present": bool(users)}
    if waiting:
        values["engines.waiting"] = sum(waiting)
    return values


def of_engine(state: State, engine: EngineState) -> BoxView:
    """All that rules can ask about an engine: its state, and what probes found of it."""
    own = itself.told(state, engine)
    if state.shutting_down:  # nothing is wanted any more, and nothing is missed
        own.pop("engine.wanted", None)
    return BoxView({**state.views.get(engine.subject, {}), "engine": own})


def absorb(
    state: State, reading: Reading, needed: Mapping[str, tuple[Window, ...]]
) -> tuple[State, News]:
    """``state`` with a reading, and what is new by it.

    A reading of one engine tells nothing of the others; one of a generation that is gone nothing
    at all.
    """
    if not _believed(state, reading):
        return state, {}
    probe, at = reading.probe, reading.at
    samples = [_known_as(state, sample) for sample in reading.samples]
    fresh = _told(probe, samples)
    grown = _grown(state, fresh, needed, at)
    series = {**state.series, **grown} if grown else state.series
    torn: dict[tuple[Subject, str], Series] = {}
    touched = fresh.keys() | _told_before(state, reading)
    views = dict(state.views)
    news: dict[Subject, frozenset[str] | None] = {}
    for subject in touched:
        part = fresh.get(subject, {})
        part |= _figures(series, subject, part, needed)
        torn |= _torn(series, subject, part, views.get(subject, {}).get(probe, {}), at)
        before = views.get(subject, {})
        news[subject] = _changed(before.get(probe), part)
        views[subject] = {**before, probe: part}
    known = _cards(state.cards, samples)
    series = {**series, **torn} if torn else series
    return changed(state, views=views, series=series, cards=known), news


def _told(probe: str, samples: Iterable[Sampled]) -> dict[Subject, dict[str, Value]]:
    """Values by name. Most samples are about the subject of the one before: nothing to look up."""
    fresh: dict[Subject, dict[str, Value]] = {}
    subject, part = None, {}
    for sample in samples:
        if sample.subject is not subject:
            subject = sample.subject
            part = fresh.setdefault(subject, {})
        part[name_of(probe, sample)] = sample.value
    return fresh


def _torn(
    series: Mapping[tuple[Subject, str], Series],
    subject: Subject,
    part: Mapping[str, Value],
    before: Mapping[str, Value],
    at: Seconds,
) -> dict[tuple[Subject, str], Series]:
    """Series whose sample was there at the last look, and is not now."""
    gone = (name for name in before.keys() - part.keys() if (subject, name) in series)
    return {(subject, name): series[subject, name].with_hole(at) for name in gone}


def _changed(before: Mapping[str, Value] | None, now: Mapping[str, Value]) -> frozenset[str] | None:
    if before is None:
        return None
    changed = {name for name, value in now.items() if before.get(name) != value}
    changed |= before.keys() - now.keys()
    return frozenset(changed.union(map(_whole, changed)))


@lru_cache(maxsize=8192)
def _whole(name: str) -> str:
    """The sample of a label's value: ``gpu.throttled`` of ``gpu.throttled.hw_thermal``."""
    return ".".join(name.split(".", 2)[:2])


def _believed(state: State, reading: Reading) -> bool:
    if reading.subject is None:
        return True
    engine = state.engines.get(reading.subject.name)
    return (
        engine is not None and bool(engine.generation) and engine.generation == reading.generation
    )


def _told_before(state: State, reading: Reading) -> frozenset[Subject]:
    """Of whom the probe told at its last look: what it does not tell again is not known."""
    if reading.subject is not None:
        return frozenset({reading.subject})
    return frozenset(subject for subject, parts in state.views.items() if reading.probe in parts)


def without_life(state: State, engine: EngineState) -> State:
    """``state`` without what was seen of a generation that is gone."""
    parts = state.views.get(engine.subject)
    seen = {probe for probe, name in state.readings if name == engine.name}
    if parts is None or not seen & parts.keys():
        return state
    kept = {probe: part for probe, part in parts.items() if probe not in seen}
    own = {name for probe in seen for name in parts.get(probe, {})}
    series = {
        key: one
        for key, one in state.series.items()
        if key[0] != engine.subject or key[1] not in own
    }
    return changed(state, series=series, views={**state.views, engine.subject: kept})


def without_windows(state: State, names: AbstractSet[str]) -> State:
    """``state`` that has kept nothing of these windows: their names, and those of their cover."""
    series = {key: one for key, one in state.series.items() if key[1] not in names}
    views = {
        subject: {
            probe: {name: value for name, value in part.items() if name not in names}
            for probe, part in parts.items()
        }
        for subject, parts in state.views.items()
    }
    return changed(state, series=series, views=views)


def reporting(state: State, reading: Reading) -> tuple[State, bool]:
    """``state`` with which probes fail that have worked, and whether that is news.

    Those of an engine only count while it runs: nobody answers before. A look of which everything
    stayed unread has failed as well.
    """
    name = (
        reading.probe if reading.subject is None else f"{reading.probe} of {reading.subject.name}"
    )
    engine = state.engines.get(reading.subject.name) if reading.subject is not None else None
    if engine is not None and engine.generation != reading.generation:
        return state, False
    ok = reading.error is None and (bool(reading.samples) or not reading.unread)
    if ok and name in state.proven and name not in state.failing:
        return state, False
    proven = state.proven | {name} if ok else state.proven
    failing = state.failing - {name} if ok or not _due(state, reading) else state.failing | {name}
    failing &= proven
    first = SELF not in state.views.get(HOST, {})
    if (proven, failing) == (state.proven, state.failing) and not first:
        return state, False
    part: dict[str, Value] = {f"{SELF}.failing_probes": ", ".join(sorted(failing))}
    views = {**state.views, HOST: {**state.views.get(HOST, {}), SELF: part}}
    news = first or failing != state.failing
    return changed(state, views=views, proven=proven, failing=failing), news


def _due(state: State, reading: Reading) -> bool:
    if reading.subject is None:
        return True
    engine = state.engines.get(reading.subject.name)
    return engine is not None and engine.process is ProcessState.RUNNING


def _known_as(state: State, sample: Sampled) -> Sampled:
    """A lost card does not say who it is to whoever asks first; at its index it is who it was."""
    subject = sample.subject
    if subject.kind is not SubjectKind.GPU or not subject.name.startswith(_UNNAMED):
        return sample
    index = subject.name.removeprefix(_UNNAMED)
    was = (card for card, at in state.cards.items() if at == index and card != subject)
    return replace(sample, subject=next(was, subject))


def _grown(
    state: State,
    fresh: Mapping[Subject, Mapping[str, Value]],
    needed: Mapping[str, tuple[Window, ...]],
    at: Seconds,
) -> dict[tuple[Subject, str], Series]:
    """The series that got a new point."""
    grown = {}
    for subject, part in fresh.items():
        for name in part.keys() & needed.keys():
            value = part[name]
            for window in needed[name]:
                if isinstance(value, str) and window.figure is not Figure.CHANGES:
                    continue
                key = (subject, window.name)
                series = state.series.get(key) or Series(window.figure, window.seconds)
                grown[key] = series.with_point(at, value)
    return grown


def _figures(
    series: Mapping[tuple[Subject, str], Series],
    subject: Subject,
    part: Mapping[str, Value],
    needed: Mapping[str, tuple[Window, ...]],
) -> dict[str, Value]:
    """What the windows show of the samples that were just read."""
    found: dict[str, Value] = {}
    for name in part.keys() & needed.keys():
        for window in needed[name]:
            kept = series.get((subject, window.name))
            if kept is not None:
                found[window.name] = kept.value
                found[window.covered] = kept.covered
    return found


def renamed(state: State, reading: Reading) -> frozenset[Subject]:
    """Cards without a name that the reading tells nothing of any more: they have one now.

    Such a card is called by its place (``index-0``, ``pci-0000:00:06.0``) until somebody names it.
    """
    unnamed = [
        subject
        for subject, parts in state.views.items()
        if subject.kind is SubjectKind.GPU
        and subject.name.startswith(_PLACES)
        and reading.probe in parts
    ]
    if not unnamed or reading.error is not None:
        return frozenset()
    told = {sample.subject for sample in reading.samples}
    return frozenset(subject for subject in unnamed if subject not in told)


def forgotten(state: State, gone: frozenset[Subject]) -> State:
    """``state`` without anything that was known of the subjects."""
    return changed(
        state,
        views={one: parts for one, parts in state.views.items() if one not in gone},
        series={key: kept for key, kept in state.series.items() if key[0] not in gone},
        cards={one: index for one, index in state.cards.items() if one not in gone},
    )


def name_of(probe: str, sample: Sampled) -> str:
    """``gpu.throttled.hw_thermal``: the name by which rules know the sample."""
    return _name(probe, sample.subject.kind, sample.sample, sample.labels)


@lru_cache(maxsize=8192)
def _name(probe: str, kind: SubjectKind, sample: str, labels: Labels) -> str:
    identity = IDENTITY.get(kind, frozenset())
    own = [value for label, value in labels if label not in identity]
    return ".".join((probe, sample, *own))


def _cards(known: Mapping[Subject, str], samples: Iterable[Sampled]) -> Mapping[Subject, str]:
    """Every card ever seen, with its index: one that is lost is still an engine's own.

    An index is that of whom it was last told of.
    """
    found: dict[Subject, str] = {}
    for sample in samples:
        subject = sample.subject
        if subject.kind is SubjectKind.GPU and subject not in found:
            found[subject] = dict(sample.labels).get("gpu", "") or known.get(subject, "")
    if all(known.get(card) == index for card, index in found.items()):
        return known
    taken = {index for index in found.values() if index}
    return {card: "" if at in taken else at for card, at in known.items()} | found
