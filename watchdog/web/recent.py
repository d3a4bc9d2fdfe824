"""The last ten minutes of every card, in memory: what the status page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from watchdog.core.model import Event, Reading, ReadingTaken, Sampled, Seconds, number
from watchdog.core.state import Step
from watchdog.snapshot import Point

SPAN: Seconds = 600.0
PERIOD: Seconds = 5.0
"""Between two points: finer than a plot of this size can show."""
_CARDS = 64
"""More than any box has; cards that were replaced or split anew count until they are forgotten."""
_HARMLESS = frozenset({"idle", "applications_clocks", "sync_boost", "display_clock"})
"""Reasons for a low clock that somebody chose, or that nobody notices."""


@dataclass(slots=True)
class _Sums:
    """What was read of one card since its last point."""

    began: Seconds
    utilizations: list[float] = field(default_factory=list)
    memory: float | None = None
    temperature: float | None = None
    slowed: set[str] = field(default_factory=set)

    def add(self, samples: Sequence[Sampled]) -> None:
        """Take one reading in."""
        values = {sample.sample: sample.value for sample in samples if sample.sample in _DRAWN}
        if "utilization_percent" in values:
            self.utilizations.append(number(values["utilization_percent"]))
        total = number(values.get("memory_total_bytes", 0))
        if total > 0 and "memory_used_bytes" in values:
            self.memory = number(values["memory_used_bytes"]) / total
        if "temperature_celsius" in values:
            warm = number(values["temperature_celsius"])
            self.temperature = max(warm, self.temperature if self.temperature is not None else warm)
        self.slowed.update(
            reason
            for sample in samples
            if sample.sample == "throttled" and sample.value
            for key, reason in sample.labels
            if key == "reason" and reason not in _HARMLESS
        )

    def point(self, at: Seconds) -> Point:
        """All of it as one."""
        known = self.utilizations
        mean = sum(known) / len(known) if known else None
        return Point(at, mean, self.memory, self.temperature, tuple(sorted(self.slowed)))


_DRAWN = frozenset(
    {"utilization_percent", "memory_used_bytes", "memory_total_bytes", "temperature_celsius"}
)


class Recent:
    """Told of every step by the loop; ``points`` may be read from any thread at any time."""

    def __init__(self) -> None:
        self.points: Mapping[str, tuple[Point, ...]] = {}
        self._sums: dict[str, _Sums] = {}

    def observe(self, event: Event, _: Step) -> None:
        """Take the reading of the cards in, if it is one."""
        if isinstance(event, ReadingTaken) and event.reading.probe == "gpu":
            self._take(event.reading)

    def _take(self, reading: Reading) -> None:
        cards: dict[str, list[Sampled]] = {}
        for sample in reading.samples:
            cards.setdefault(sample.subject.name, []).append(sample)
        for name, samples in cards.items():
            if name in self._sums or len(self._sums) < _CARDS:
                self._sums.setdefault(name, _Sums(reading.at - PERIOD)).add(samples)
        due = [name for name in cards if name in self._sums and self._is_due(name, reading.at)]
        if due:
            self._publish(due, reading.at)

    def _is_due(self, name: str, at: Seconds) -> bool:
        return at - self._sums[name].began >= PERIOD

    def _publish(self, due: Sequence[str], at: Seconds) -> None:
        """A new mapping, so that nobody who reads the old one is disturbed."""
        fresh = dict(self.points)
        for name in due:
            fresh[name] = (*fresh.get(name, ()), self._sums[name].point(at))
            self._sums[name] = _Sums(at)
        young = {n: tuple(p for p in points if at - p.at < SPAN) for n, points in fresh.items()}
        self.points = {name: points for name, points in young.items() if points}
        self._sums = {n: s for n, s in self._sums.items() if n in self.points}
