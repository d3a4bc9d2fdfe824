"""Which faults come, in which order and for how long: decided by the seed alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    """Everything that is done to the engines, the box and the watchdog."""

    KILL_LEADER = "leader SIGKILLed"
    KILL_CORE = "EngineCore SIGKILLed"
    KILL_WORKER = "worker SIGKILLed"
    STOP_CORE = "EngineCore SIGSTOPped"
    STOP_WORKER = "worker SIGSTOPped"
    STUCK_DEATH = "EngineCore SIGKILLed, leader never leaves"
    ORPHANS = "leader SIGKILLed beside a detached descendant"
    CRASH = "exit 1"
    EXIT_ZERO = "exit 0 that nobody asked for"
    OUT_OF_MEMORY = "CUDA out of memory"
    OOM_KILL = "all SIGKILLed at once, as by the OOM killer"
    NO_ANSWER = "HTTP frozen"
    SLOW_ANSWERS = "HTTP answers a byte a second"
    ENDLESS = "HTTP answers without an end"
    BAD_METRICS = "metrics are noise"
    UNHEALTHY = "/health 503"
    SLOW_START = "slow start that moves"
    CRASH_LOOP = "crash loop"
    SATURATED = "saturated"
    COMPILING = "compiling"
    STRANGER_ON_PORT = "a stranger takes the port"
    STOP_AND_START = "operator: stop, start"
    RESTART = "operator: restart"
    KILL_WATCHDOG = "watchdog SIGKILLed"
    KILL_WATCHDOG_TWICE = "watchdog SIGKILLed, and its successor in its start"
    DISK_FULL = "state directory full"
    CLOCK_JUMP = "clock jumps"
    GOOD_RELOAD = "reload of a good file"
    BAD_RELOAD = "reload of a bad file"
    PAUSE = "operator: pause, resume"
    STANDBY = "operator: standby started, stopped"
    GARBAGE_HTTP = "hostile HTTP: garbage"
    SLOW_LORIS = "hostile HTTP: slow loris"
    HUGE_HEADERS = "hostile HTTP: huge headers"
    CROWD = "hostile HTTP: many connections"
    NVML_HANGS = "NVML hangs"
    NVML_FAILS = "NVML lost a card"
    NVML_GARBAGE = "NVML names garbage processes"
    STRANGER_ON_CARD = "a stranger holds GPU memory"
    XID_APPLICATION = "Xid of the application class"
    XID_RESET = "Xid of the reset class"
    XID_FORGED = "forged and broken kernel lines"


WORLD = "world"
_ENGINE_LAST = list(Fault).index(Fault.RESTART) + 1
ON_ENGINE: Sequence[Fault] = tuple(Fault)[:_ENGINE_LAST]
ON_WORLD: Sequence[Fault] = (
    *tuple(Fault)[_ENGINE_LAST:],
    *(Fault.KILL_WATCHDOG,) * 3,
    Fault.DISK_FULL,
    Fault.CLOCK_JUMP,
)
"""What comes more often stands there more often."""


@dataclass(frozen=True, slots=True)
class Step:
    """One fault. ``rest`` is before it, ``hold`` how long it lasts, both in seconds.

    ``dice`` is below a million: whatever else a fault leaves to chance it takes from there.
    """

    track: str
    number: int
    fault: Fault
    rest: float
    hold: float
    dice: int

    @property
    def name(self) -> str:
        """How the report calls it."""
        return f"{self.track} {self.number}: {self.fault}"


def steps(seed: int, track: str) -> Iterator[Step]:
    """The endless sequence of a track: an engine's name, or ``WORLD``.

    All faults in an order of chance, then all of them in another one, so that none is left out.
    """
    chance = Random(f"{seed} {track}")  # noqa: S311 - to be repeated, not to be secret
    number = 0
    while True:
        bag = list(ON_WORLD if track == WORLD else ON_ENGINE)
        chance.shuffle(bag)
        for fault in bag:
            number += 1
            rest, hold = chance.uniform(0.2, 3.0), chance.uniform(2.0, 9.0)
            yield Step(
                track, number, fault, round(rest, 3), round(hold, 3), chance.randrange(10**6)
            )
