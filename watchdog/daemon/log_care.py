"""Keeps the logs of engines small, in a thread of its own: copying 64 MiB takes its time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from watchdog.core.model import Seconds
from watchdog.supervisor import rotation

_PERIOD: Seconds = 5.0
"""An engine that logs every request of a busy day writes a few MB in that time."""


class LogCare:
    """``logs`` names the files that engines write to; ``warn`` is told once what is wrong."""

    def __init__(
        self,
        logs: Callable[[], Iterable[Path]],
        warn: Callable[[str], None],
        *,
        limit: int = rotation.LIMIT,
        period: Seconds = _PERIOD,
    ) -> None:
        self._logs, self._warn = logs, warn
        self._limit, self._period = limit, period
        self._told: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log-care", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. A copy that is under way is not waited for: the log still has it all."""
        self._ended.set()

    def _work(self) -> None:
        while not self._ended.wait(self._period):
            try:
                for log in set(self._logs()):
                    self._look_at(log)
            except Exception as error:  # noqa: BLE001 - without this thread the disk fills up
                self._tell(f"cannot look after logs: {type(error).__name__}: {error}")

    def _look_at(self, log: Path) -> None:
        try:
            rotation.rotate(log, self._limit)
        except OSError as error:
            self._tell(f"cannot rotate {log}: {error.strerror or error}")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._warn(text)
