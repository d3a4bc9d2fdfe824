"""The children of this process: which are ours to wait for, and which are an engine's orphans.

This process adopts every orphan below it (subreaper, or PID 1). Nobody here ever waits for "any
child": that would steal the exit status from whoever started it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable

from watchdog import procfs
from watchdog.contracts import ProcessInfo

_PR_SET_CHILD_SUBREAPER = 36


def become_reaper() -> bool:
    """Make orphans below this process its children; False when neither that nor PID 1."""
    if os.getpid() == 1:
        return True
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return bool(prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


class Household:
    """All children of this process. One a process; safe from any thread."""

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._generations: set[str] = set()
        self._hooks: dict[str, int] = {}
        self._ended: set[str] = set()
        self._buried = 0
        self._lock = threading.RLock()
        self._session = os.getsid(0)

    def launch(self, make: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a child of our own: under the lock, so that nobody takes it for an orphan.

        A child that is started otherwise must stay in our session, and is then left alone too.
        """
        with self._lock:
            process = make()
            self._own.add(process.pid)
        return process

    def register(self, pid: int) -> None:
        """A child that was started elsewhere and is waited for there."""
        with self._lock:
            self._own.add(pid)

    def forget(self, pid: int) -> None:
        """A registered child was waited for."""
        with self._lock:
            self._own.discard(pid)

    def generation_began(self, generation: str) -> None:
        """Orphans may now come from this generation."""
        with self._lock:
            self._forget_hooks()
            self._generations.add(generation)

    def generation_over(self, generation: str) -> None:
        """Nothing of the generation lives."""
        with self._lock:
            self._generations.discard(generation)

    def hook_began(self, mark: str) -> None:
        """Who is started from now on may be left by this hook, and by its like."""
        with self._lock:
            self._hooks[mark] = int(time.clock_gettime(time.CLOCK_BOOTTIME) * procfs.TICKS)

    def hook_ended(self, mark: str) -> None:
        """It has ended; what it left may still come to us, until all that began since is gone.

        Who left need not show whose it is: nginx writes over its environment, ``sudo`` empties it.
        """
        with self._lock:
            self._ended.add(mark)
            self._forget_hooks()

    def _forget_hooks(self) -> None:
        if not self._ended:
            return
        began = [info.start_ticks for info in self.orphans() if procfs.lives(info)]
        latest = max(began, default=-1)
        for mark in tuple(self._ended):
            if latest < self._hooks.get(mark, 0):
                self._ended.discard(mark)
                self._hooks.pop(mark, None)

    def comes_from(self, source: str, start_ticks: int) -> bool:
        """Whether an orphan that began then can come from this generation or hook alone."""
        with self._lock:
            self._forget_hooks()
            hooks = {mark for mark, since in self._hooks.items() if since <= start_ticks}
            return self._generations | hooks == {source}

    def orphans(self) -> list[ProcessInfo]:
        """Our children that nobody here started, zombies included.

        A child in our own session is somebody's here, registered or not: an engine's descendant
        cannot enter our session, because a session is only left, never joined.
        """
        with self._lock:
            pids = [pid for pid in procfs.children(os.getpid()) if pid not in self._own]
            found = [info for pid in pids if (info := procfs.stat(pid)) is not None]
        return [info for info in found if info.session != self._session]

    def reap_orphans(self) -> int:
        """Reap the orphans that are zombies, one by one; how many."""
        with self._lock:
            reaped = sum(reap(info.pid) for info in self.orphans() if not procfs.lives(info))
            self._buried += reaped
        return reaped

    def buried(self) -> int:
        """How many orphans were ever reaped, those that are dead now included."""
        with self._lock:
            self.reap_orphans()
            return self._buried


def reap(pid: int) -> bool:
    """Reap one child if it is dead; False when it is not, or is no child of ours."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except OSError:
        return False
