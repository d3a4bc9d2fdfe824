"""A probe of an engine that may move: to another port, another key, another name of its model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from watchdog.contracts import Endpoint, EngineTarget, Probe
from watchdog.core.model import Sampled, Seconds, Unread


class Following:
    """Implements ``contracts.Probe``: built anew, in its own thread, where the engine is now."""

    def __init__(
        self, build: Callable[[Any, Any], Probe], settings: object, target: EngineTarget
    ) -> None:
        self._build, self._settings, self._target = build, settings, target
        self._lock = threading.Lock()
        self._closed = False
        self._at: Endpoint = target.endpoint
        self._probe = build(settings, target)

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """As the probe itself."""
        if self._target.endpoint != self._at:
            self._move(self._target.endpoint)
        return self._probe.read(deadline)

    def close(self) -> None:
        """As the probe itself."""
        with self._lock:
            self._closed = True
            probe = self._probe
        probe.close()

    def _move(self, to: Endpoint) -> None:
        probe = self._build(self._settings, self._target)
        with self._lock:
            before, closed = self._probe, self._closed
            self._probe, self._at = probe, to
        before.close()
        if closed:
            probe.close()
