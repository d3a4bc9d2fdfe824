"""W5: a probe that raises, hangs or brings nonsense for ever hurts nobody else, and is said."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.lawful import lawful
from tests.support.box import card, cards, of
from tests.support.core import NAME, Story, http, metrics, process, serving
from watchdog import registry
from watchdog.contracts import EngineLook, ProbeError, ProbeSpec
from watchdog.core.model import (
    HOST,
    Event,
    Reading,
    ReadingTaken,
    Sampled,
    SubjectKind,
    Unread,
    Verdict,
    engine_subject,
)
from watchdog.runner import ProbeRun

GENERATION = "0000000a"
BOX = ("gpu", "gpu_processes", "xid", "driver")
ENGINE = ("engine_http", "engine_metrics", "engine_process")
ODD = st.one_of(
    st.sampled_from(
        [float("nan"), float("inf"), -float("inf"), 10**400, -(10**400), -1, 0, 1e308, True, ""]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([None, b"x", [], {}]),
)


class Broken:
    """A probe that brings what it was given, or raises it."""

    def __init__(self, brings: list[object]) -> None:
        self.brings = brings

    def read(self, deadline: float) -> Iterable[Sampled | Unread]:
        """As it was told."""
        assert deadline > 0
        for one in self.brings:
            if isinstance(one, Exception):
                raise one
            yield one  # type: ignore[misc]

    def close(self) -> None:
        """Nothing is open."""


@st.composite
def nonsense(draw: st.DrawFn, probe: str) -> list[object]:
    """Declared samples with any values, undeclared ones, wrong labels, and things of no kind."""
    spec = registry.probes()[probe]
    found: list[object] = []
    for _ in range(draw(st.integers(0, 6))):
        sample = draw(st.sampled_from(spec.samples))
        kind = sample.subject or spec.subject_kind
        labels = dict(of(card(), 0)) | {"engine": NAME}
        pairs = tuple((key, labels.get(key, "odd")) for key in sample.labels)
        value = draw(st.one_of(ODD, _of_type(sample.type)))
        found.append(Sampled(_subject(kind), sample.name, value, pairs))  # type: ignore[arg-type]
    odd = [ProbeError("cannot read"), ValueError("\n"), None, 7, Sampled(HOST, "unheard_of", 1)]
    return [*found, *draw(st.lists(st.sampled_from(odd), max_size=1))]


def _of_type(kind: type) -> st.SearchStrategy[object]:
    return {
        bool: st.booleans(),
        int: st.one_of(st.integers(), st.just(10**400)),
        float: st.one_of(st.floats(), st.just(10**400)),
        str: st.text(max_size=10),
    }[kind]


def _subject(kind: SubjectKind) -> object:
    return {SubjectKind.GPU: card(), SubjectKind.ENGINE: engine_subject(NAME)}.get(kind, HOST)


def read(spec: ProbeSpec, brings: list[object], at: float) -> Reading:
    """What the runner makes of it, at ``at``."""
    posted: list[Event] = []
    subject = engine_subject(NAME) if spec.subject_kind is SubjectKind.ENGINE else None

    def look() -> EngineLook:
        return EngineLook(generation=GENERATION)

    run = ProbeRun(
        spec,
        Broken(brings),
        subject,
        look if subject else None,
        posted.append,
        clock=lambda: at,
    )
    run.run()
    run.close()
    (event,) = posted
    assert isinstance(event, ReadingTaken)
    return event.reading


def _serves(story: Story, at: float, but: str = "") -> None:
    """All engine probes but one say that it serves."""
    looks = (
        process(at),
        metrics(at, at),
        http(at, canary="ok", status=200),
    )
    story.read(*(one for one in looks if one.probe != but))


@pytest.mark.parametrize("probe", BOX)
@settings(lawful, max_examples=25)
@given(st.data())
def test_w5_nonsense_about_the_box_touches_no_engine_that_serves(
    probe: str, data: st.DataObject
) -> None:
    """Whatever it brings, no step fails and nothing is done; the engine goes on serving."""
    story, spec = serving(), registry.probes()[probe]
    for at in range(1, 12):
        story.read(read(spec, data.draw(nonsense(probe)), float(at)))
        _serves(story, at + 0.5)
    assert not story.acts
    assert story.engine.health is Verdict.READY


@pytest.mark.parametrize("probe", ENGINE)
@settings(lawful, max_examples=25)
@given(st.data())
def test_w5_nonsense_of_one_probe_leaves_the_others_their_say(
    probe: str, data: st.DataObject
) -> None:
    """An engine probe that is broken ends nothing: tokens that another one saw are believed."""
    story, spec = serving(), registry.probes()[probe]
    for at in range(1, 12):
        story.read(read(spec, data.draw(nonsense(probe)), float(at)))
        _serves(story, at + 0.5, but=probe)
    assert len(story.state.watches) < 100


@pytest.mark.parametrize("probe", ["gpu", "engine_metrics"])
def test_w5_a_probe_that_fails_for_ever_is_said_and_forgiven(probe: str) -> None:
    """It fires once after its time, names the probe, and clears when the probe works again."""
    story, spec = serving(), registry.probes()[probe]
    well = cards(1.0, {0: {}}) if probe == "gpu" else metrics(1.0, 1.0)
    story.read(well)
    for at in range(2, 100):
        story.read(read(spec, [ProbeError("cannot read")], float(at)))
        _serves(story, at + 0.5, but=probe)
        story.tick(at + 0.7)
    (fired,) = [r for r in story.events("finding.firing") if _rule(r) == "probe-failing"]
    assert probe in str(fired.keys)
    story.read(cards(101.0, {0: {}}) if probe == "gpu" else metrics(101.0, 101.0))
    story.tick(130.0)
    assert [r for r in story.events("finding.resolved") if _rule(r) == "probe-failing"]
    assert not story.acts


def _rule(record: object) -> object:
    return dict(record.keys)["rule"]  # type: ignore[attr-defined]


def _size(story: Story) -> int:
    state = story.state
    parts = sum(len(part) for view in state.views.values() for part in view.values())
    kept = sum(len(series.buckets) for series in state.series.values())
    lists = (state.views, state.watches, state.cards, state.readings, state.tracks)
    return parts + kept + sum(len(one) for one in lists) + len(state.incidents)


def test_w5_nonsense_for_ever_takes_no_memory() -> None:
    """A probe that tells of another card at every look: after 600 looks no more is kept."""
    story, sizes, numbers = serving(), [], count(1)
    for at in range(1, 601):
        story.read(cards(float(at), {next(numbers): {}}))
        if at % 150 == 0:
            sizes.append(_size(story))
    assert sizes[-1] < sizes[0] * 1.5
