"""Somebody else who runs an engine: starts it again whenever it ends, until told otherwise."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.simulated import ROOT, alive, free_port, session_members, until
from watchdog import procfs
from watchdog.supervisor.members import GENERATION_VARIABLE


@dataclass
class Manager:
    """``restart: always``. ``pids`` are the leaders so far, ``mark`` the id of a generation."""

    port: int
    flags: tuple[str, ...] = ()
    again: bool = True
    mark: str = ""
    pids: list[int] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def command(self) -> list[str]:
        """What it runs."""
        words = [sys.executable, "-m", "watchdog.simulator", "--port", str(self.port)]
        return [*words, *self.flags]

    @property
    def leader(self) -> int:
        """The leader that it has started last."""
        return until(lambda: self.pids)[-1]

    def members(self) -> dict[int, str]:
        """Who lives in the session of the last leader, and their command lines."""
        return session_members(self.leader)

    def run(self) -> None:
        """Until it is over: start, wait, start again."""
        while not self._over.is_set():
            process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **({GENERATION_VARIABLE: self.mark} if self.mark else {})},
            )
            self.pids.append(process.pid)
            process.wait()
            if not self.again:
                return
            self._over.wait(0.3)

    def end(self) -> None:
        """Start no more, and end every session that it has begun."""
        self._over.set()
        for leader in self.pids:
            for pid in (*session_members(leader), leader):
                with contextlib.suppress(ProcessLookupError):
                    if alive(pid) and _is_of(pid, leader):
                        os.kill(pid, signal.SIGKILL)


def _is_of(pid: int, leader: int) -> bool:
    info = procfs.stat(pid)
    return info is not None and info.session == leader


@contextlib.contextmanager
def managed(*flags: str, again: bool = True, mark: str = "") -> Iterator[Manager]:
    """A manager of a simulated engine; afterwards nothing of it lives."""
    ready_at_once = ("--startup-time", "0")
    manager = Manager(free_port(), (*ready_at_once, *flags), again, mark)
    thread = threading.Thread(target=manager.run)
    thread.start()
    try:
        yield manager
    finally:
        manager.end()
        thread.join()
        manager.end()
