"""What is kept of the cards for the plots, and how it is drawn."""

from __future__ import annotations

import re

import pytest

from tests.support.core import reading
from watchdog.core.model import Reading, ReadingTaken, Sampled, Subject, SubjectKind, Value
from watchdog.core.state import State, Step
from watchdog.snapshot import Point
from watchdog.web.plots import plots
from watchdog.web.recent import PERIOD, SPAN, Recent

CARD = Subject(SubjectKind.GPU, "GPU-a")
GIB = 1 << 30
KINDS = ("hot", "slow")


def look(
    at: float, *, card: Subject = CARD, throttled: tuple[str, ...] = (), **values: Value
) -> Reading:
    """One look of the probe ``gpu`` at one card."""
    samples = [Sampled(card, name, value) for name, value in values.items()]
    held = [(("reason", reason),) for reason in throttled]
    samples += [Sampled(card, "throttled", value=True, labels=labels) for labels in held]
    return Reading("gpu", at, 0.0, tuple(samples))


def told(recent: Recent, *readings: Reading) -> Recent:
    """``recent`` after these."""
    for one in readings:
        recent.observe(ReadingTaken(one.at, one), Step(State()))
    return recent


def points(recent: Recent) -> tuple[Point, ...]:
    """Those of the one card."""
    return recent.points.get(CARD.name, ())


def test_looks_of_five_seconds_become_one_point() -> None:
    """FACT: the mean of the utilisation, the highest temperature, the last share of memory."""
    looks = [
        look(
            10.0 + second,
            utilization_percent=float(20 * second),
            temperature_celsius=90.0 if second == 3 else 50.0,
            memory_used_bytes=second * GIB,
            memory_total_bytes=10 * GIB,
        )
        for second in range(6)
    ]
    _, last = points(told(Recent(), *looks))
    assert last == Point(15.0, 60.0, 0.5, 90.0, ())


def test_the_first_look_is_drawn_at_once() -> None:
    """FACT: a page that is opened right after the start is not empty."""
    assert len(points(told(Recent(), look(1.0, utilization_percent=1.0)))) == 1


def test_a_short_slowdown_is_not_lost_between_points() -> None:
    """FACT: a reason that held at one look of five is told, one that is harmless never."""
    looks = [
        look(float(second), throttled=("idle", "hw_thermal") if second == 2 else ("idle",))
        for second in range(6)
    ]
    assert [point.slowed for point in points(told(Recent(), *looks))] == [(), ("hw_thermal",)]


def test_ten_minutes_are_kept_and_no_more() -> None:
    """FACT: after an hour of looks there are as many points as ten minutes have."""
    recent = Recent()
    told(recent, *(look(float(second), utilization_percent=1.0) for second in range(3600)))
    assert 0 <= SPAN / PERIOD - len(points(recent)) <= 1
    assert points(recent)[0].at > 3600 - SPAN - PERIOD


def test_a_card_that_is_gone_is_forgotten() -> None:
    """FACT: ten minutes after its last look nothing is left of it, here or inside."""
    recent = told(Recent(), look(0.0, utilization_percent=1.0))
    other = Subject(SubjectKind.GPU, "GPU-b")
    told(recent, *(look(float(at), card=other, utilization_percent=1.0) for at in range(0, 700, 5)))
    assert set(recent.points) == {"GPU-b"}


def test_a_thousand_cards_do_not_fill_the_memory() -> None:
    """FACT: names that come and come, as of a driver gone mad, end at a limit."""
    cards = [Subject(SubjectKind.GPU, f"GPU-{number}") for number in range(1000)]
    recent = told(Recent(), *(look(1.0, card=card, utilization_percent=1.0) for card in cards))
    assert len(recent.points) == 64


def test_other_probes_are_no_matter() -> None:
    """FACT: only readings of the cards are taken."""
    assert not told(Recent(), reading("engine_http", 1.0, ("utilization_percent", 5.0))).points


def curves(html: str) -> list[str]:
    """The lines that are drawn."""
    return re.findall(r'<path d="([^"]*)"', html)


def test_what_was_not_read_is_not_drawn() -> None:
    """FACT: a minute without looks is a gap in the line, not a stroke across."""
    known = [Point(at, 50.0) for at in (400.0, 405.0, 410.0, 470.0, 475.0)]
    (line,) = curves(plots(known, 600.0))
    assert line.count("M") == 2
    assert not curves(plots([Point(500.0)], 600.0))


@pytest.mark.parametrize(
    ("value", "height"), [(0.0, 39), (50.0, 20), (100.0, 1), (-5.0, 39), (1e9, 1)]
)
def test_a_value_has_its_height(value: float, height: int) -> None:
    """FACT: the scale is fixed, and what is beyond it stays inside of the drawing."""
    (line,) = curves(plots([Point(600.0, value)], 600.0))
    assert line == f"M240 {height}h1"


def test_heat_and_the_power_limit_look_different() -> None:
    """FACT: heat is drawn as one thing, a power cap as another, both are told in words."""
    html = plots(
        [Point(300.0, slowed=("sw_power_cap",)), Point(305.0, slowed=("hw_thermal",))], 600.0
    )
    assert html.count('class="slow"') == html.count('class="hot"') == 1
    heat, cap = ([int(x) for x in re.findall(rf'class="{kind}" d="M(\d+)', html)] for kind in KINDS)
    assert (heat, cap) == ([120], [118])
    assert "throttling: hw_thermal, sw_power_cap in ten minutes" in html


def test_many_cards_have_coarser_plots_and_lose_no_slowdown() -> None:
    """FACT: of four points together one is drawn, with all their reasons."""
    known = [Point(5.0 * n, float(n), slowed=("hw_thermal",) if n == 1 else ()) for n in range(100)]
    fine, coarse = plots(known, 500.0), plots(known, 500.0, together=4)
    assert len(coarse) < len(fine)
    assert 'class="hot"' in coarse
    assert curves(coarse)[0].count("M") == 1
