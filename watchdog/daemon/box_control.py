"""What actions get to do beside the engines: sweep leftovers, run the operator's programs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watchdog import procfs
from watchdog.contracts import ActionError, EngineTarget
from watchdog.core.model import Seconds
from watchdog.places import assigned
from watchdog.supervisor import hooks, leftovers
from watchdog.supervisor.household import Household
from watchdog.supervisor.leftovers import Sweeper
from watchdog.supervisor.members import GENERATION_VARIABLE
from watchdog.supervisor.said import Said
from watchdog.supervisor.spawn import ENGINE_VARIABLE, Launch

_NOT_PASSED_ON = frozenset({"VLLM_API_KEY", ENGINE_VARIABLE, GENERATION_VARIABLE})
"""The engine's key is nobody else's business, and nothing that we run here is an engine's."""
_TICK: Seconds = 1.0
"""A file's time may be a tick behind the start of who made it; whole seconds cost nothing."""


@dataclass(slots=True)
class Hands:
    """Implements ``contracts.BoxControl``. Safe from any thread.

    ``engines`` are all of them, running or not. ``close`` ends what runs.
    """

    sweeper: Sweeper
    household: Household
    engines: Callable[[], Iterable[EngineTarget]]
    _at_work: int = 0
    _closed: bool = False
    _rest: threading.Condition = field(default_factory=threading.Condition)

    def sweep(self, deadline: Seconds) -> str:
        """Remove what dead engines left and nobody holds; raises ``ActionError`` when unknown."""
        engines = tuple(self.engines())
        left = deadline - time.monotonic()
        limits = replace(leftovers.LONG, time=max(0.0, min(leftovers.LONG.time, left)))
        swept = self.sweeper.sweep(
            folders(engines), before=first_start(engines), quick=False, limits=limits
        )
        done = swept.lines()[:1] if swept.removed else ()
        if swept.why:
            raise ActionError("; ".join((f"cannot sweep: {swept.why}", *done)))
        kept = len(swept.kept)
        whys = ", ".join(dict.fromkeys(why for _, why in swept.kept))
        let = (f"{kept} kept: {whys}",) if kept else ()
        return "; ".join((*done, *let)) or "nothing to sweep"

    def run(self, command: Sequence[str], environment: Mapping[str, str], timeout: Seconds) -> str:
        """Run a program; its last line. Raises ``ActionError``, with that line and no argument."""
        with self._rest:
            if self._closed:
                raise ActionError("cannot run anything: the watchdog is stopping")
            self._at_work += 1
        try:
            wrong, line = self._ran(tuple(command), environment, timeout)
        except OSError as error:
            raise ActionError(f"cannot run {command[0]}: {error.strerror}") from error
        finally:
            with self._rest:
                self._at_work -= 1
                self._rest.notify_all()
        if wrong is not None:
            # The program alone: its arguments may hold a password.
            told = f": {line}" if line else ""
            raise ActionError(f"{command[0]} {wrong}{told}")
        return line

    def close(self) -> None:
        """Run nothing more, end what runs, and wait for that as long as it may take."""
        with self._rest:
            self._closed = True
            self._rest.wait_for(lambda: not self._at_work, hooks.LONGEST_END)

    def _ran(
        self, command: tuple[str, ...], environment: Mapping[str, str], timeout: Seconds
    ) -> tuple[str | None, str]:
        env = {k: v for k, v in os.environ.items() if k not in _NOT_PASSED_ON} | dict(environment)
        with Said() as said:

            def cut() -> bool:
                said.trim()
                return self._closed

            hook = hooks.Hook(command, timeout)
            launch = Launch("", command, said.path)
            wrong = hooks.once(hook, launch, env, self.household, cut)
            return wrong, said.last_line()


def folders(engines: Iterable[EngineTarget]) -> tuple[str, ...]:
    """Where these engines, or earlier ones of them, may have left sockets."""
    found = (
        folder
        for engine in engines
        for folder in leftovers.socket_folders({**engine.environment, **assigned(engine.command)})
    )
    return tuple(dict.fromkeys(found)) or leftovers.socket_folders({})


def first_start(engines: Iterable[EngineTarget]) -> Seconds | None:
    """When the oldest process of a living engine began (seconds since the epoch); None: none lives.

    By /proc: what is older than that is of none of them.
    """
    ticks = [info.start_ticks for engine in engines for info in engine.processes()]
    return began(min(ticks)) if ticks else None


def began(ticks: int) -> Seconds:
    """When a process of this start began, in seconds since the epoch, rather too early."""
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot + ticks / procfs.TICKS - _TICK
