"""What engines wait for at their gates, for status and, when it takes long, for the journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from watchdog.core.model import Seconds

LONG: Seconds = 2.0
"""A wait that is over sooner is nobody's concern."""

Say = Callable[[str, str], None]
"""Takes the engine's name and one line about it."""


def silent(_name: str, _text: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class _Wait:
    text: str
    since: Seconds
    said: bool = False


@dataclass(slots=True)
class Waits:
    """Safe from any thread. ``say`` is called once a wait, when it has become long."""

    say: Say = silent
    clock: Callable[[], Seconds] = time.monotonic
    _waits: dict[str, _Wait] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on(self, name: str, text: str) -> None:
        """The engine waits, or still waits, for this. Called as long as it does."""
        now = self.clock()
        with self._lock:
            was = self._waits.get(name, _Wait(text, now))
            long = now - was.since > LONG
            self._waits[name] = _Wait(text, was.since, was.said or long)
        if long and not was.said:
            self.say(name, f"{name} waits for {text}")

    def over(self, name: str) -> None:
        """It waits for nothing any more."""
        with self._lock:
            self._waits.pop(name, None)

    def of(self, name: str) -> str | None:
        """What it waits for and how long it has; None when it does not wait."""
        wait = self._waits.get(name)
        return None if wait is None else f"{wait.text}, for {self.clock() - wait.since:.0f} s"
