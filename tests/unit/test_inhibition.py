"""Inhibition: a finding that another one explains neither acts nor opens an incident."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.box import card, cards, driver, holders
from tests.support.core import GENERATION, NAME, Is, Story, reading, rule
from watchdog.core import incidents
from watchdog.core.engine import firing
from watchdog.core.model import (
    HOST,
    Cause,
    EngineSpawned,
    HoldReason,
    Mode,
    Reading,
    Seconds,
    Subject,
    SubjectKind,
    engine_subject,
)
from watchdog.core.rules import Rule
from watchdog.core.state import EngineSettings, EngineState, State

MAIN, OTHER = engine_subject(NAME), engine_subject("other")
ENGINE, GPU = SubjectKind.ENGINE, SubjectKind.GPU
CAUSES = {
    ENGINE: Is("custom.cause", (True,)),
    GPU: Is("gpu.state", ("bad",)),
    SubjectKind.HOST: Is("driver.nvml", ("bad",)),
}


def causes(kind: SubjectKind = ENGINE, **changes: object) -> Rule:
    """The rule that explains."""
    return rule("cause", CAUSES[kind], kind, **changes)


def follows(kind: SubjectKind = ENGINE, **changes: object) -> Rule:
    """The rule that is explained; about an engine it restarts it."""
    when = Is("custom.sick", (True,)) if kind is ENGINE else Is("gpu.mig", (True,))
    actions = ("restart_engine",) if kind is ENGINE else ()
    ruled = replace(rule("follow", when, kind), actions=actions, inhibited_by=("cause",))
    return replace(ruled, **changes)  # type: ignore[arg-type]


def box(*rules: Rule) -> Story:
    """Two serving engines, each on its card, under these rules."""
    engines = {
        name: EngineState(EngineSettings(name, gpus=(str(n),)))
        for n, name in enumerate((NAME, "other"))
    }
    story = Story(State(engines), rule_set=rules)
    for name in engines:
        story.take(EngineSpawned(0.0, name, GENERATION, 1, Cause.OPERATOR))
        story.serve(0.0, name=name)
    story.read(cards(0.5, {0: {}, 1: {}}), holders(0.6, {NAME: (0,), "other": (1,)}))
    return story.read(driver(0.7))


def sick(at: Seconds, *, cause: bool = False, so: bool = True, name: str = NAME) -> Reading:
    """What a probe of the test says of an engine."""
    return reading("custom", at, ("cause", cause), ("sick", so), name=name)


def trouble(subject: Subject, at: Seconds) -> Reading:
    """A reading that fires the rule that explains, about ``subject``."""
    if subject == HOST:
        return driver(at, {"nvml": "bad"})
    if subject.kind is ENGINE:
        return sick(at, cause=True, so=False, name=subject.name)
    states = {n: {"state": "bad"} if card(n) == subject else {} for n in (0, 1)}
    return cards(at, states)


def opened(story: Story) -> Iterator[tuple[str, Subject]]:
    """Which rules have opened incidents about what."""
    return ((one.rule, one.subject) for one in story.state.incidents)


@pytest.mark.parametrize(
    ("about", "inhibits"),
    [(MAIN, True), (card(0), True), (HOST, True), (OTHER, False), (card(1), False)],
)
def test_what_explains_a_finding_about_an_engine(about: Subject, inhibits: bool) -> None:  # noqa: FBT001
    """FACT: trouble of itself, of its card and of the machine; nothing of a neighbour."""
    story = box(causes(about.kind), follows()).read(trouble(about, 1.0))
    story.read(sick(2.0, cause=about == MAIN))
    if inhibits:
        assert not story.acts
        (hold,) = story.decisions
        assert hold.hold is HoldReason.INHIBITED
        assert "cause: " in hold.detail
        assert "cause is so" in hold.detail
    else:
        assert [act.rule for act in story.acts] == ["follow"]
    assert (("follow", MAIN) not in opened(story)) is inhibits


@pytest.mark.parametrize(
    ("about", "inhibits"),
    [(MAIN, True), (card(0), True), (HOST, True), (OTHER, False), (card(1), False)],
)
def test_what_explains_a_finding_about_a_card(about: Subject, inhibits: bool) -> None:  # noqa: FBT001
    """FACT: trouble of its engine, of itself and of the machine; nothing of a neighbour."""
    story = box(causes(about.kind), follows(GPU)).read(trouble(about, 1.0))
    states = {n: {"state": "bad" if card(n) == about else "ok", "mig": n == 0} for n in (0, 1)}
    story.read(cards(2.0, states))
    assert {finding.rule for _, finding in firing(story.state)} == {"cause", "follow"}
    assert (("follow", card(0)) not in opened(story)) is inhibits


def test_a_finding_that_is_explained_is_told_all_the_same() -> None:
    """FACT: the journal has it; only the incident and the action are spared."""
    story = box(causes(), follows()).read(sick(1.0, cause=True))
    told = [dict(record.keys)["rule"] for record in story.events("finding.firing")]
    assert told == ["cause", "follow"]
    assert list(opened(story)) == [("cause", MAIN)]


def test_what_outlives_its_explanation_is_dealt_with() -> None:
    """FACT: when the cause ends and the trouble does not, it acts and is an incident of its own."""
    story = box(causes(), follows()).read(sick(1.0, cause=True), sick(5.0))
    assert [(act.at, act.rule) for act in story.acts] == [(5.0, "follow")]
    open_now = incidents.open_on(story.state, MAIN)
    assert open_now is not None
    assert open_now.rule in {"cause", "follow"}


def test_a_card_that_recovers_leaves_the_incident_to_its_engine() -> None:
    """FACT: about another subject the incident opens with the moment at which nothing explains."""
    story = box(causes(GPU), follows()).read(trouble(card(0), 1.0), sick(2.0))
    assert list(opened(story)) == [("cause", card(0))]
    story.read(cards(9.0, {0: {}, 1: {}}))
    assert list(opened(story)) == [("cause", card(0)), ("follow", MAIN)]
    assert [one.opened_at for one in story.state.incidents] == [1.0, 9.0]
    assert [act.at for act in story.acts] == [9.0]


def test_an_incident_that_is_open_stays_so_when_an_explanation_comes() -> None:
    """FACT: what was told to a person is not taken back, and not told twice."""
    story = box(causes(GPU), follows(actions=())).read(sick(1.0), trouble(card(0), 2.0))
    story.read(sick(3.0))
    assert list(opened(story)) == [("follow", MAIN), ("cause", card(0))]
    assert all(one.resolved_at is None for one in story.state.incidents)


def test_an_incident_ends_while_its_finding_is_explained() -> None:
    """FACT: healthy is healthy, whatever goes on beside it."""
    story = box(causes(GPU), follows(actions=())).read(sick(1.0), trouble(card(0), 2.0))
    story.read(sick(3.0, so=False))
    assert incidents.open_on(story.state, MAIN) is None
    assert incidents.open_on(story.state, card(0)) is not None


def test_what_only_observes_explains_nothing() -> None:
    """FACT: a rule on trial does not hold another one's action."""
    story = box(causes(mode=Mode.OBSERVE), follows()).read(sick(1.0, cause=True))
    assert [act.rule for act in story.acts] == ["follow"]


