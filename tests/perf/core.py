"""What ``step`` costs for a big box: eight cards, four engines of two cards, all default rules.

Ten minutes of virtual time go by first, so that windows are full and every rule has its watches.
The samples of the cards are those that the probe brings of a loaded H200, all that it can say.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from probes.gpu import Gpu
from tests.perf.table import row
from tests.support import fake_nvml
from tests.support.box import CLASSES, driver
from tests.support.core import http, metrics, process
from tests.support.rules import DEFAULT_RULES
from watchdog.core import rule_set
from watchdog.core.engine import step
from watchdog.core.model import (
    HOST,
    Cause,
    EngineSpawned,
    Event,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    Tick,
)
from watchdog.core.state import EngineSettings, EngineState, PolicySettings, State

CARDS = 8
ENGINES = ("a", "b", "c", "d")
WARM_UP = 600
SECONDS = 300
_US = 1_000_000
_PATIENCE = 60.0
_GIB = 1 << 30
_MOVING = frozenset({"utilization_percent", "temperature_celsius", "power_watts"})
_OWNERS = ("engine", "orphan", "foreign", "unknown")
_RULES = rule_set.of(DEFAULT_RULES)


class Box:
    """The events of such a box, second by second."""

    def __init__(self, cards: int = CARDS, engines: Sequence[str] = ENGINES) -> None:
        self._engines = engines
        self._samples = _samples(cards)
        self._cards = {
            sample.subject: sample.labels[:2]
            for sample in self._samples
            if sample.sample == "state"
        }

    def second(self, number: int) -> Iterator[Event]:
        """What one second brings, at the default periods, and the loop's own turn."""
        at = float(number)
        for reading in self._readings(number, at):
            yield ReadingTaken(reading.at, reading)
        yield Tick(at + 0.9)

    def _readings(self, number: int, at: Seconds) -> Iterator[Reading]:
        yield Reading("gpu", at + 0.1, 0.01, self.moved(number))
        yield Reading("xid", at + 0.2, 0.001, tuple(self.errors()))
        if number % 2 == 0:
            yield Reading("gpu_processes", at + 0.3, 0.01, tuple(self.holders()))
        if number % 10 == 0:
            yield driver(
                at + 0.4, {"gpus_expected": len(self._cards), "gpus_found": len(self._cards)}
            )
        for name in self._engines:
            busy = number * 1.0
            yield process(at + 0.5, generation=name, name=name, cpu_seconds=busy, log_bytes=number)
            if number % 2 == 1:
                yield http(at + 0.6, generation=name, name=name)
                yield metrics(at + 0.7, busy, running=2.0, generation=name, name=name)

    def moved(self, number: int) -> tuple[Sampled, ...]:
        """All of it; what is measured differs from second to second, counters of trouble do not."""
        return tuple(
            replace(one, value=float(one.value) - number % 7) if one.sample in _MOVING else one
            for one in self._samples
        )

    def errors(self) -> Iterator[Sampled]:
        """What the probe of Xid errors brings."""
        for card, labels in self._cards.items():
            for kind in CLASSES:
                yield Sampled(card, "class_errors", 0, (*labels, ("class", kind)))
        yield Sampled(HOST, "source", "kmsg")
        yield Sampled(HOST, "source_trouble", "")

    def holders(self) -> Iterator[Sampled]:
        """What the probe of GPU processes brings."""
        for number, (card, labels) in enumerate(self._cards.items()):
            name = self._engines[number * len(self._engines) // len(self._cards)]
            yield Sampled(card, "engine_memory_bytes", 80 * _GIB, (*labels, ("engine", name)))
            for owner in _OWNERS:
                size = 80 * _GIB if owner == "engine" else 0
                yield Sampled(card, "memory_bytes", size, (*labels, ("owner", owner)))
            yield Sampled(card, "processes", 1, labels)
            yield Sampled(card, "complete", True, labels)  # noqa: FBT003
            yield Sampled(card, "invalid_pids", 0, labels)
            yield Sampled(card, "unaccounted_bytes", 0, labels)
            yield Sampled(card, "strangers", "", labels)
            yield Sampled(card, "orphans", "", labels)


def _samples(cards: int) -> tuple[Sampled, ...]:
    """One read of the probe in front of loaded cards."""
    with tempfile.TemporaryDirectory() as folder:
        fake = fake_nvml.build(Path(folder))
        fake.cards = cards
        fake.write()
        with fake_nvml.asking(fake.environment) as client:
            read = Gpu(client).read(time.monotonic() + _PATIENCE)
            return tuple(one for one in read if isinstance(one, Sampled))


class Run:
    """The core over those events; what each step took, by kind of event."""

    def __init__(self, names: Sequence[str] = ENGINES) -> None:
        engines = {name: EngineState(EngineSettings(name)) for name in names}
        self.state = State(engines=engines)
        self.took: dict[str, list[float]] = defaultdict(list)
        self.seconds: list[float] = []
        self.findings: set[str] = set()
        for number, name in enumerate(names):
            self._take(EngineSpawned(0.0, name, name, number + 1, Cause.OPERATOR))
            self._take(ReadingTaken(0.0, http(0.0, "ok", "ok", 200, generation=name, name=name)))

    def _take(self, event: Event) -> float:
        began = time.thread_time()
        done = step(self.state, event, _RULES, PolicySettings())
        took = (time.thread_time() - began) * _US
        self.state = done.state
        self.findings |= {finding.rule for finding in done.findings}
        return took

    def live(self, seconds: Sequence[list[Event]]) -> None:
        """Take all events, second by second."""
        for events in seconds:
            costs = [self._take(event) for event in events]
            self.seconds.append(sum(costs))
            for event, cost in zip(events, costs, strict=True):
                self.took[_kind(event)].append(cost)

    @property
    def described(self) -> str:
        """Whether it is what it should be: a healthy box that works."""
        verdicts = {name: engine.verdict.value for name, engine in self.state.engines.items()}
        return f"verdicts {verdicts}, cards {len(self.state.cards)}, findings {self.findings}"


def _kind(event: Event) -> str:
    return event.reading.probe if isinstance(event, ReadingTaken) else "tick"


def _warm(cards: int = CARDS, names: Sequence[str] = ENGINES) -> tuple[Run, list[list[Event]]]:
    """A core in which everything was seen, and the seconds that come next."""
    box, run = Box(cards, names), Run(names)
    run.live([list(box.second(number)) for number in range(WARM_UP)])
    run.took.clear()
    run.seconds.clear()
    run.findings.clear()
    return run, [list(box.second(number)) for number in range(WARM_UP, WARM_UP + SECONDS)]


def steps() -> None:
    """Print what steps take, all together and by kind of event."""
    run, seconds = _warm()
    run.live(seconds)
    box = f"{CARDS} GPUs, {len(ENGINES)} engines, CPU"
    row(f"step, {box} µs", [cost for costs in run.took.values() for cost in costs], 0)
    for kind, costs in sorted(run.took.items()):
        row(f"step, {box} µs, {kind}", costs, 0)
    row(f"steps of one second, {box} µs", run.seconds, 0)


def growth() -> None:
    """Print what a step costs as the box grows, two cards an engine."""
    for engines in (1, 2, 4, 8):
        names = tuple(f"e{number}" for number in range(engines))
        run, seconds = _warm(2 * engines, names)
        run.live(seconds)
        costs = [cost for kind in run.took.values() for cost in kind]
        row(f"step, {2 * engines} GPUs, {engines} engines, CPU µs", costs, 0)


def profiled() -> None:
    """Print what takes the time: ``python -m tests.perf.core profile``."""
    run, seconds = _warm()
    profile = cProfile.Profile()
    profile.enable()
    run.live(seconds)
    profile.disable()
    print(run.described)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    pstats.Stats(profile).sort_stats("cumulative").print_stats(25)


if __name__ == "__main__":
    profiled() if sys.argv[1:] == ["profile"] else steps()
