"""What a week costs to keep and to replay: ``python -m tests.perf.replay CARDS ENGINES DAYS``.

A week as the recorder thins it: a look in ten seconds, and around each of some two hundred faults
everything. The faults are crashes, stalls and hot cards, by turns.
"""

from __future__ import annotations

import cProfile
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.perf import core
from tests.support.box import driver
from tests.support.core import http, metrics, process
from tests.support.rules import DEFAULT_RULES
from watchdog.core import rule_set
from watchdog.core.engine import step
from watchdog.core.model import (
    ActionFinished,
    Cause,
    EngineExited,
    EngineSpawned,
    Event,
    Outcome,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    Tick,
    engine_subject,
)
from watchdog.core.state import EngineSettings, EngineState, PolicySettings, State
from watchdog.recorder import Recorder, read
from watchdog.replay import replay

EVERY = 3000
"""Seconds between two faults."""
AROUND = 60
LASTS = 180
PACE = 10
_BOOT = 30.0


class Week:
    """The events, and a core that decides about them as they come."""

    def __init__(self, cards: int, engines: int) -> None:
        self.names = tuple("abcdefgh"[:engines])
        self.cards = cards
        self.box = core.Box(cards, self.names)
        self.rules = rule_set.of(DEFAULT_RULES)
        self.state = State(engines={n: EngineState(EngineSettings(n)) for n in self.names})
        self.now: Seconds = 0.0
        self.folder = Path(tempfile.mkdtemp())
        self.recorder = Recorder(
            self.folder, print, clock=lambda: self.now, wall=lambda: 1.7e9 + self.now
        )
        self.recorder.begin(self.state, 0.0)
        self.generation = {n: n for n in self.names}
        self.born = dict.fromkeys(self.names, -1000.0)
        self.acts = 0
        self.events = 0

    def run(self, seconds: int) -> None:
        """Let that many seconds go by."""
        self.take(Tick(0.0))  # the engines are wanted: they are started
        second = 1
        while second < seconds:
            into = second % EVERY
            dense = into >= EVERY - AROUND or into < LASTS
            number = second // EVERY
            if into == 0 and number % 3 == 0:
                self.crash(second, self.names[number % len(self.names)])
            for event in self.second(second, dense=dense):
                self.take(event)
            second += 1 if dense else PACE
            if second % 600 < PACE:
                self.recorder.flush(60)
        self.recorder.flush(60)
        self.recorder.close(60)

    def crash(self, second: int, name: str) -> None:
        """An engine is gone."""
        at = float(second)
        gone = EngineExited(at, name, self.generation[name], 1, None, Cause.CRASH, "it crashed")
        self.take(gone)

    def take(self, event: Event) -> None:
        """One event, and what follows from it."""
        self.now = event.at
        done = step(self.state, event, self.rules, PolicySettings())
        self.state = done.state
        self.recorder.observe(event, done)
        self.events += 1
        for decision in done.decisions:
            if decision.hold is None:
                self.acts += 1
                self.obey(decision.target.name, decision.action, event.at, decision.cause)

    def obey(self, name: str, action: str, at: Seconds, cause: Cause) -> None:
        """What was decided is done at once."""
        old = self.generation[name]
        if self.state.engines[name].leader is not None:
            self.take(EngineExited(at + 0.01, name, old, None, 15, Cause.SIGNAL, "stopped"))
        self.generation[name] = f"{int(at):08x}"
        self.born[name] = at
        self.take(EngineSpawned(at + 0.02, name, self.generation[name], int(at), cause))
        outcome = Outcome(action, engine_subject(name), ok=True, took=0.02)
        self.take(ActionFinished(at + 0.03, outcome))

    def second(self, second: int, *, dense: bool) -> Iterator[Event]:
        """What one look brings."""
        for reading in self.readings(second, dense=dense):
            yield ReadingTaken(reading.at, reading)

    def readings(self, second: int, *, dense: bool) -> Iterator[Reading]:
        """All probes, with what is wrong in this second."""
        number, into = second // EVERY, second % EVERY
        hot = number % 3 == 1 and into < LASTS / 2
        stalled = self.names[number % len(self.names)] if number % 3 == 2 and into < 120 else ""
        at = float(second)
        moved = self.box.moved(second)
        if hot:
            card = moved[0].subject
            moved = tuple(
                Sampled(s.subject, s.sample, 96.0, s.labels)
                if s.subject == card and s.sample == "temperature_celsius"
                else s
                for s in moved
            )
        yield Reading("gpu", at + 0.1001, 0.0101, moved)
        yield Reading("xid", at + 0.2002, 0.001, tuple(self.box.errors()))
        if not dense or second % 2 == 0:
            yield Reading("gpu_processes", at + 0.3003, 0.01, tuple(self.box.holders()))
        if not dense or second % 10 == 0:
            yield driver(at + 0.4, {"gpus_expected": self.cards, "gpus_found": self.cards})
        for name in self.names:
            yield from self.engine(name, second, stalled=stalled == name, dense=dense)

    def engine(self, name: str, second: int, *, stalled: bool, dense: bool) -> Iterator[Reading]:
        """The probes of one engine."""
        at, mine = float(second), self.generation[name]
        if at - self.born[name] < 1.0:
            return
        since = second - second % EVERY
        busy = float(since if stalled else second)
        one = process(at + 0.5, generation=mine, name=name, cpu_seconds=busy, log_bytes=second)
        yield one
        if at - self.born[name] < _BOOT:
            yield http(at + 0.6, "refused", generation=mine, name=name)
            return
        if dense and second % 2 == 0:
            return
        canary = "timeout" if stalled else "ok"
        status = 0 if stalled else 200
        if not dense:
            yield http(at + 0.6, generation=mine, name=name)
        if not dense or second % 3 == 0:
            yield http(at + 0.65, "ok", canary, status, generation=mine, name=name)
        yield metrics(at + 0.7, busy, running=2.0, generation=mine, name=name)


def week(cards: int, engines: int, days: float, how: str = "") -> None:
    """Record it, replay it, and print what that took; ``how`` is "profile" or "exact"."""
    lived = Week(cards, engines)
    began = time.monotonic()
    lived.run(int(days * 86400))
    kept = sum(path.stat().st_size for path in (lived.folder / "recording").iterdir())
    print(
        f"{cards} GPUs, {engines} engines, {days:g} days: {lived.events} events in "
        f"{time.monotonic() - began:.1f} s, {lived.acts} acts, {kept / 1e6:.2f} MB, "
        f"lost {lived.recorder.lost}"
    )
    profile = cProfile.Profile()
    if how == "profile":
        profile.enable()
    _replayed(lived, every_step=how == "exact")
    profile.disable()
    if how == "profile":
        pstats.Stats(profile).sort_stats("tottime").print_stats(28)


def _replayed(lived: Week, *, every_step: bool) -> None:
    began, cpu = time.monotonic(), time.process_time()
    entries = read(lived.folder, print)
    report = replay(entries, lived.rules, PolicySettings(), every_step=every_step)
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    print(
        f"replay: {report.events} events in {took:.1f} s ({cpu:.1f} s CPU), "
        f"{1e6 * cpu / report.events:.0f} µs an event; {report.acts_now} acts now, "
        f"{report.acts_then} then, {report.differences} differences, "
        f"{len(report.findings)} findings, bugs {report.bugs}, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB at most"
    )


if __name__ == "__main__":
    week(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
