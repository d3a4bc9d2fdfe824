"""Whose turn it is to start: weights load one after the other, first come, first served.

Engines that load together share the disk and the host's memory, and each takes as long as both: the
first one serves later than it would alone, and a start that is slow enough counts as stalled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from watchdog.core.model import ProcessState, Seconds
from watchdog.core.state import EngineState, State


@dataclass(frozen=True, slots=True)
class _Grant:
    """``generation`` is that of the last start before: with a new one the turn has been used."""

    at: Seconds
    generation: str


@dataclass(slots=True)
class Turns:
    """Counts who starts, as the core has published it, and keeps the order of who waits.

    ``limit`` is how many may start at once. Safe from any thread. A turn is held from ``ask`` until
    the core shows the engine as starting, or its action as over. An engine whose start makes no
    progress counts until it is overdue: then the core ends it, or nobody may.
    """

    published: Callable[[], State]
    limit: Callable[[], int] = lambda: 1
    clock: Callable[[], Seconds] = time.monotonic
    _queue: list[str] = field(default_factory=list)
    _granted: dict[str, _Grant] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, name: str) -> str | None:
        """None when it is the turn of ``name``; else who is before it. Asked again, it is queued.

        Who is told None, or asks no more, has to call ``left`` unless it starts.
        """
        with self._lock:
            self._granted.pop(name, None)  # that of an earlier start, if any: others may go first
            if name not in self._queue:
                self._queue.append(name)
            place = self._queue.index(name)
            before = [*self._starting(name), *self._queue[:place]]
            if len(before) < max(1, self.limit()):
                self._queue.remove(name)
                engine = self.published().engines.get(name)
                generation = "" if engine is None else engine.generation
                self._granted[name] = _Grant(self.clock(), generation)
                return None
        return " and ".join(dict.fromkeys(before))

    def left(self, name: str) -> None:
        """It does not wait any more, or its start has failed: the next one may."""
        with self._lock:
            self._granted.pop(name, None)
            if name in self._queue:
                self._queue.remove(name)

    def _starting(self, name: str) -> list[str]:
        engines, now = self.published().engines, self.clock()
        self._granted = {
            one: grant
            for one, grant in self._granted.items()
            if _is_at_it(engines.get(one), grant, now)
        }
        shown = [one for one, engine in engines.items() if _is_starting(engine, now)]
        return [one for one in dict.fromkeys([*shown, *self._granted]) if one != name]


def _is_at_it(engine: EngineState | None, grant: _Grant, now: Seconds) -> bool:
    """Whether the action that got its turn is still under way, and has not spawned yet."""
    if engine is None or not engine.in_flight or engine.generation != grant.generation:
        return False
    return now - grant.at < engine.settings.start_timeout


def _is_starting(engine: EngineState, now: Seconds) -> bool:
    """Whether it loads, and is not overdue. Also what an earlier watchdog has started.

    Without a leader it is still at its gate, and may be waiting for its own turn.
    """
    began = engine.started_at
    if engine.process is not ProcessState.STARTING or engine.leader is None or began is None:
        return False
    sign, most = engine.vitals.start_sign_at, engine.settings.start_deadline
    if most is not None and now - began >= most:
        return False
    return now - max(began, began if sign is None else sign) < engine.settings.start_timeout
