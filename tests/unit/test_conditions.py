"""Windows: how they are named, so that a condition, a view and the journal mean the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core import Above, Is
from tests.support.rules import FakeView
from watchdog.config.durations import parse_duration
from watchdog.core.conditions import Figure, Window, spelled
from watchdog.core.model import Value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.0, "1s"),
        (1.5, "1.5s"),
        (0.25, "0.25s"),
        (59.0, "59s"),
        (60.0, "1m"),
        (90.0, "90s"),
        (300.0, "5m"),
        (5400.0, "90m"),
        (3600.0, "1h"),
        (86400.0, "24h"),
    ],
)
def test_a_duration_is_spelled_in_the_largest_unit_that_divides_it(
    seconds: float, text: str
) -> None:
    """FACT: one spelling for each duration, as a person would write it."""
    assert spelled(seconds) == text


@given(st.integers(1, 8760 * 3600 * 1000).map(lambda ms: ms / 1000))
def test_what_is_spelled_can_be_read_again(seconds: float) -> None:
    """FACT: a name in the journal can be put into a rule as it is."""
    assert parse_duration(spelled(seconds)) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("figure", Figure)
def test_a_window_is_named_as_it_is_written(figure: Figure) -> None:
    """FACT: the name is the text of the condition, and so is that of its cover."""
    window = Window(figure, "gpu.throttle_seconds.hw_thermal", 300.0)
    assert window.name == f"{figure.value}(gpu.throttle_seconds.hw_thermal, 5m)"
    assert window.covered == f"{window.name} covered"


def test_windows_are_equal_when_they_say_the_same() -> None:
    """FACT: one is kept for all rules that ask for it, however they spelled its duration."""
    one, same = Window(Figure.CHANGES, "x.y", 60.0), Window(Figure.CHANGES, "x.y", 60)
    assert (one, hash(one), one.name) == (same, hash(same), same.name)
    others = {
        Window(Figure.CHANGES, "x.y", 61.0),
        Window(Figure.CHANGES, "x.z", 60.0),
        Window(Figure.INCREASE, "x.y", 60.0),
    }
    assert one not in others
    assert len({other.name for other in (*others, one)}) == 4


def test_conditions_of_these_tests_are_three_valued() -> None:
    """FACT: what is missing is not known; a window that is partly seen decides only upwards."""
    window = Window(Figure.INCREASE, "x.y", 60.0)
    above, name, covered = Above(window, 1), window.name, window.covered
    one = Is("x", (1,))
    assert [one(FakeView(view)) for view in ({"x": 1}, {"x": 2}, {})] == [True, False, None]
    looks: tuple[tuple[dict[str, Value], bool | None], ...] = (
        ({name: 2.0, covered: False}, True),
        ({name: 1.0, covered: True}, False),
        ({name: 1.0, covered: False}, None),
        ({}, None),
    )
    for view, answer in looks:
        assert above(FakeView(view)) is answer
