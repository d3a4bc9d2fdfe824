"""Short memories of samples: what rules about the last minutes or hours are computed from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watchdog.core.conditions import Figure
from watchdog.core.model import Seconds, Value, number

_BUCKETS = 60
"""Parts of a window: its figures are exact to a sixtieth of it, whatever the period."""

Bucket = tuple[Seconds, Seconds, float]
"""The end of the bucket before it, its own last point, and what was found in between."""


@dataclass(frozen=True, slots=True)
class Series:
    """One figure over the last ``window`` seconds of one sample; the newest bucket is the last.

    A bucket holds the sum of the rises, the number of changes, the extreme, or for an average the
    value times the seconds it held: nothing short is lost between two buckets. ``total`` is what
    all buckets together hold. ``hole_at`` is since when looks have not brought the sample.
    """

    figure: Figure
    window: Seconds
    began: Seconds = 0.0
    last: Value = 0.0
    buckets: tuple[Bucket, ...] = ()
    total: float = 0.0
    hole_at: Seconds | None = None

    def with_point(self, at: Seconds, value: Value) -> Series:
        """The series a reading later; after a time in which nobody could tell it begins anew.

        What a counter rose by meanwhile can still be told; a sixtieth of the window is no matter.
        """
        if not self.buckets or at - self.buckets[-1][1] > self.window or self._is_torn(at):
            first = _amount(self.figure, None, value, 0.0)
            return Series(self.figure, self.window, at, value, ((at, at, first),), first)
        began, seen, amount = self.buckets[-1]
        more = _amount(self.figure, self.last, value, at - seen)
        kept = self._since(at - self.window)
        if at - began < self.window / _BUCKETS:
            buckets = (*kept[:-1], (began, at, _joined(self.figure, amount, more)))
        else:
            buckets = (*kept, (seen, at, more))
        if kept is self.buckets:
            total = _joined(self.figure, self.total, more)
        else:  # summed up anew, or rounding errors would pile up for ever
            total = _together(self.figure, buckets)
        return Series(self.figure, self.window, self.began, value, buckets, total)

    def with_hole(self, at: Seconds) -> Series:
        """The series after a look at ``at`` that did not bring the sample."""
        return self if self.hole_at is not None else replace(self, hole_at=at)

    def _is_torn(self, at: Seconds) -> bool:
        if self.hole_at is None or self.figure is Figure.INCREASE:
            return False
        return at - self.hole_at > self.window / _BUCKETS

    def _since(self, start: Seconds) -> tuple[Bucket, ...]:
        """Without what ended before the window began."""
        if self.buckets[0][1] > start:
            return self.buckets
        young = (place for place, bucket in enumerate(self.buckets) if bucket[1] > start)
        return self.buckets[next(young, len(self.buckets)) :]

    @property
    def covered(self) -> bool:
        """Whether the whole window was seen."""
        return bool(self.buckets) and self.buckets[-1][1] - self.began >= self.window

    @property
    def value(self) -> float:
        """The figure of what was seen of the window; raises ValueError when that is nothing."""
        if not self.buckets:
            raise ValueError("nothing was seen")
        return self._average() if self.figure is Figure.AVG_OVER else self.total

    def _average(self) -> float:
        """Of the window alone: the first bucket may have begun before it."""
        began, ended, first = self.buckets[0]
        start = max(began, self.buckets[-1][1] - self.window)
        before = first * (start - began) / (ended - began) if ended > began else 0.0
        span = self.buckets[-1][1] - start
        return (self.total - before) / span if span > 0 else number(self.last)


def _amount(figure: Figure, before: Value | None, now: Value, lasted: Seconds) -> float:
    """What one reading adds to its bucket; a fall of a counter is one that began anew at zero."""
    match figure:
        case Figure.INCREASE:
            return 0.0 if before is None else _rise(number(before), number(now))
        case Figure.CHANGES:
            return float(before is not None and before != now)
        case Figure.AVG_OVER:
            return 0.0 if before is None else number(before) * lasted
        case _:
            return number(now)


def _rise(old: float, new: float) -> float:
    return new - old if new >= old else new


def _joined(figure: Figure, one: float, other: float) -> float:
    match figure:
        case Figure.MAX_OVER:
            return max(one, other)
        case Figure.MIN_OVER:
            return min(one, other)
        case _:
            return one + other


def _together(figure: Figure, buckets: tuple[Bucket, ...]) -> float:
    amounts = [amount for _, _, amount in buckets]
    match figure:
        case Figure.MAX_OVER:
            return max(amounts)
        case Figure.MIN_OVER:
            return min(amounts)
        case _:
            return sum(amounts)
