"""Holds the events of an engine back until the core knows that engine."""

from __future__ import annotations

import threading
from collections.abc import Callable

from watchdog.core.model import Event


class Mailbox:
    """Called with events, from any thread; passes them on once it was opened."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        self._post = post
        self._lock = threading.Lock()
        self._held: list[Event] | None = []
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Keep ``event``, pass it on, or drop it."""
        with self._lock:
            if self._closed:
                return
            if self._held is not None:
                self._held.append(event)
                return
        self._post(event)

    def open(self) -> tuple[Event, ...]:
        """What came in so far; what comes from now on is passed on."""
        with self._lock:
            held, self._held = self._held or [], None
        return tuple(held)

    def close(self) -> None:
        """Drop what comes from now on: nobody knows the engine any more."""
        with self._lock:
            self._held, self._closed = None, True
