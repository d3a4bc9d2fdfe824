"""What a drill is given: the daemon, the engine, and somebody who tells what happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from watchdog.core.model import Seconds
from watchdog.drill.asking import Daemon, Engine
from watchdog.drill.results import Drill, Measured, MissedError

if TYPE_CHECKING:
    from watchdog.drill.own import Own

Say = Callable[[str], None]
POLL: Seconds = 0.05


@dataclass(slots=True)
class Scene:
    """``own`` is set where the daemon is the drill's own. ``say`` takes one line at a time."""

    drill: Drill
    daemon: Daemon
    name: str
    say: Say
    own: Own | None = None
    measured: Measured = field(default_factory=Measured)
    _injected: tuple[Seconds, Seconds] = (0.0, 0.0)
    _shown: str = ""

    def engine(self) -> Engine:
        """The engine now; its verdict is told when it changes."""
        engine = self.daemon.engine(self.name)
        if engine.verdict != self._shown:
            self._shown = engine.verdict
            self.say(engine.words)
        return engine

    def injected(self) -> None:
        """The fault is there: all times count from now."""
        self._injected = (time.monotonic(), time.time())
        self.say(f"injected: {self.drill.fault}")

    @property
    def age(self) -> Seconds:
        """Seconds since the fault."""
        return round(time.monotonic() - self._injected[0], 3)

    def detected(self, wall: Seconds) -> None:
        """Note the first decision, made at ``wall`` (since the epoch, as the daemon tells it)."""
        after = round(max(0.0, wall - self._injected[1]), 3)
        self.measured.times = replace(self.measured.times, detected=after)

    def released(self) -> None:
        """Note that no old process is left."""
        if self.measured.times.released is None:
            self.measured.times = replace(self.measured.times, released=self.age)
            self.say("every old process is gone")

    def serving(self) -> None:
        """Note that it serves again."""
        self.measured.times = replace(self.measured.times, serving=self.age)

    def until(self, look: Callable[[], bool], seconds: Seconds, otherwise: str) -> None:
        """Poll until true; raises MissedError when it is not in time."""
        deadline = time.monotonic() + seconds
        while not look():
            if time.monotonic() > deadline:
                raise MissedError(f"{otherwise} within {seconds:.0f} s")
            time.sleep(POLL)
