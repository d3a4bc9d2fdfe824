"""Counts the starts of every engine as /proc shows them against the budget of restarts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.chaos.sightings import since_boot

_LATE = 20.0
"""Seconds from an operator's word to the start that it asked for, at most."""


@dataclass
class Accounts:
    """What was asked for by a person. All times are seconds since the boot."""

    count: int
    window: float
    _asked: dict[str, list[float]] = field(default_factory=dict)
    _resets: dict[str, list[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def asked(self, engine: str, *, reset: bool = False) -> None:
        """A start on no account comes now; with ``reset`` the account begins anew."""
        with self._lock:
            self._asked.setdefault(engine, []).append(since_boot())
            if reset:
                self._resets.setdefault(engine, []).append(since_boot())

    def forgotten(self, engines: tuple[str, ...]) -> None:
        """What was only in the memory of a watchdog is lost: it could not write, and was killed."""
        with self._lock:
            for engine in engines:
                self._resets.setdefault(engine, []).append(since_boot())

    def overdrawn(self, born: Mapping[tuple[str, str], float]) -> list[tuple[str, bool, str]]:
        """For each start of each engine: the engine, whether it kept the budget, the evidence."""
        found = []
        for engine in sorted({mark[0] for mark in born}):
            starts = sorted(at for mark, at in born.items() if mark[0] == engine)
            for last in starts:
                made, free = self._window(engine, starts, last)
                words = f"{engine}: {made} starts in {self.window:.0f} s, {free} of them asked for"
                times = [round(at, 2) for at in starts if last - self.window < at <= last]
                words += f", budget {self.count}, at {times} s since the boot"
                found.append((engine, made - free <= self.count, words))
        return found

    def _window(self, engine: str, starts: list[float], last: float) -> tuple[int, int]:
        """Starts in the window that ends with ``last``, and those on no account among them."""
        with self._lock:
            cuts = [at for at in self._resets.get(engine, ()) if at <= last]
            begin = max([last - self.window, *cuts])
            asked = [at for at in self._asked.get(engine, ()) if begin - _LATE <= at <= last]
        made = sum(begin < at <= last for at in starts)
        free = len(asked) + (starts[0] > begin)
        return made, min(free, made)
