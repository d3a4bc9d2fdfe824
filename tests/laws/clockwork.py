"""One engine and its probes at their real periods, in virtual time: days pass in seconds.

The probes look when their schedule says so; a completion that does not come keeps its probe busy
for its whole deadline, as in the daemon. The engine obeys the decisions and follows its fault.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from tests.support.core import NAME, Story, http, metrics, process, reading
from watchdog.core.model import (
    ActionFinished,
    Cause,
    Decision,
    EngineExited,
    EngineSpawned,
    Event,
    Outcome,
    ProcessState,
    ReadingTaken,
    Seconds,
    Tick,
)

CANARY_INTERVAL: Seconds = 3.0
CANARY_TIMEOUT: Seconds = 3.0
_STOP, _BOOT, _ANSWER = 0.05, 1.0, 0.02

PERIODS: Mapping[str, Seconds] = {"process": 1.0, "http": 2.0, "metrics": 2.0}
"""The default periods of the three engine probes, in seconds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the engine, from ``after`` seconds behind the first spawn on.

    ``answers`` is whether completions come, ``flows`` whether tokens of others move. ``dies_after``
    counts from the first token of every generation, ``dies_at_birth`` from its spawn.
    """

    after: Seconds = 0.0
    lasts: Seconds = 1e12
    answers: bool = True
    flows: bool = False
    stopped: int = 0
    compilers: int = 0
    computes: bool = False
    health: str = "ok"
    readable: bool = True
    dies_after: Seconds | None = None
    dies_at_birth: Seconds | None = None


WELL = Fault()


@dataclass
class Clockwork:
    """A wanted engine with ``fault``, watched from second 0 on."""

    fault: Fault = WELL
    phases: Mapping[str, Seconds] = field(default_factory=dict)
    periods: Mapping[str, Seconds] = field(default_factory=lambda: PERIODS)
    story: Story = field(default_factory=Story)
    now: Seconds = 0.0
    generation: str = ""
    born: Seconds = 0.0
    alive: bool = False
    tokens: float = 0.0
    cpu: float = 0.0
    spawns: int = 0
    _asked: Seconds | None = None
    _awake: Seconds | None = None
    _doomed: str = ""
    _due: list[tuple[Seconds, int, Callable[[], None]]] = field(default_factory=list)
    _serial: count[int] = field(default_factory=count)

    def run(self, until: Seconds) -> Story:
        """Let the clock run to ``until``; call it again to go on."""
        if not self._due:
            self._begin()
        while self._due[0][0] <= until:
            self.now, _, happens = heapq.heappop(self._due)
            happens()
        self.now = until
        return self.story

    def _begin(self) -> None:
        looks = {"process": self._process, "http": self._http, "metrics": self._metrics}
        for probe, look in looks.items():
            self._every(self.periods[probe], self.phases.get(probe, 0.0), look)
        self._at(0.0, lambda: self._take(Tick(0.0)))

    def _at(self, at: Seconds, happens: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._serial), happens))

    def _every(self, period: Seconds, at: Seconds, look: Callable[[], None]) -> None:
        def again() -> None:
            look()
            self._every(period, at + period, look)

        self._at(at, again)

    def _take(self, event: Event) -> None:
        done = self.story.take(event)
        for decision in done.decisions:
            if decision.hold is None:
                self._at(self.now + _STOP, lambda decision=decision: self._obey(decision))  # type: ignore[misc]
        self._wake(done.wake_at)
        self._doom()

    def _wake(self, at: Seconds | None) -> None:
        """As the daemon's loop: only the last announced moment counts."""
        self._awake = at
        if at is not None:
            self._at(at, lambda: self._take(Tick(at)) if self._awake == at else None)

    def _obey(self, decision: Decision) -> None:
        if self.alive:
            self._exit(Cause.SIGNAL)
        self.spawns += 1
        self.alive, self.born = True, self.now
        self.generation = generation = f"{self.spawns:08x}"
        self.tokens = self.cpu = 0.0
        self._take(EngineSpawned(self.now, NAME, generation, self.spawns, decision.cause))
        self._take(ActionFinished(self.now, Outcome(decision.action, decision.target, True, _STOP)))  # noqa: FBT003 - a value
        if self.fault.dies_at_birth is not None:
            self._at(self.now + self.fault.dies_at_birth, lambda: self._die(generation))

    def _doom(self) -> None:
        """From its first token on an engine that is going to die has its time."""
        engine, generation = self.story.engine, self.generation
        if self.fault.dies_after is None or self._doomed == generation or engine.ready_at is None:
            return
        self._doomed = generation
        self._at(engine.ready_at + self.fault.dies_after, lambda: self._die(generation))

    def _die(self, generation: str) -> None:
        if generation == self.generation and self.alive:
            self._exit(Cause.CRASH)

    def _exit(self, cause: Cause) -> None:
        self.alive = False
        self._take(EngineExited(self.now, NAME, self.generation, 1, None, cause, "gone"))

    def _present(self) -> Fault:
        since = self.now - self.fault.after
        return self.fault if 0 <= since < self.fault.lasts and self._booted() else WELL

    def _booted(self) -> bool:
        return self.now - self.born >= _BOOT

    def _process(self) -> None:
        fault = self._present()
        self.cpu += 2.0 if fault.computes else 0.01
        one = process(
            self.now,
            generation=self.generation,
            cpu_seconds=self.cpu,
            stopped_members=fault.stopped,
            compilers=fault.compilers,
        )
        if self.alive:
            self._take(ReadingTaken(self.now, one))

    def _metrics(self) -> None:
        fault = self._present()
        if not (self.alive and self._booted()):
            return
        self.tokens += 50.0 if fault.flows else 0.0
        load = 200.0 if fault.flows else 0.0
        one = metrics(self.now, self.tokens, running=load, generation=self.generation)
        if not fault.readable:
            one = reading("engine_metrics", self.now, generation=self.generation)
        self._take(ReadingTaken(self.now, one))

    def _http(self) -> None:
        fault, engine = self._present(), self.story.engine
        if not self.alive or self._asked is not None:
            return
        health = fault.health if self._booted() else "refused"
        proven = engine.vitals.progressed_at
        fresh = proven is not None and self.now - proven < CANARY_INTERVAL
        asked = health != "refused" and not fresh and engine.process in _LOOKED_AT
        if not asked:
            self._told(http(self.now, health, generation=self.generation))
            return
        self._asked = self.now
        took = _ANSWER if fault.answers else CANARY_TIMEOUT
        generation = self.generation
        self._at(self.now + took, lambda: self._answered(generation, health, took))

    def _answered(self, generation: str, health: str, took: Seconds) -> None:
        self._asked = None
        told = took < CANARY_TIMEOUT
        self.tokens += 1.0 if told else 0.0
        canary, status = ("ok", 200) if told else ("timeout", 0)
        self._told(http(self.now, health, canary, status, took=took, generation=generation))

    def _told(self, one: object) -> None:
        self._take(ReadingTaken(self.now, one))  # type: ignore[arg-type]


_LOOKED_AT = frozenset({ProcessState.STARTING, ProcessState.RUNNING})
