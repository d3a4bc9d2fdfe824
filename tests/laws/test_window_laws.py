"""Laws of windows: a figure is that of the last seconds, to a sixtieth of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.lawful import lawful
from watchdog.core.conditions import Figure
from watchdog.core.series import Series

WINDOW = 60.0
_SLACK = WINDOW / 60 * 2
Point = tuple[float, float]
POINTS = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 3.0, 10.0, 20.0]), st.integers(0, 20).map(float)),
    min_size=2,
    max_size=40,
)


def _kept(points: list[Point], seconds: float) -> list[Point]:
    """The points of the last ``seconds``, and the one before them: what a change starts from."""
    start = points[-1][0] - seconds
    inside = [number for number, (at, _) in enumerate(points) if at > start]
    return points[max(inside[0] - 1, 0) :]


def _figure(figure: Figure, points: list[Point]) -> float:
    values = [value for _, value in points]
    pairs = list(pairwise(values))
    match figure:
        case Figure.INCREASE:
            return sum(new - old if new >= old else new for old, new in pairs)
        case Figure.CHANGES:
            return float(sum(old != new for old, new in pairs))
        case Figure.MAX_OVER:
            return max(values[1:])
        case _:
            return min(values[1:])


@pytest.mark.parametrize("figure", [f for f in Figure if f is not Figure.AVG_OVER])
@settings(lawful, max_examples=60)
@given(POINTS)
def test_a_figure_is_that_of_its_window(figure: Figure, steps: list[Point]) -> None:
    """Never less than what the window holds, never more than a thirtieth beyond it."""
    series, at, points = Series(figure, WINDOW), 0.0, []
    for gap, value in steps:
        at += gap
        points.append((at, value))
        series = series.with_point(at, value)
        if len(points) < 2:
            continue
        least, most = (_figure(figure, _kept(points, w)) for w in (WINDOW, WINDOW + _SLACK))
        if at > WINDOW + _SLACK + steps[0][0]:
            assert min(least, most) <= series.value <= max(least, most)
        assert series.covered is (at - points[0][0] >= WINDOW)


@lawful
@given(POINTS)
def test_an_average_lies_between_the_extremes(steps: list[Point]) -> None:
    """The average of a window is one of the values that it held, or between them."""
    series, at, points = Series(Figure.AVG_OVER, WINDOW), 0.0, []
    for gap, value in steps:
        at += gap
        points.append((at, value))
        series = series.with_point(at, value)
        held = [one for _, one in _kept(points, WINDOW + _SLACK)]
        assert min(held) - 1e-9 <= series.value <= max(held) + 1e-9


def test_after_a_window_without_a_look_it_begins_anew() -> None:
    """What was seen before a gap of a whole window is not in it any more."""
    series = Series(Figure.INCREASE, WINDOW).with_point(0.0, 1.0).with_point(1.0, 9.0)
    series = series.with_point(1.0 + WINDOW + 0.1, 50.0)
    assert (series.value, series.covered) == (0.0, False)
