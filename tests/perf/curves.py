"""Pictures of what grows: one curve as one SVG file, readable on a light and on a dark page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 28, 52, 58
_TICKS = 5
_NICE = (1, 2, 2.5, 5, 10)
_CAP = 4
"""Half the width of the ends of a range."""
_STYLE = (
    "svg{background:#fff;font:13px system-ui,sans-serif}text{fill:#1f2328}"
    ".grid{stroke:#d8dee4}.axis{stroke:#57606a}.line{stroke:#0969da;fill:none;stroke-width:2}"
    ".range{stroke:#0969da;stroke-width:1.5}.dot{fill:#0969da}.title{font-weight:600}"
    "@media(prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#e6edf3}"
    ".grid{stroke:#30363d}.axis{stroke:#8b949e}.line,.range{stroke:#58a6ff}.dot{fill:#58a6ff}}"
)


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one size; at least one value."""

    x: float
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of all values: they stand for equal parts of a longer time."""
        return statistics.fmean(self.values)


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over sizes, the smallest first. ``across`` and ``up`` name the axes with their units.

    ``name`` is that of the file, without its ending.
    """

    name: str
    title: str
    across: str
    up: str
    points: tuple[Point, ...]
    digits: int = 1


def picture(curve: Curve) -> str:
    """The SVG document. Both axes begin at zero, and what they are divided by is round."""
    return "\n".join((*_drawn(curve), "</svg>", ""))


def ticks(most: float) -> tuple[float, ...]:
    """Round figures from zero to the first that is not below ``most``, some five of them."""
    if not math.isfinite(most) or most <= 0:
        return (0.0, 1.0)
    rough = most / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next((nice * size for nice in _NICE if nice * size >= rough), 10 * size)
    return tuple(step * number for number in range(math.ceil(most / step - 1e-9) + 1))


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a figure stands: ``first`` and ``last`` are the ends of the axis in the picture."""

    most: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        return round(self.first + value / self.most * (self.last - self.first), 1)


def _drawn(curve: Curve) -> Iterator[str]:
    columns = ticks(max(point.x for point in curve.points))
    rows = ticks(max(max(point.values) for point in curve.points))
    x = _Scale(columns[-1], _LEFT, _WIDTH - _RIGHT)
    y = _Scale(rows[-1], _HEIGHT - _BOTTOM, _TOP)
    title = escape(curve.title)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{title}">'
    )
    yield f"<title>{title}</title><style>{_STYLE}</style>"
    yield _text(_LEFT, 26, curve.title, "title", "start")
    yield from _axes(columns, rows, x, y)
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, curve.across)
    yield _text(_LEFT, _TOP - 10, curve.up, anchor="start")
    yield from _measured(curve, x, y)


def _axes(columns: Sequence[float], rows: Sequence[float], x: _Scale, y: _Scale) -> Iterator[str]:
    for value in rows:
        kind = "grid" if value else "axis"
        yield _line(kind, x.first, y(value), x.last, y(value))
        yield _text(x.first - 8, y(value) + 4, f"{value:,g}", anchor="end")
    yield _line("axis", x.first, y.first, x.first, y.last)
    for value in columns:
        yield _line("axis", x(value), y.first, x(value), y.first + 5)
        yield _text(x(value), y.first + 20, f"{value:,g}")


def _measured(curve: Curve, x: _Scale, y: _Scale) -> Iterator[str]:
    places = " ".join(f"{x(point.x):g},{y(point.mean):g}" for point in curve.points)
    yield f'<polyline class="line" points="{places}"/>'
    for point in curve.points:
        at, low, high = x(point.x), y(min(point.values)), y(max(point.values))
        yield _line("range", at, low, at, high)
        for end in (low, high):
            yield _line("range", at - _CAP, end, at + _CAP, end)
        yield f'<circle class="dot" cx="{at:g}" cy="{y(point.mean):g}" r="3.5"/>'
        yield _text(at, high - 8, f"{point.mean:,.{curve.digits}f}")


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


__all__ = ["Curve", "Point", "picture", "ticks"]
