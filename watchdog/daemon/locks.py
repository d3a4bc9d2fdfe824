"""Everything that keeps a second watchdog away."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from watchdog.supervisor.lock import Lock, LockHeldError, lock_port


class Locks:
    """One lock a port of an engine, and what else is held until the end.

    Only the loop's thread changes what is held; ``taken`` may be called from any one other.
    """

    def __init__(self) -> None:
        self._ports: dict[int, Lock] = {}
        self._lasting: list[Lock] = []

    def hold(self, lock: Lock) -> None:
        """Hold it until the end."""
        self._lasting.append(lock)

    def taken(self, ports: Collection[int]) -> Mapping[int, Lock]:
        """New locks for those ports that are not held yet: all, or LockHeldError and none."""
        taken: dict[int, Lock] = {}
        try:
            for port in sorted(set(ports) - self._ports.keys()):
                taken[port] = lock_port(port)
        except LockHeldError:
            let_go(taken)
            raise
        return taken

    def available(self, ports: Collection[int]) -> Mapping[int, Lock]:
        """New locks for those of the ports that are not held yet and that nobody else holds."""
        taken: dict[int, Lock] = {}
        for port in sorted(set(ports) - self._ports.keys()):
            with contextlib.suppress(LockHeldError):
                taken[port] = lock_port(port)
        return taken

    def add(self, taken: Mapping[int, Lock]) -> None:
        """Hold these too."""
        self._ports |= taken

    def keep(self, ports: Collection[int]) -> None:
        """Let go of all other ports."""
        for port in self._ports.keys() - set(ports):
            self._ports.pop(port).release()

    def release(self) -> None:
        """Let go of everything."""
        self.keep(())
        for lock in self._lasting:
            lock.release()


def let_go(taken: Mapping[int, Lock]) -> None:
    """Release locks that were taken and not added."""
    for lock in taken.values():
        lock.release()
