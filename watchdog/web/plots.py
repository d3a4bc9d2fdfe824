"""Ten minutes of one card as small drawings: no library, no asset, a few hundred bytes each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from watchdog.core.model import Seconds
from watchdog.snapshot import Point
from watchdog.web.markup import text
from watchdog.web.recent import PERIOD, SPAN

_WIDTH, _HEIGHT = 240, 40
"""Units of a drawing: two a point."""
_GAP = 3 * PERIOD
"""Nothing is drawn across a time in which the card was not read."""
_COLD, _HOT = 20.0, 100.0
"""Ends of the scale of temperatures, in degrees Celsius."""
_HEAT = frozenset({"hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake"})

Known = tuple[Seconds, float]


def plots(points: Sequence[Point], now: Seconds, together: int = 1) -> str:
    """The four drawings of a card; ``now`` is their right edge.

    So many points ``together`` become one, to keep a page with many cards small.
    """
    points = list(_thinned(points, together))[::-1]
    curves = (
        ("utilisation", "%", [(p.at, p.utilization) for p in points], 0.0, 100.0),
        ("memory", "%", [(p.at, _percent(p.memory)) for p in points], 0.0, 100.0),
        ("temperature", "°C", [(p.at, p.temperature) for p in points], _COLD, _HOT),
    )
    drawn = [
        _figure(name, unit, [(t, v) for t, v in known if v is not None], low, high, now, together)
        for name, unit, known, low, high in curves
    ]
    return f'<div class="plots">{"".join(drawn)}{_slowed(points, now)}</div>'


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100.0


def _figure(  # noqa: PLR0913, PLR0917 - one drawing, whole
    name: str,
    unit: str,
    known: Sequence[Known],
    low: float,
    high: float,
    now: Seconds,
    together: int,
) -> str:
    last = f"{known[-1][1]:.0f} {unit}" if known else "?"
    told = ""
    if known:
        values = [value for _, value in known]
        told = f", {min(values):.0f} to {max(values):.0f} {unit} in ten minutes"
    line = "".join(_path(run, low, high, now) for run in _runs(known, _GAP * together))
    label = f"{name} {last}{told}"
    return _frame(name, last, label, f'<path d="{line}"/>' if line else "")


def _frame(name: str, last: str, label: str, drawing: str, kind: str = "curve") -> str:
    return (
        f"<figure><figcaption>{name} <b>{text(last)}</b></figcaption>"
        f'<svg class="{kind}" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{text(label)}">{drawing}</svg></figure>'
    )


def _thinned(points: Sequence[Point], together: int) -> Iterator[Point]:
    """The last of each handful, with all for which the clocks were held down meanwhile."""
    for end in range(len(points), 0, -together):
        handful = points[max(0, end - together) : end]
        slowed = {reason for point in handful for reason in point.slowed}
        yield replace(handful[-1], slowed=tuple(sorted(slowed)))


def _runs(known: Sequence[Known], gap: Seconds) -> Iterator[list[Known]]:
    """Pieces without a gap."""
    run: list[Known] = []
    for one in known:
        if run and one[0] - run[-1][0] > gap:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _path(run: Sequence[Known], low: float, high: float, now: Seconds) -> str:
    """A line through ``run``, in whole units; what stays at one height is one stroke."""
    places = [(_x(at, now), _y(value, low, high)) for at, value in run]
    kept = [
        place
        for number, place in enumerate(places)
        if number in {0, len(places) - 1}
        or not places[number - 1][1] == place[1] == places[number + 1][1]
    ]
    steps = [(x - ex, y - ey) for (ex, ey), (x, y) in pairwise(kept)]
    strokes = "".join(f"l{dx}{'' if dy < 0 else ' '}{dy}" if dy else f"h{dx}" for dx, dy in steps)
    return f"M{kept[0][0]} {kept[0][1]}{strokes or 'h1'}"


def _x(at: Seconds, now: Seconds) -> int:
    return round(_WIDTH * min(max(1.0 - (now - at) / SPAN, 0.0), 1.0))


def _y(value: float, low: float, high: float) -> int:
    share = min(max((value - low) / (high - low), 0.0), 1.0)
    return round(1 + (_HEIGHT - 2) * (1.0 - share))


def _slowed(points: Sequence[Point], now: Seconds) -> str:
    """A bar for each time in which the clocks were held down: by heat or brake, or by the limit."""
    reasons = sorted({reason for point in points for reason in point.slowed})
    last = ", ".join(points[-1].slowed) if points else ""
    bars = "".join(_bars(points, now))
    label = f"throttling: {', '.join(reasons) if reasons else 'none'} in ten minutes"
    return _frame("throttling", last.replace("_", " ") or "none", label, bars, "bars")


def _bars(points: Sequence[Point], now: Seconds) -> Iterator[str]:
    for kind, hot in (("hot", True), ("slow", False)):
        edges = [
            (_x(p.at - PERIOD, now), _x(p.at, now))
            for p in points
            if p.slowed and bool(_HEAT & {*p.slowed}) is hot
        ]
        line = "".join(f"M{x} 0H{max(end, x + 1)}V{_HEIGHT}H{x}z" for x, end in _joined(edges))
        if line:
            yield f'<path class="{kind}" d="{line}"/>'


def _joined(edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Bars that touch as one."""
    found: list[tuple[int, int]] = []
    for begin, end in edges:
        if found and begin <= found[-1][1] + 1:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found