def test_what_is_switched_off_explains_nothing() -> None:
    """FACT: a rule that is off never fires."""
    story = box(causes(mode=Mode.OFF), follows()).read(sick(1.0, cause=True))
    assert [act.rule for act in story.acts] == ["follow"]


def test_what_is_only_pending_explains_nothing() -> None:
    """FACT: until a cause has held for its time it is no finding."""
    story = box(causes(hold_for=10.0), follows()).read(sick(1.0, cause=True))
    assert [act.rule for act in story.acts] == ["follow"]


def test_a_rule_that_names_no_other_is_explained_by_none() -> None:
    """FACT: inhibition is one rule's own word."""
    story = box(causes(), follows(inhibited_by=())).read(sick(1.0, cause=True))
    assert [act.rule for act in story.acts] == ["follow"]


def test_what_is_explained_itself_explains_others() -> None:
    """FACT: a chain holds from end to end: the finding fires, even if it may do nothing."""
    last = rule("last", Is("custom.sick", (True,)), actions=("restart_engine",))
    last = replace(last, inhibited_by=("follow",))
    story = box(causes(), follows(), last).read(sick(1.0, cause=True))
    assert not story.acts
    assert {decision.rule: decision.hold for decision in story.decisions} == {
        "follow": HoldReason.INHIBITED,
        "last": HoldReason.INHIBITED,
    }


def test_a_held_finding_takes_no_rung() -> None:
    """FACT: what was not done is not counted, and no restart is charged."""
    story = box(causes(), follows()).read(sick(1.0, cause=True))
    assert not story.state.tracks
    assert not story.engine.history.restarts
