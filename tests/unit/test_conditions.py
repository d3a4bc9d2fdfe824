"""Conditions and the series below them: what is said of a view, and what is not known."""

from __future__ import annotations

import pytest

from watchdog.core.conditions import (
    Above,
    All,
    AnyKnown,
    AnyOf,
    Condition,
    Fell,
    Not,
    OneOf,
    Rose,
    Unless,
    windows,
)
from watchdog.core.model import Value
from watchdog.core.series import Series

X, Y = OneOf("x", (1,)), OneOf("y", (1,))


@pytest.mark.parametrize(
    ("condition", "view", "answer"),
    [
        (AnyOf((X, Y)), {"x": 1}, True),
        (AnyOf((X, Y)), {"x": 0, "y": 0}, False),
        (AnyOf((X, Y)), {"x": 0}, None),
        (AnyKnown((X, Y)), {"x": 0, "y": 1}, True),
        (AnyKnown((X, Y)), {"x": 0}, False),
        (AnyKnown((X, Y)), {}, None),
        (Not(X), {"x": 1}, False),
        (Not(X), {}, None),
        (Unless(X, Y), {"x": 1}, True),
        (Unless(X, Y), {"x": 1, "y": 1}, False),
        (Unless(X, Y), {"y": 0}, None),
        (Above("x", 5), {"x": 6}, True),
        (Above("x", 5), {"x": 5.0}, False),
        (Above("x", 5), {"x": "6"}, None),
        (Above("x", of="y", times=0.5), {"x": 6, "y": 10}, True),
        (Above("x", of="y", times=0.5), {"x": 5, "y": 10}, False),
        (Above("x", of="y"), {"x": 6}, None),
        (Rose("x", 60, 2), {"x increase 60": 3.0, "x increase 60 covered": False}, True),
        (Rose("x", 60, 2), {"x increase 60": 2.0, "x increase 60 covered": True}, False),
        (Rose("x", 60, 2), {"x increase 60": 2.0, "x increase 60 covered": False}, None),
        (Rose("x", 60), {}, None),
        (Fell("x", 60), {"x": 8, "x max 60": 16.0}, True),
        (Fell("x", 60), {"x": 16, "x max 60": 16.0}, False),
        (Fell("x", 60), {"x": 16}, None),
    ],
)
def test_conditions_are_three_valued(
    condition: Condition,
    view: dict[str, Value],
    answer: bool | None,  # noqa: FBT001
) -> None:
    """FACT: what decides decides, and what is missing otherwise makes the answer unknown."""
    assert condition(view) is answer


def test_windows_are_found_however_deep() -> None:
    """FACT: every sample that a condition looks back at is known before it is asked."""
    deep = All((AnyOf((Rose("a", 60), X)), Not(Fell("b", 10)), Unless(Rose("c", 5), Rose("d", 6))))
    assert [window.sample for window in windows(deep)] == ["a", "b", "c", "d"]


def grown(window: float, *points: tuple[float, float]) -> Series:
    """A series that was given these points."""
    series = Series(window)
    for at, value in points:
        series = series.with_point(at, value)
    return series


def test_an_increase_counts_what_came_before_a_reset() -> None:
    """FACT: a counter that begins anew loses nothing of what it had risen."""
    assert grown(60, (0, 5), (10, 8), (20, 2), (30, 4)).increase == 3 + 2 + 2


def test_a_series_forgets_what_is_older_than_its_window() -> None:
    """FACT: one point at or before the window's beginning is kept, as what the rise starts from."""
    series = grown(60, *((float(at), float(at)) for at in range(0, 300, 5)))
    assert series.covered
    assert series.increase == pytest.approx(60, abs=5)


@pytest.mark.parametrize("period", [0.01, 1.0, 7.0])
def test_a_series_stays_small_however_often_it_is_read(period: float) -> None:
    """FACT: about sixty points are kept, and the increase stays right to a sixtieth."""
    series = grown(60, *((n * period, n * period) for n in range(3000)))
    assert len(series.points) <= 63
    if series.covered:
        assert series.increase == pytest.approx(60, abs=max(period, 1.0) + 1e-6)


def test_nothing_is_covered_after_a_gap() -> None:
    """FACT: a counter that was out of sight for a whole window has not risen within it."""
    series = grown(60, (0, 0), (30, 0), (60, 0), (121, 100))
    assert not series.covered
    assert series.increase == 0


def test_the_greatest_value_is_of_the_window() -> None:
    """FACT: what was greater before the window does not count."""
    points = ((0.0, 16.0), *((float(at), 8.0) for at in range(1, 200)))
    assert grown(60, *points[:20]).most == 16
    assert grown(60, *points).most == 8
