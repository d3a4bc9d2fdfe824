"""The pictures of growth: well-formed, with their units, and every value where it belongs."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.perf.curves import Curve, Point, picture, ticks

SVG = "{http://www.w3.org/2000/svg}"
POINTS = (Point(1, (90.0, 110.0)), Point(4, (200.0,)), Point(16, (400.0, 500.0, 600.0)))


def curve(points: tuple[Point, ...] = POINTS, title: str = "A step") -> Curve:
    """A curve with an axis of cards and one of time."""
    return Curve("growth-x", title, "GPUs", "CPU, µs a step", points)


def drawn(one: Curve) -> ET.Element:
    """The picture, read by a parser that takes nothing broken."""
    return ET.fromstring(picture(one))  # noqa: S314 - we wrote it


def texts(svg: ET.Element) -> list[str]:
    """All words in it."""
    return [element.text or "" for element in svg.iter(f"{SVG}text")]


def test_the_axes_have_units_and_the_points_their_means() -> None:
    """FACT: title, both axes and the mean of every point are written in the picture."""
    words = texts(drawn(curve()))
    assert {"A step", "GPUs", "CPU, µs a step", "100.0", "200.0", "500.0", "600"} <= set(words)


def test_what_is_more_stands_higher_and_farther() -> None:
    """FACT: points go to the right with their size and up with their mean, inside the picture."""
    svg = drawn(curve())
    dots = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in svg.iter(f"{SVG}circle")]
    assert len(dots) == len(POINTS)
    assert dots == sorted(dots, key=lambda dot: (dot[0], -dot[1]))
    assert [y for _, y in dots] == sorted((y for _, y in dots), reverse=True)
    assert all(0 < x < 640 and 0 < y < 360 for x, y in dots)


def test_hostile_words_are_text() -> None:
    """FACT: what wants to be markup is shown as it is."""
    title = "<script>&\"'</text>"
    assert title in texts(drawn(curve(title=title)))


def test_light_and_dark() -> None:
    """FACT: the picture has colours for a dark page of its own."""
    assert "prefers-color-scheme:dark" in picture(curve())


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0.0, (0.0, 1.0)),
        (math.inf, (0.0, 1.0)),
        (1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (16.0, (0.0, 5.0, 10.0, 15.0, 20.0)),
        (1000.0, (0.0, 200.0, 400.0, 600.0, 800.0, 1000.0)),
    ],
)
def test_ticks_are_round(most: float, expected: tuple[float, ...]) -> None:
    """FACT: an axis is divided by figures that people count in."""
    assert ticks(most) == pytest.approx(expected)


@given(most=st.floats(1e-9, 1e12))
def test_ticks_cover_all(most: float) -> None:
    """FACT: an axis is as long as its largest value, and not twice as long, in few parts."""
    found = ticks(most)
    assert found[0] == 0.0
    assert most <= found[-1] * (1 + 1e-9)
    assert found[-1] <= 2 * most * (1 + 1e-9)
    assert 3 <= len(found) <= 7
