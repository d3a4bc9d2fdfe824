"""How long until something is used up, at the pace of the last while. Of numbers alone, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from statistics import fmean

from watchdog.core.model import Seconds

_MOST_POINTS = 64
_FEWEST_POINTS = 5
"""Through fewer points almost any noise is a line."""
_LINE = 0.9
"""Share of the variance that a line must explain. One file of any size, or two, make steps, and a
line explains 3/4 or 8/9 of those: only what goes on is a trend."""
_STILL = 0.5
"""The later half must fall at this share of the whole's pace: what has stopped is no trend."""
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0

_Point = tuple[Seconds, float]


class Trend:
    """The pace at which ``free`` falls, over ``window`` seconds.

    Nothing is told before ``least`` seconds have been seen. At most 64 points are kept, thinned
    evenly, whatever the period of the one who adds them. Not safe from several threads at once.
    """

    def __init__(self, window: Seconds, least: Seconds) -> None:
        self._window, self._least = window, least
        self._spacing = window / _MOST_POINTS
        self._points: deque[_Point] = deque(maxlen=_MOST_POINTS)
        self._latest: _Point | None = None

    def add(self, at: Seconds, free: float) -> None:
        """``free`` (any unit) as it is ``at`` (CLOCK_MONOTONIC). What is not later is ignored."""
        if self._latest is not None and at <= self._latest[0]:
            return
        self._latest = (at, free)
        points = self._points
        while points and points[0][0] < at - self._window:
            points.popleft()
        if not points or at - points[-1][0] >= self._spacing:
            points.append(self._latest)

    def slope(self) -> float | None:
        """Change of ``free`` per second, the best line's; None while too little has been seen.

        A number also when the values are noise: whether they are a line, ``empty_in`` judges.
        """
        points = self._seen()
        return None if points is None else _fit(points)[0]

    def empty_in(self) -> Seconds | None:
        """Seconds until ``free`` is zero, at the pace of the window; 0 when it is zero now.

        None without a clear fall: too little seen, no line (noise, steps), or one that has stopped.
        """
        if self._latest is not None and self._latest[1] <= 0:
            return 0.0
        points = self._seen()
        if points is None or self._latest is None:
            return None
        slope, explained = _fit(points)
        if slope >= 0 or explained < _LINE:
            return None
        later = list(islice(points, len(points) // 2, None))
        if _fit(later)[0] > slope * _STILL:
            return None
        return self._latest[1] / -slope

    def _seen(self) -> list[_Point] | None:
        """The points with the latest, None when they are too few or too close together."""
        if self._latest is None:
            return None
        points = list(self._points)
        if points[-1] != self._latest:
            points.append(self._latest)
        seen = points[-1][0] - points[0][0]
        return points if len(points) >= _FEWEST_POINTS and seen >= self._least else None


class Outlook:
    """Several things that may run out, each with its ``Trend``. Not for several threads at once."""

    def __init__(self, window: Seconds, least: Seconds) -> None:
        self._window, self._least = window, least
        self._trends: dict[str, Trend] = {}

    def first(self, at: Seconds, free: Mapping[str, float]) -> tuple[Seconds, str] | None:
        """What runs out first, in seconds and in words; None when nothing does.

        ``free`` is what is left ``at`` (CLOCK_MONOTONIC), by name; others are forgotten.
        """
        self._trends = {name: self._trends.get(name) or self._new() for name in free}
        ends: list[tuple[Seconds, str]] = []
        for name, trend in self._trends.items():
            trend.add(at, free[name])
            left = trend.empty_in()
            if left is not None:
                ends.append((left, f"{name}: {words(left)}"))
        return min(ends, default=None)

    def _new(self) -> Trend:
        return Trend(self._window, self._least)


def words(seconds: Seconds) -> str:
    """``full in 12 minutes``; ``full`` when nothing is left."""
    if seconds < 1:
        return "full"
    if seconds < 2 * _MINUTE:
        return _counted(seconds, "second")
    if seconds < 2 * _HOUR:
        return _counted(seconds / _MINUTE, "minute")
    if seconds < 2 * _DAY:
        return _counted(seconds / _HOUR, "hour")
    return _counted(seconds / _DAY, "day")


def _counted(number: float, unit: str) -> str:
    whole = int(number)
    return f"full in {whole} {unit}{'' if whole == 1 else 's'}"


def _fit(points: list[_Point]) -> tuple[float, float]:
    """Slope of the least squares, and the share of the variance that it explains (0 to 1)."""
    middle, level = fmean(at for at, _ in points), fmean(free for _, free in points)
    apart = [(at - middle, free - level) for at, free in points]
    spread = sum(at * at for at, _ in apart)
    variance = sum(free * free for _, free in apart)
    together = sum(at * free for at, free in apart)
    if not spread or not variance:
        return 0.0, 0.0
    return together / spread, together * together / (spread * variance)
