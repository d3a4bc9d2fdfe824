"""Subjects that nobody tells of any more are forgotten, and renamed ones are not mixed up."""

from __future__ import annotations

import pytest

from tests.support.core import of_box, rule, serving
from tests.support.rules import when
from watchdog.core import absence
from watchdog.core.conditions import Figure
from watchdog.core.engine import firing
from watchdog.core.model import Labels, Reading, Sampled, Seconds, Subject, SubjectKind
from watchdog.core.series import Series

GPU = SubjectKind.GPU
HOT = rule("hot", when('max_over(it.x, "24h") > 5', GPU, x=float), GPU)


def card(name: object) -> Subject:
    """A GPU."""
    return Subject(GPU, f"GPU-{name}")


def hot(at: Seconds, *names: object) -> Reading:
    """These cards are hot, and there are no others."""
    return of_box(at, *((card(name), "x", 9.0) for name in names))


def test_a_probe_that_invents_cards_does_not_fill_the_memory() -> None:
    """FACT: of more than 64 absent ones the last are remembered, of findings, windows and all."""
    story = serving(rule_set=(HOT,))
    for number in range(500):
        story.read(hot(1.0 + number, number))
    state, most = story.state, absence.MOST + 1
    subjects = [*state.views, *(key[0] for key in state.series)]
    for kept in (set(subjects), set(state.cards), {key[1] for key in state.watches}):
        assert len([subject for subject in kept if subject.kind is GPU]) <= most
    assert len(firing(state)) <= most


def test_what_was_absent_for_an_hour_is_forgotten() -> None:
    """FACT: not a moment before, and with its finding."""
    story = serving(rule_set=(HOT,)).read(hot(1.0, "a", "b"), hot(2.0, "b"))
    for at in range(10, 3601, 10):
        story.read(hot(float(at), "b"))
    assert card("a") in story.state.views
    story.read(hot(3602.5, "b"))
    assert card("a") not in story.state.views
    assert [finding.subject for _, finding in firing(story.state)] == [card("b")]


@pytest.mark.parametrize("back", [10.0, 3500.0])
def test_who_comes_back_in_time_is_who_it_was(back: float) -> None:
    """FACT: its windows go on, and it is absent no more."""
    story = serving(rule_set=(HOT,)).read(hot(1.0, "a", "b"), hot(2.0, "b"))
    story.tick(back)
    story.read(hot(back, "a", "b"))
    assert card("a") not in story.state.absent
    assert (card("a"), HOT.when.windows[0].name) in story.state.series


def labels(index: int, name: str) -> Labels:
    """The labels of a card's samples."""
    return (("gpu", str(index)), ("uuid", name))


def states(at: Seconds, *cards: tuple[Subject, int]) -> Reading:
    """What ``gpu`` tells of cards at these indices."""
    found = [Sampled(one, "state", "ok", labels(index, one.name)) for one, index in cards]
    return Reading("gpu", at, 0.0, tuple(found))


def test_an_index_is_that_of_whom_it_was_last_told_of() -> None:
    """FACT: when the first card is pulled the second has its number, and answers for it."""
    story = serving().read(states(1.0, (card("a"), 0), (card("b"), 1)))
    story.read(states(2.0, (card("b"), 0)))
    assert story.state.cards == {card("a"): "", card("b"): "0"}
    unnamed = Subject(GPU, "index-0")
    lost = Sampled(unnamed, "state", "lost", labels(0, ""))
    story.read(Reading("gpu", 3.0, 0.0, (lost,)))
    found = {finding.rule: finding.subject for _, finding in firing(story.state)}
    assert found == {"gpu-lost": card("b")}


@pytest.mark.parametrize("figure", list(Figure))
def test_a_number_beyond_all_numbers_breaks_no_window(figure: Figure) -> None:
    """FACT: an integer that no float can hold is as large as one can be."""
    series = Series(figure, 60.0)
    for at in range(1, 10):
        series = series.with_point(float(at), 10**400 if at % 2 else 0)
    assert isinstance(series.value, float)
