"""The moments at which a watchdog is killed: every state of the life cycle of its engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.support.killing import Ward, wait

Reach = Callable[[Ward, Random], None]


@dataclass(frozen=True, slots=True)
class Moment:
    """``reach`` leads to it. ``asked`` is how many starts an operator asks for on the way.

    ``wanted`` False: an operator stopped the engine, and it has to stay so. ``crashes`` says that
    the watchdog's own engine dies, which is on its account.
    """

    reach: Reach
    asked: int = 0
    wanted: bool = True
    crashes: int = 0


def _between(chance: Random, low: float, high: float) -> None:
    time.sleep(chance.uniform(low, high))


def running(_: Ward, chance: Random) -> None:
    """It serves, and nothing happens."""
    _between(chance, 0.0, 0.3)


def starting(ward: Ward, chance: Random) -> None:
    """Spawned and not ready."""
    ward.kill_leader()
    ward.reach("starting")
    _between(chance, 0.0, 0.5)


def backoff(ward: Ward, chance: Random) -> None:
    """It died, and the next start waits for its time; the first one of a row never does."""
    if ward.account()[2] == 0:
        ward.kill_leader()
        wait(lambda: ward.account()[2] == 1 and ward.serves())
    ward.kill_leader()
    ward.reach("backoff")
    _between(chance, 0.0, 0.4)


def restarting(ward: Ward, chance: Random) -> None:
    """Around the restart that a death of the leader leads to, from the death to the spawn."""
    waits = ward.account()[2] > 0
    ward.kill_leader()
    if waits:
        time.sleep(0.55)
    _between(chance, 0.0, 0.15)


def draining(ward: Ward, chance: Random) -> None:
    """An operator's restart waits for a request."""
    ward.ask(400)
    ward.say("restart")
    ward.reach("stopping")
    _between(chance, 0.0, 1.5)


def stopping(ward: Ward, chance: Random) -> None:
    """An operator's stop waits for a request."""
    ward.ask(100)
    ward.say("stop")
    ward.reach("stopping")
    _between(chance, 0.0, 1.5)


def term_rung(ward: Ward, chance: Random) -> None:
    """SIGTERM was sent and is ignored."""
    ward.fault("ignore_term")
    ward.say("restart")
    ward.reach("stopping")
    _between(chance, 0.05, 0.6)


def kill_rung(ward: Ward, chance: Random) -> None:
    """SIGTERM did not help: around the SIGKILL to all."""
    ward.fault("ignore_term")
    ward.say("restart")
    ward.reach("stopping")
    _between(chance, 0.65, 1.6)


def gate_wait(ward: Ward, chance: Random) -> None:
    """The start of an engine waits until another one has left its port."""
    (name,) = ward.file.engines
    other = "other" if name == "main" else "main"
    ward.ask(400)
    ward.file.engines = {other: ward.file.engines[name]}
    ward.file.write()
    ward.daemon.send(signal.SIGHUP)
    wait(lambda: ward.daemon.engine().get("name") == other)
    ward.reach("starting")
    _between(chance, 0.0, 1.5)


def reloading(ward: Ward, chance: Random) -> None:
    """Another configuration is about to be in force."""
    (table,) = ward.file.engines.values()
    table["start_timeout"] = f"{chance.randrange(10, 60)}m"
    ward.file.write()
    ward.daemon.send(signal.SIGHUP)
    _between(chance, 0.0, 0.15)


def adopting(ward: Ward, chance: Random) -> None:
    """The successor is killed too, on its way to the adoption or just behind it."""
    ward.kill()
    ward.succeed()
    _between(chance, 0.2, 1.2)


def adopted(ward: Ward, _: Random) -> None:
    """As before, as soon as the adoption is in the log."""
    ward.kill()
    ward.succeed()
    wait(lambda: ward.daemon.events("engine.adopted"))


def unseen_death(ward: Ward, _: Random) -> None:
    """The engine's leader dies with the watchdog, and leaves its children alive."""
    pid = int(ward.daemon.engine()["pid"])
    ward.daemon.send(signal.SIGSTOP)  # it must not see it
    os.kill(pid, signal.SIGKILL)


MOMENTS: dict[str, Moment] = {
    "running": Moment(running),
    "starting": Moment(starting, crashes=1),
    "backoff": Moment(backoff, crashes=2),
    "restarting": Moment(restarting, crashes=1),
    "draining": Moment(draining, asked=1),
    "stopping": Moment(stopping, asked=1, wanted=False),
    "term rung": Moment(term_rung, asked=1, crashes=1),
    "kill rung": Moment(kill_rung, asked=1, crashes=1),
    "gate wait": Moment(gate_wait, asked=1),
    "reloading": Moment(reloading),
    "adopting": Moment(adopting),
    "adopted": Moment(adopted),
    "unseen death": Moment(unseen_death, crashes=1),
}
"""By what a report calls them; all but the one of an engine that was given up."""


@dataclass(slots=True)
class Round:
    """What one kill led to. ``took`` are seconds to the adoption, None when nobody was adopted."""

    moment: str
    had_leader: bool
    took: float | None
    same: bool


def kill_at(ward: Ward, name: str, chance: Random) -> Round:
    """Kill the watchdog at the moment ``name``, and see the next one put everything right.

    Fails when the engine is lost: not known, not ended, or not running although it should.
    """
    moment = MOMENTS[name]
    moment.reach(ward, chance)
    living = ward.kill()
    led = {info.pid for members in living.values() for info in members.values() if _leads(info)}
    ward.succeed()
    wait(ward.serves if moment.wanted else ward.rests)
    now = ward.daemon.engine()
    took = ward.adoption_took()
    if not moment.wanted:
        assert now["wanted"] is False
        assert ward.daemon.command("start").returncode == 0
        wait(ward.serves)
    assert ward.auditor.double == [], ward.auditor.double
    return Round(name, bool(led), took, now["pid"] in led)


def _leads(info: object) -> bool:
    return getattr(info, "session", 0) == getattr(info, "pid", 1)
