"""Series: every figure against a reference that keeps all points, and what is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.conditions import Figure
from watchdog.core.model import Seconds, Value
from watchdog.core.series import Series

WINDOW = 60.0
SLACK = WINDOW / 60
"""What is this much older than the window may still be in a figure."""

Point = tuple[Seconds, Value]
Points = Sequence[Point]


def grown(figure: Figure, points: Points, window: Seconds = WINDOW) -> Series:
    """A series that was given these points."""
    series = Series(figure, window)
    for at, value in points:
        series = series.with_point(at, value)
    return series


def _points(values: st.SearchStrategy[Value]) -> st.SearchStrategy[list[Point]]:
    """Points at quarters of a second: thick, thin, and now and then a window or more apart."""
    thick, thin = st.integers(1, 8), st.integers(1, 4 * 90)
    rare = st.sampled_from((4 * 60, 4 * 60 + 1, 4 * 200))
    steps = st.lists(st.one_of(thick, thick, thin, rare), min_size=1, max_size=80)
    ats = steps.map(lambda found: [quarter / 4 for quarter in accumulate(found)])
    return ats.flatmap(
        lambda found: st.lists(values, min_size=len(found), max_size=len(found)).map(
            lambda row: list(zip(found, row, strict=True))
        )
    )


NUMBERS = _points(st.integers(0, 50))
WORDS = _points(st.sampled_from(("ok", "lost", "ok ")))


def _unbroken(points: Points) -> Points:
    """What came after the last gap of more than a window."""
    begins = [0, *(n for n, (a, b) in enumerate(pairwise(points), 1) if b[0] - a[0] > WINDOW)]
    return points[begins[-1] :]


def _rises(points: Points, start: Seconds) -> float:
    """What a counter rose after ``start``; where it falls it began anew at zero."""
    found = 0.0
    for (_, old), (at, new) in pairwise(points):
        if at > start:
            found += float(new) - float(old) if float(new) >= float(old) else float(new)
    return found


def _changes(points: Points, start: Seconds) -> float:
    return float(sum(old != new for (_, old), (at, new) in pairwise(points) if at > start))


def _most(points: Points, start: Seconds) -> float:
    return max(float(value) for at, value in points if at > start)


def _least(points: Points, start: Seconds) -> float:
    return -min(float(value) for at, value in points if at > start)


def _between(
    reference: Callable[[Points, Seconds], float], points: Points, value: float
) -> tuple[float, float, float]:
    """``value`` between the figure of the window and that of a window a sixtieth longer."""
    seen = _unbroken(points)
    start = points[-1][0] - WINDOW
    return reference(seen, start), value, reference(seen, start - SLACK)


@given(NUMBERS)
def test_an_increase_is_the_sum_of_all_rises(points: list[Point]) -> None:
    """FACT: nothing that rose within the window is missed, resets included, nothing old counts."""
    low, value, high = _between(_rises, points, grown(Figure.INCREASE, points).value)
    assert low <= value <= high


@given(st.one_of(NUMBERS, WORDS))
def test_changes_are_counted_of_any_value(points: list[Point]) -> None:
    """FACT: numbers and texts alike, each change of the window once."""
    low, value, high = _between(_changes, points, grown(Figure.CHANGES, points).value)
    assert low <= value <= high


@given(NUMBERS)
def test_a_maximum_misses_no_spike(points: list[Point]) -> None:
    """FACT: a value that was there for one reading counts, between any two buckets."""
    low, value, high = _between(_most, points, grown(Figure.MAX_OVER, points).value)
    assert low <= value <= high


@given(NUMBERS)
def test_a_minimum_misses_no_dip(points: list[Point]) -> None:
    """FACT: as the maximum, downwards."""
    low, value, high = _between(_least, points, -grown(Figure.MIN_OVER, points).value)
    assert low <= value <= high


@given(NUMBERS)
def test_an_average_weighs_values_by_how_long_they_held(points: list[Point]) -> None:
    """FACT: a value counts until the next reading, whatever the period; right to a sixtieth."""
    value = grown(Figure.AVG_OVER, points).value
    seen = _unbroken(points)
    start = max(points[-1][0] - WINDOW, seen[0][0])
    held = [
        (float(old), max(at, start) - max(since, start)) for (since, old), (at, _) in pairwise(seen)
    ]
    lasted = sum(seconds for _, seconds in held)
    expected = (
        sum(one * seconds for one, seconds in held) / lasted if lasted else float(points[-1][1])
    )
    spread = max(float(one) for _, one in seen) - min(float(one) for _, one in seen)
    assert value == pytest.approx(expected, abs=spread * SLACK / WINDOW + 1e-9)


@pytest.mark.parametrize(
    ("ats", "expected"),
    [
        # the first bucket is 50 s long, of which 40 s are in the window: 2.0 while it lasted
        ((0.0, 50.0, 70.0), (2.0 * 40 + 8.0 * 20) / 60),
        ((0.0, 50.0, 100.0), (2.0 * 10 + 8.0 * 50) / 60),
        ((0.0, 50.0, 110.0), 8.0),
        ((0.0, 50.0, 60.0), (2.0 * 50 + 8.0 * 10) / 60),
    ],
)
def test_an_average_begins_with_the_window_and_not_with_a_bucket(
    ats: tuple[Seconds, ...], expected: float
) -> None:
    """FACT: what the oldest bucket holds of before the window does not count, to the second."""
    points = list(zip(ats, (2.0, 8.0, 5.0), strict=True))
    assert grown(Figure.AVG_OVER, points).value == pytest.approx(expected)


@given(NUMBERS, st.sampled_from(Figure))
def test_covered_says_whether_the_whole_window_was_seen(
    points: list[Point], figure: Figure
) -> None:
    """FACT: from the first point after a gap on, not a moment before a whole window."""
    whole = points[-1][0] - _unbroken(points)[0][0] >= WINDOW
    assert grown(figure, points).covered is whole


@given(NUMBERS, st.sampled_from(Figure))
def test_a_series_stays_small(points: list[Point], figure: Figure) -> None:
    """FACT: two buckets a sixtieth at most, however readings come."""
    assert len(grown(figure, points).buckets) <= 2 * 60 + 2


@pytest.mark.parametrize("period", [0.01, 1.0, 7.0])
@pytest.mark.parametrize("figure", Figure)
def test_a_series_stays_small_however_often_it_is_read(period: float, figure: Figure) -> None:
    """FACT: with a steady period about sixty buckets are kept, be it a hundred points a second."""
    series = grown(figure, [(n * period, n) for n in range(10_000)])
    assert len(series.buckets) <= 62
    assert series.covered


def test_a_counter_that_begins_anew_loses_nothing() -> None:
    """FACT: what it had risen before, and what it shows after, are both counted."""
    points = ((0.0, 5), (10.0, 8), (20.0, 2), (30.0, 4))
    assert grown(Figure.INCREASE, points).value == 3 + 2 + 2


def test_a_counter_that_is_first_seen_high_has_not_risen() -> None:
    """FACT: errors of before we came are no errors of now."""
    assert grown(Figure.INCREASE, ((0.0, 1000),)).value == 0.0


def test_nothing_is_covered_after_a_gap() -> None:
    """FACT: a counter that was out of sight for a whole window has not risen within it."""
    series = grown(Figure.INCREASE, ((0.0, 0), (30.0, 0), (60.0, 0), (121.0, 100)))
    assert not series.covered
    assert series.value == 0.0


@pytest.mark.parametrize(("figure", "value"), [(Figure.MAX_OVER, 9.0), (Figure.MIN_OVER, -9.0)])
def test_a_spike_within_one_bucket_is_kept(figure: Figure, value: float) -> None:
    """FACT: of ten readings a second the one that stands out is the figure for a window."""
    points = [(n / 10, value if n == 5 else 0.0) for n in range(600)]
    assert grown(figure, points).value == value
    later = [(at, 0.0) for at in range(60, 140)]
    assert grown(figure, [*points, *later]).value == 0.0


def test_true_and_one_are_the_same_state() -> None:
    """FACT: a bool is a number: its average is the share of the time in which it was true."""
    points = [(float(at), at >= 30) for at in range(61)]
    assert grown(Figure.AVG_OVER, points).value == pytest.approx(0.5, abs=1 / 60)
    assert grown(Figure.CHANGES, points).value == 1.0
