"""Work that may hang in the kernel, on a dead mount for instance, and must hang nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from watchdog.core.model import Seconds

T = TypeVar("T")


class Bounded:
    """Does work in a thread of its own and waits ``patience`` seconds for it.

    While work hangs no other is begun: a hung file system costs one thread and one wait.
    """

    def __init__(self, patience: Seconds) -> None:
        self._patience = patience
        self._stuck: threading.Thread | None = None

    def __call__(self, work: Callable[[], T]) -> T | None:
        """What ``work`` returned; None when it failed, or has not come back in time."""
        stuck = self._stuck
        if stuck is not None and stuck.is_alive():
            return None
        found: list[T] = []

        def do() -> None:
            try:
                found.append(work())
            except Exception:  # noqa: BLE001 - what cannot be found out is None
                return

        thread = threading.Thread(target=do, name="bounded", daemon=True)
        thread.start()
        thread.join(self._patience)
        if thread.is_alive():
            self._stuck = thread
        return found[0] if found else None
