"""What an auditor writes down of looks: the load of engines, of probes, and single samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from watchdog.core.conditions import Figure, Window
from watchdog.core.model import (
    Decision,
    EngineSpawned,
    Event,
    Reading,
    ReadingTaken,
    Seconds,
    Subject,
)
from watchdog.core.rules import Rule
from watchdog.core.views import name_of

FRESH: Seconds = 15.0
"""Counters that are older say nothing of now."""
_OWN = "engine"

Point = tuple[Seconds, float]


@dataclass(frozen=True, slots=True)
class Load:
    """What the counters of one generation showed."""

    at: Seconds
    generation: str
    requests: float | None


@dataclass
class Books:
    """Every look since nobody looked. ``lives`` is (generation, since when) of each engine."""

    lives: dict[str, tuple[str, Seconds]] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    told: dict[tuple[str, str], tuple[Seconds, str]] = field(default_factory=dict)
    points: dict[tuple[Subject, str], list[Point]] = field(default_factory=dict)
    holes: dict[tuple[Subject, str], Seconds] = field(default_factory=dict)
    gap_at: Seconds = 0.0

    def notes(self, event: Event) -> None:
        """What is known after the event."""
        match event:
            case EngineSpawned():
                began = event.spawned_at if event.spawned_at is not None else event.at
                self.lives[event.engine] = (event.generation, began)
            case ReadingTaken():
                self._reads(event.reading)
            case _:
                pass

    def nobody_looked(self, at: Seconds) -> None:
        """A gap has ended."""
        self.gap_at = at
        self.forgets_windows()

    def forgets_windows(self) -> None:
        """Also at the end of a pause: what piled up is no reason to act."""
        self.points.clear()
        self.holes.clear()

    def begins_anew(self) -> None:
        """The watchdog itself did."""
        self.loads.clear()
        self.told.clear()
        self.gap_at = 0.0
        self.forgets_windows()

    def _reads(self, one: Reading) -> None:
        name = one.subject.name if one.subject is not None else ""
        self.told[one.probe, name] = (one.at, one.generation)
        if one.probe == "engine_metrics" and one.error is None:
            found = {sample.sample: sample.value for sample in one.samples}
            running, waiting = found.get("running"), found.get("waiting", 0.0)
            known = isinstance(running, int | float) and isinstance(waiting, int | float)
            requests = float(running) + float(waiting) if known else None  # type: ignore[arg-type]
            self.loads[name] = Load(one.at, one.generation, requests)
        if one.subject is None:
            self._keeps(one)

    def _keeps(self, one: Reading) -> None:
        fresh = {
            (sample.subject, name_of(one.probe, sample)): float(sample.value)
            for sample in one.samples
            if not isinstance(sample.value, str)
        }
        for key in self.points.keys() - fresh.keys():
            if key[1].partition(".")[0] == one.probe:
                self.holes.setdefault(key, one.at)
        for key, value in fresh.items():
            self.points.setdefault(key, []).append((one.at, value))

    def judges_load(self, act: Decision) -> None:
        """LAW: what has not failed is stopped only when it is known that no request is in it."""
        generation, _ = self.lives[act.target.name]
        load = self.loads.get(act.target.name)
        assert load is not None, f"its load was never read: {act}"
        assert load.generation == generation, f"its load is that of another start: {act}"
        assert load.at >= max(act.at - FRESH, self.gap_at), f"its load was read long ago: {act}"
        assert load.requests == 0.0, f"it has {load.requests} requests: {act}"

    def judges_looks(self, act: Decision, rule: Rule, ended_at: Seconds | None) -> None:
        """LAW: every probe of the rule has looked since the gap, the start and its last action."""
        generation, began = self.lives.get(act.target.name, ("", 0.0))
        since = max(self.gap_at, began, ended_at or 0.0)
        for probe in {name.partition(".")[0] for name in rule.when.samples} - {_OWN}:
            looks = [self.told.get((probe, name)) for name in (act.target.name, "")]
            found = [one for one in looks if one is not None]
            seen = any(at >= since and of in {"", generation} for at, of in found)
            assert seen or not found, f"{probe} has not looked since {since}: {act}"

    def judges_window(self, act: Decision, window: Window, limit: float) -> None:
        """LAW: the figure is above the limit, by what was seen of the window without a hole."""
        points = self._of(act.target, window)
        inside = [one for one in points if one[0] > act.at - window.seconds * (1 + 1 / 30)]
        if window.figure is Figure.INCREASE:
            before = [one for one in points if one not in inside][-1:]
            values = [value for _, value in (*before, *inside)]
            rises = sum(new - old if new >= old else new for old, new in pairwise(values))
            assert rises > limit, f"{window.name} is {rises}: {act}"
        else:
            seen = act.at - points[0][0] if points else 0.0
            known = window.figure is Figure.MAX_OVER or seen >= window.seconds
            assert known, f"{window.name} was seen for {seen} s: {act}"
            assert any(value > limit for _, value in inside), f"{window.name}: {act}"

    def _of(self, subject: Subject, window: Window) -> list[Point]:
        return self.points.get((subject, window.sample), [])

    def tears(self, windows: Mapping[str, tuple[Window, ...]]) -> None:
        """What was out of sight for more than a sixtieth of its window begins anew."""
        for key, since in tuple(self.holes.items()):
            points = self.points[key]
            if points[-1][0] <= since:
                continue
            del self.holes[key]
            lasted = points[-1][0] - since
            limits = [w.seconds for w in windows.get(key[1], ()) if w.figure is not Figure.INCREASE]
            if limits and lasted > min(limits) / 60:
                self.points[key] = points[-1:]
