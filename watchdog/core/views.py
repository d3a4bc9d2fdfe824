"""What is known of GPUs, the host and engines from probes of the box, ready for rules.

A view is rebuilt from one reading at a time: what a probe did not bring again is not known any
more. Names are ``probe.sample``, with ``.label`` behind it for labels of the sample's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from watchdog.core import cards
from watchdog.core.conditions import Window, samples, windows
from watchdog.core.model import Mode, Reading, Sampled, Seconds, Subject, SubjectKind, Value
from watchdog.core.rules import Rule
from watchdog.core.series import Series
from watchdog.core.state import Parts, State

_UNNAMED = "index-"
_PLACES = (_UNNAMED, "pci-")
_IDENTITY = {
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
        part = self.parts.get(name.partition(".")[0])
        return None if part is None else part.get(name)


def of(state: State, subject: Subject) -> BoxView:
    """All that is known of a GPU or the host; of a GPU also what its engines want of it."""
    parts = state.views.get(subject, {})
    if subject.kind is SubjectKind.GPU:
        parts = {**parts, "engine": _engines(state, subject)}
    return BoxView(parts)


def _engines(state: State, card: Subject) -> Mapping[str, Value]:
    users = tuple(cards.on_card(state, card))
    waiting = [user.vitals.waiting for user in users if user.vitals.waiting is not None]
    values: dict[str, Value] = {"engine.ours": bool(users)}
    if waiting:
        values["engine.waiting"] = sum(waiting)
    return values


@lru_cache(maxsize=64)
def asking(rule_set: tuple[Rule, ...], probe: str) -> tuple[Rule, ...]:
    """The rules about the box whose answer a reading of the probe can change."""
    return tuple(rule for rule in about_box(rule_set) if probe in _sources(rule))


def about_box(rule_set: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules about GPUs and the host that are not switched off."""
    return tuple(
        rule
        for rule in rule_set
        if rule.subject is not SubjectKind.ENGINE and rule.mode is not Mode.OFF
    )


def _sources(rule: Rule) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in samples(rule.when))


@lru_cache(maxsize=8)
def wanted(rule_set: tuple[Rule, ...]) -> Mapping[str, tuple[Window, ...]]:
    """The windows that the rules look through, by sample."""
    found: dict[str, tuple[Window, ...]] = {}
    for rule in rule_set:
        for window in windows(rule.when):
            if window not in found.get(window.sample, ()):
                found[window.sample] = (*found.get(window.sample, ()), window)
    return found


def absorb(
    state: State, reading: Reading, needed: Mapping[str, tuple[Window, ...]]
) -> tuple[State, frozenset[Subject]]:
    """``state`` with a reading of the box, and the subjects of which something new is known."""
    probe = reading.probe
    fresh: dict[Subject, dict[str, Value]] = {}
    samples = [_known_as(state, sample) for sample in reading.samples]
    for sample in samples:
        fresh.setdefault(sample.subject, {})[name_of(probe, sample)] = sample.value
    series = {**state.series, **_grown(state, fresh, needed, reading.at)}
    touched = fresh.keys() | {subject for subject, parts in state.views.items() if probe in parts}
    views = dict(state.views)
    for subject in touched:
        part = fresh.get(subject, {})
        part |= _figures(series, subject, part, needed)
        views[subject] = {**views.get(subject, {}), probe: part}
    known = _cards(state.cards, samples)
    return replace(state, views=views, series=series, cards=known), frozenset(touched)


def _known_as(state: State, sample: Sampled) -> Sampled:
    """A lost card does not say who it is to whoever asks first; at its index it is who it was."""
    index = sample.subject.name.removeprefix(_UNNAMED)
    if sample.subject.kind is not SubjectKind.GPU or index == sample.subject.name:
        return sample
    was = (card for card, at in state.cards.items() if at == index and card != sample.subject)
    return replace(sample, subject=next(was, sample.subject))


def _grown(
    state: State,
    fresh: Mapping[Subject, Mapping[str, Value]],
    needed: Mapping[str, tuple[Window, ...]],
    at: Seconds,
) -> dict[tuple[Subject, str], Series]:
    """The series that got a new point."""
    grown = {}
    for subject, part in fresh.items():
        for name, value in part.items():
            for window in needed.get(name, ()) if not isinstance(value, str) else ():
                key = (subject, window.name)
                series = state.series.get(key) or Series(window.seconds)
                grown[key] = series.with_point(at, float(value))
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
                found[window.name] = kept.increase if window.figure == "increase" else kept.most
                found[window.covered] = kept.covered
    return found


def renamed(state: State, reading: Reading) -> frozenset[Subject]:
    """Cards without a name that the reading tells nothing of any more: they have one now.

    Such a card is called by its place (``index-0``, ``pci-0000:00:06.0``) until somebody names it.
    """
    if reading.error is not None:
        return frozenset()
    told = {sample.subject for sample in reading.samples}
    return frozenset(
        subject
        for subject, parts in state.views.items()
        if subject.kind is SubjectKind.GPU
        and subject.name.startswith(_PLACES)
        and reading.probe in parts
        and subject not in told
    )


def forgotten(state: State, gone: frozenset[Subject]) -> State:
    """``state`` without anything that was known of the subjects."""
    return replace(
        state,
        views={one: parts for one, parts in state.views.items() if one not in gone},
        series={key: kept for key, kept in state.series.items() if key[0] not in gone},
        cards={one: index for one, index in state.cards.items() if one not in gone},
    )


def name_of(probe: str, sample: Sampled) -> str:
    """``gpu.throttled.hw_thermal``: the name by which rules know the sample."""
    identity = _IDENTITY.get(sample.subject.kind, frozenset())
    own = [value for label, value in sample.labels if label not in identity]
    return ".".join((probe, sample.sample, *own)) if own else f"{probe}.{sample.sample}"


def _cards(known: Mapping[Subject, str], samples: Iterable[Sampled]) -> Mapping[Subject, str]:
    """Every card ever seen, with its index: one that is lost is still an engine's own."""
    found: dict[Subject, str] = {}
    for sample in samples:
        if sample.subject.kind is SubjectKind.GPU and not known.get(sample.subject):
            found[sample.subject] = dict(sample.labels).get("gpu", "")
    return {**known, **found} if found else known
