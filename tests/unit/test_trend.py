"""What is used up soon is said in time, and what only wobbles is never said to run out."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from probes._trend import Outlook, Trend, words

WINDOW, LEAST = 600.0, 120.0


def seen(free: Callable[[float], float], until: float = 600.0, period: float = 10.0) -> Trend:
    """A trend that saw ``free(at)`` every ``period`` seconds, ``until`` seconds long."""
    trend = Trend(WINDOW, LEAST)
    for step in range(int(until / period) + 1):
        trend.add(1000.0 + step * period, free(step * period))
    return trend


def test_a_steady_fall_says_when_nothing_is_left() -> None:
    """100 bytes a second out of 100,000 leave 400 seconds after ten minutes."""
    trend = seen(lambda at: 100_000 - 100 * at)
    assert trend.empty_in() == pytest.approx(400)
    assert trend.slope() == pytest.approx(-100)


@pytest.mark.parametrize("period", [0.05, 1.0, 5.0, 30.0])
def test_the_period_of_the_looks_does_not_matter(period: float) -> None:
    """Thinned or not, the answer is the same, and at most 64 points are kept."""
    trend = seen(lambda at: 100_000 - 100 * at, period=period)
    assert trend.empty_in() == pytest.approx(400, rel=0.01)
    assert len(trend._points) <= 64  # noqa: SLF001 - the bound is the promise


def test_a_fall_with_noise_is_still_a_fall() -> None:
    """A tenth of the fall as noise changes the answer by little."""
    noise = random.Random(7)  # noqa: S311 - noise, no secret
    trend = seen(lambda at: 100_000 - 100 * at + noise.uniform(-3000, 3000))
    assert trend.empty_in() == pytest.approx(400, rel=0.2)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_runs_out_of_nothing(seed: int) -> None:
    """What goes up and down by chance has no trend."""
    noise = random.Random(seed)  # noqa: S311 - noise, no secret
    assert seen(lambda _: 1000 + noise.uniform(-500, 500)).empty_in() is None


@pytest.mark.parametrize(
    "free",
    [
        lambda _: 1000.0,
        lambda at: 1000.0 + at,
        lambda at: 100_000 - 50_000 * (at > 300),
        lambda at: 100_000 - 30_000 * (at > 200) - 30_000 * (at > 400),
        lambda at: 100_000 - 100 * min(at, 350),
        lambda at: 100_000 - 100 * min(at, 400),
        lambda at: 100_000 - 300 * (at % 100),
    ],
    ids=[
        "flat",
        "rising",
        "one file",
        "two files",
        "has stopped",
        "has just stopped",
        "written and removed",
    ],
)
def test_what_does_not_go_on_is_no_trend(free: Callable[[float], float]) -> None:
    """A big file is a step and not a pace; neither is what has ended, or what is cleaned up."""
    assert seen(free).empty_in() is None


def test_many_steps_are_a_pace() -> None:
    """A checkpoint every minute uses the disk up like a steady flow."""
    trend = seen(lambda at: 100_000 - 6000 * (at // 60))
    assert trend.empty_in() == pytest.approx(400, rel=0.15)


def test_too_little_seen_says_nothing() -> None:
    """Neither time nor points enough: no pace and no forecast."""
    assert Trend(WINDOW, LEAST).empty_in() is None
    assert Trend(WINDOW, LEAST).slope() is None
    assert seen(lambda at: 100_000 - 100 * at, until=LEAST - 10).empty_in() is None
    assert seen(lambda at: 100_000 - 100 * at, until=LEAST, period=60.0).slope() is None
    assert seen(lambda at: 100_000 - 100 * at, until=LEAST).empty_in() is not None


def test_what_is_empty_now_is_empty_without_a_trend() -> None:
    """The first look at something full says so."""
    trend = Trend(WINDOW, LEAST)
    trend.add(5.0, 0.0)
    assert trend.empty_in() == 0.0


@pytest.mark.parametrize("period", [10.0, 60.0])
def test_what_is_older_than_the_window_is_forgotten(period: float) -> None:
    """A fall that ended before the window is not told any more, and a new one is."""

    def free(at: float) -> float:
        return 1_000_000 - 1000 * min(at, 400) - 100 * max(0.0, at - 400)

    trend = seen(free, until=1400, period=period)
    assert trend.slope() == pytest.approx(-100)
    assert trend.empty_in() == pytest.approx(5000, rel=0.02)


def test_a_look_that_is_not_later_is_ignored() -> None:
    """Two values of one moment make no infinite pace."""
    trend = seen(lambda at: 100_000 - 100 * at)
    before = trend.empty_in()
    trend.add(1600.0, 5.0)
    trend.add(3.0, 5.0)
    assert trend.empty_in() == before


def test_terabytes_keep_their_precision() -> None:
    """A fall of one megabyte a second is seen on a disk of thirty terabytes."""
    trend = seen(lambda at: 3e13 - 1e6 * at)
    assert trend.slope() == pytest.approx(-1e6, rel=1e-6)
    assert trend.empty_in() == pytest.approx(3e7, rel=1e-3)


def test_of_several_things_the_first_to_end_is_told() -> None:
    """What nobody names any more is forgotten, and a trend of its name begins anew."""
    outlook = Outlook(WINDOW, LEAST)
    found = None
    for at in range(0, 601, 10):
        found = outlook.first(at, {"a": 100_000 - 100 * at, "b": 70_000 - 100 * at, "c": 5})
    assert found is not None
    assert found[0] == pytest.approx(100)
    assert found[1].startswith("b: full in ")
    found = outlook.first(610.0, {"a": 39_000})
    assert found is not None
    assert found[1] == "a: full in 6 minutes"
    assert outlook.first(620.0, {}) is None
    assert outlook.first(630.0, {"a": 37_000}) is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "full"),
        (1.5, "full in 1 second"),
        (45.0, "full in 45 seconds"),
        (119.9, "full in 119 seconds"),
        (725.0, "full in 12 minutes"),
        (3 * 3600.0, "full in 3 hours"),
        (50 * 3600.0, "full in 2 days"),
    ],
)
def test_the_words_are_for_people(seconds: float, said: str) -> None:
    """The largest unit that still tells the difference."""
    assert words(seconds) == said
