"""A week in the life of a box with two engines: whatever can happen happens, in virtual time.

The world is event-driven: it looks every ten seconds while nothing happens, every two while
something does. The auditor checks every law on every step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from tests.laws.auditor import Auditor
from tests.laws.world import RULES, SETTINGS, Body, Fate, Look, readings_of
from tests.support.box import card, cards, driver, lost, xids
from watchdog.core.engine import step
from watchdog.core.facts import took
from watchdog.core.model import (
    ActionFinished,
    Cause,
    Commanded,
    Decision,
    EngineExited,
    EngineSpawned,
    Event,
    Outcome,
    ProcessState,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    Subject,
    SubjectKind,
    Tick,
    Verb,
    Verdict,
)
from watchdog.core.state import EngineSettings, State
from watchdog.daemon.memory import Memory
from watchdog.store import Store

WEEK: Seconds = 7 * 86400.0
OWNERS = {"a": 0, "b": 1}
"""Each engine has a card of its own."""
ENGINES = tuple(EngineSettings(name, gpus=(str(index),)) for name, index in OWNERS.items())
_COARSE, _FINE, _WATCHFUL = 10.0, 2.0, 40.0
_STARTED = {Fate.DONE, Fate.CRASHES}


def concerns(engine: str, subject: Subject) -> bool:
    """Whose a finding is, as this world was built."""
    mine = {Subject(SubjectKind.ENGINE, engine), card(OWNERS[engine])}
    return subject.kind is SubjectKind.HOST or subject in mine


@dataclass
class Patient(Body):
    """An engine with what ails it: ``look`` until a restart cures it, or time does."""

    look: Look = Look.IDLE
    stubborn: bool = False
    fate: Fate = Fate.DONE
    boots: Seconds = 1.0
    serves_at: Seconds = 0.0
    ready_at: Seconds | None = None
    born: Seconds = 0.0

    def appears(self, now: Seconds) -> Look:
        """How it looks now: it loads for a while after each start."""
        return Look.LOADING if now < self.serves_at else self.look


@dataclass
class Box:
    """What is wrong with the cards and the driver."""

    ills: dict[int, str] = field(default_factory=dict)
    mismatch: bool = False
    hung: bool = False
    errors: dict[int, dict[str, int]] = field(
        default_factory=lambda: {0: {"reset": 0, "application": 0}, 1: {}}
    )


class Week:
    """One seed. ``live`` lets a week pass; trouble comes from ``tests.laws.troubles``."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 - a world, not a secret
        self.now: Seconds = 1000.0
        self.steps = 0
        self.starts = 0
        self.auditor = Auditor(RULES, SETTINGS, concerns)
        self.bodies = {name: Patient(name) for name in OWNERS}
        self.box = Box()
        self.watching = True
        self._store = Store.in_memory()
        self._serial = count()
        self._due: list[tuple[Seconds, int, Callable[[], None]]] = []
        self._fine_until: Seconds = 0.0
        self._wake_at: Seconds | None = None
        self._look = 0
        self.state = State()
        self.begin()
        self.at(0.0, self._looks)

    def live(self, trouble: Callable[[Week], None], seconds: Seconds = WEEK) -> Week:
        """Let ``seconds`` pass; ``trouble`` makes one more trouble whenever it is asked."""
        self._troubles(trouble)
        until = self.now + seconds
        while self._due[0][0] <= until:
            at, _, happens = heapq.heappop(self._due)
            self.now = max(self.now, at)
            happens()
        return self

    def _troubles(self, trouble: Callable[[Week], None]) -> None:
        def again() -> None:
            trouble(self)
            self._troubles(trouble)

        self.at(self.random.expovariate(1 / 9000.0) + 1.0, again)

    def at(self, later: Seconds, happens: Callable[[], None]) -> None:
        """Let this happen ``later`` seconds from now."""
        heapq.heappush(self._due, (self.now + later, next(self._serial), happens))

    # --- the watchdog -----------------------------------------------------------------------------

    def begin(self) -> None:
        """The watchdog begins, or begins anew: what it must not forget comes from the store."""
        self.memory = Memory(self._store)
        self.state = self.memory.recall(ENGINES, frozenset())
        self.auditor.restarted()
        self.watching = True
        for body in self.bodies.values():
            body.order = None
        for body in self.bodies.values():
            if body.alive:
                self._adopts(body)
        self.take(Tick(self.now))

    def crash(self, later: Seconds) -> None:
        """The watchdog is gone, and back in ``later`` seconds. Engines live on."""
        self.watching = False
        self.at(later, self.begin)

    def _adopts(self, body: Patient) -> None:
        """As the daemon does: before the first decision is made."""
        ready = body.ready_at is not None
        event = EngineSpawned(
            self.now,
            body.name,
            body.generation,
            body.serial,
            Cause.UNKNOWN,
            adopted=True,
            ready=ready,
            spawned_at=body.born,
            ready_at=body.ready_at,
        )
        self.state, _ = took(self.state, event, SETTINGS)
        self.auditor.account(body.name).ready = ready

    def take(self, event: Event) -> None:
        """One step, audited and kept."""
        if not self.watching:
            return
        self.steps += 1
        before = self.state
        done = step(before, event, RULES, SETTINGS)
        flows = frozenset(b.name for b in self.bodies.values() if b.flows(event.at))
        self.auditor.saw(event, before, done, flows)
        self.state = done.state
        self.memory.keep(done)
        for decision in done.decisions:
            if decision.hold is None:
                self._obeys(decision)
        for name, engine in done.state.engines.items():
            if engine.ready_at is not None:
                self.bodies[name].ready_at = engine.ready_at
        if done.wake_at is not None and done.wake_at != self._wake_at:
            self._wake_at = wake = done.wake_at
            self.at(wake - self.now, lambda: self._wakes(wake))
        if done.records:
            self.stir()

    def _wakes(self, wake: Seconds) -> None:
        if self._wake_at == wake:
            self._wake_at = None
            self.take(Tick(self.now))

    def stir(self) -> None:
        """Something happened: look closely for a while."""
        self._fine_until = self.now + _WATCHFUL

    def asks(self, verb: Verb, engine: str = "", until: Seconds | None = None) -> None:
        """An operator's command."""
        self.take(Commanded(self.now, verb, engine, "why", "me", until))

    # --- actions ----------------------------------------------------------------------------------

    def _obeys(self, decision: Decision) -> None:
        body = self.bodies[decision.target.name]
        body.order = decision
        takes = self.random.choice((0.0, 0.5, 3.0, 20.0))
        if body.fate is Fate.RUNS:
            takes += 2000.0
        self.at(takes, lambda: self._carries_out(body, decision))

    def _carries_out(self, body: Patient, order: Decision) -> None:
        if body.order is not order:
            return
        stops = order.action != "start_engine"
        if stops and body.fate is Fate.UNKILLABLE and body.alive:
            self._ends(body, order, ok=False, unkillable=True)
            return
        if stops:
            self.exits(body, Cause.SIGNAL)
        if order.action == "stop_engine":
            self._ends(body, order, ok=True)
        elif body.fate in {Fate.REFUSED, Fate.INCURABLE}:
            causes = (
                Cause.PRE_START_FAILED,
                Cause.PORT_IN_USE,
                Cause.GPU_MEMORY_SHORT,
                Cause.DRIVER_MISMATCH,
            )
            cause = self.random.choice(causes)
            cause = Cause.MODEL_MISSING if body.fate is Fate.INCURABLE else cause
            self._ends(body, order, ok=False, cause=cause)
        else:
            self._spawns(body, order)

    def _ends(
        self,
        body: Patient,
        order: Decision,
        *,
        ok: bool,
        cause: Cause = Cause.UNKNOWN,
        unkillable: bool = False,
    ) -> None:
        body.order = None
        told = "" if ok else f"cannot {order.action}"
        outcome = Outcome(order.action, order.target, ok, 0.1, told, cause, unkillable)
        self.take(ActionFinished(self.now, outcome))

    def _spawns(self, body: Patient, order: Decision) -> None:
        self.starts += 1
        body.serial = self.starts
        body.generation, body.alive = f"{body.serial:08x}", True
        body.tokens = body.cpu = 0.0
        body.log = body.moved = 0
        body.ready_at, body.born = None, self.now
        body.serves_at = self.now + body.boots
        if not body.stubborn:
            body.look = Look.IDLE
        generation = body.generation
        self.take(EngineSpawned(self.now, body.name, generation, body.serial, order.cause))
        if body.fate is Fate.CRASHES:
            dies = self.random.choice((0.0, 0.5, 5.0))
            self.at(dies, lambda: self._dies(body, generation))
        self._ends(body, order, ok=True)

    def _dies(self, body: Patient, generation: str) -> None:
        if body.generation == generation:
            self.exits(body, Cause.CRASH)

    def exits(self, body: Patient, cause: Cause) -> None:
        """Its leader is gone."""
        if body.alive:
            body.alive = False
            self.take(EngineExited(self.now, body.name, body.generation, 1, None, cause, "gone"))

    # --- looks ------------------------------------------------------------------------------------

    def _looks(self) -> None:
        fine = self.now < self._fine_until
        self._look += 1
        if not self.watching:
            self.at(_FINE, self._looks)
            return
        for number, body in enumerate(self.bodies.values()):
            verdict = self.state.engines[body.name].verdict
            settled = verdict in {Verdict.READY, Verdict.GIVEN_UP, Verdict.STOPPED}
            if fine or not settled:
                self._shows(body, whole=True)
            elif self._look % 4 == number * 2:
                self._shows(body, whole=self._look % 16 == number * 2)
        self._shows_box(everything=fine)
        if self.state.at != self.now:
            self.take(Tick(self.now))
        self.at(_FINE if fine else _COARSE, self._looks)

    def _shows(self, body: Patient, *, whole: bool) -> None:
        if not body.alive:
            return
        look = body.appears(self.now)
        body.moved = body.moved if look in {Look.TRAFFIC, Look.SATURATED} else 0
        for one in readings_of(body, look, self.now, whole=whole):
            self.take(ReadingTaken(one.at, one))
        body.shows(look, self.now)

    def _shows_box(self, *, everything: bool) -> None:
        looks = (self._cards, self._driver, self._errors)
        for number, look in enumerate(looks):
            if (everything and self._look % 2 == 0) or self._look % 24 == number * 8:
                self.take(ReadingTaken(self.now, look()))

    def _cards(self) -> Reading:
        if self.box.hung:
            return Reading("gpu", self.now, 0.0, error="cannot read any GPU")
        found: list[Sampled] = []
        for index in OWNERS.values():
            ill = self.box.ills.get(index)
            one = lost(self.now, index, ill) if ill else cards(self.now, {index: {}})
            found += one.samples
        return Reading("gpu", self.now, 0.0, tuple(found))

    def _driver(self) -> Reading:
        if self.box.hung:
            return driver(self.now, {"nvml": "unresponsive", "unresponsive_seconds": 90.0})
        return driver(self.now, {"versions_match": not self.box.mismatch})

    def _errors(self) -> Reading:
        both = [xids(self.now, self.box.errors[index], index=index) for index in OWNERS.values()]
        return Reading("xid", self.now, 0.0, tuple(s for one in both for s in one.samples))


def needs_a_person(week: Week) -> list[str]:
    """Engines that only a person brings back."""
    lost_causes = {ProcessState.GIVEN_UP, ProcessState.UNKILLABLE}
    return [
        name
        for name, engine in week.state.engines.items()
        if engine.process in lost_causes or engine.history.breaker_open
    ]
