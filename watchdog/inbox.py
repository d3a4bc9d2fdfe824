"""The one queue: everything that happens enters here, from any thread and from signal handlers.

``SimpleQueue`` because its ``put`` is re-entrant: a signal handler may interrupt one that runs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from watchdog.core.model import Commanded, Event, Seconds


@dataclass(frozen=True, slots=True)
class Signalled:
    """The process received a signal; what it means is decided by the loop."""

    number: int


@dataclass(slots=True)
class Request:
    """An operator's command whose sender waits for ``done``. ``error`` is None when it worked."""

    command: Commanded
    done: threading.Event = field(default_factory=threading.Event)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """Work that only the loop's own thread may do, between two steps. ``do`` returns at once."""

    do: Callable[[], None]


Item = Event | Signalled | Request | Task


class Inbox:
    """First in, first out; unbounded, because its producers are bounded."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()

    def post(self, item: Item) -> None:
        """Put ``item`` in. Never blocks; safe in a signal handler."""
        self._queue.put(item)

    def next(self, timeout: Seconds) -> Item | None:
        """The oldest item, or None when nothing came within ``timeout`` seconds."""
        try:
            return self._queue.get(timeout=max(timeout, 0.0))
        except queue.Empty:
            return None

    def depth(self) -> int:
        """How many items wait."""
        return self._queue.qsize()
