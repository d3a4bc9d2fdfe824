"""Short memories of samples: what rules about the last minutes or hours are computed from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from watchdog.core.model import Seconds

_POINTS = 60
"""Points kept of a window: its figures are exact to a sixtieth of it, whatever the period."""

Point = tuple[Seconds, float]


@dataclass(frozen=True, slots=True)
class Series:
    """The last ``window`` seconds of one sample, oldest first; the newest point is always exact."""

    window: Seconds
    points: tuple[Point, ...] = ()

    def with_point(self, at: Seconds, value: float) -> Series:
        """The series a reading later. After a gap of a whole window it begins anew."""
        points = self.points
        if points and at - points[-1][0] > self.window:
            points = ()
        if len(points) > 1 and at - points[-2][0] < self.window / _POINTS:
            points = points[:-1]
        start = at - self.window
        first = 0
        while first + 1 < len(points) and points[first + 1][0] <= start:
            first += 1
        return Series(self.window, (*points[first:], (at, value)))

    @property
    def covered(self) -> bool:
        """Whether the whole window was seen."""
        return bool(self.points) and self.points[0][0] <= self.points[-1][0] - self.window

    @property
    def increase(self) -> float:
        """How much a counter rose; a fall is a counter that began anew at zero."""
        values = [value for _, value in self.points]
        return sum(new - old if new >= old else new for old, new in pairwise(values))

    @property
    def most(self) -> float:
        """The greatest value; raises ValueError when there is none."""
        return max(value for _, value in self.points)
