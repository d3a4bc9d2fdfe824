"""What a bundle is made from: where evidence comes from, and what was seen at its beginning."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from watchdog.config.settings import EvidenceSettings
from watchdog.contracts import EngineTarget, Order, ProcessInfo
from watchdog.core.model import Seconds
from watchdog.core.state import State
from watchdog.evidence.processes import Seen
from watchdog.kernel_log import DEVICE
from watchdog.snapshot import Snapshot
from watchdog.supervisor.household import Household


class Say(Protocol):
    """Takes one line of the journal."""

    def __call__(self, level: str, event: str, /, **keys: object) -> None:
        """``event`` is a constant dotted name."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where evidence comes from. All of it is asked from threads of ours.

    ``published`` gives the state after the last step, ``snapshot`` what the status is made of,
    ``settle`` waits so many seconds for the recorder, ``hurried`` says that we are to end.
    ``kernel_log`` is where the kernel's log is read.
    """

    engines: Callable[[], tuple[EngineTarget, ...]]
    published: Callable[[], State]
    snapshot: Callable[[], Snapshot]
    settle: Callable[[Seconds], object]
    household: Household
    settings: Callable[[], EvidenceSettings]
    say: Say
    kernel_log: str = DEVICE
    hurried: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The engine's log as it was: ``descriptor`` open to read, from ``start`` to ``end`` bytes."""

    descriptor: int
    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen before anything was done. ``at`` is CLOCK_MONOTONIC, ``wall`` since the epoch.

    ``beside`` says that the action did not wait. ``seen`` holds a look at the dead engine's
    orphans; of a living engine it is None, and looked for while the action waits.
    """

    order: Order
    engine: EngineTarget
    state: State
    at: Seconds
    wall: Seconds
    processes: tuple[ProcessInfo, ...]
    beside: bool
    log: LogEnd | None
    seen: Seen | None = None

    def close(self) -> None:
        """Let go of the log."""
        if self.log is not None:
            os.close(self.log.descriptor)


def log_end(engine: EngineTarget) -> LogEnd | None:
    """The engine's log up to now; None when it cannot be opened. What comes later is another's."""
    place = engine.log_place()
    if place is None:
        return None
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = -1
    with contextlib.suppress(OSError):
        descriptor = os.open(place.path, flags)
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            start = place.offset if place.offset <= found.st_size else 0
            return LogEnd(descriptor, place.path, start, found.st_size)
    if descriptor >= 0:
        os.close(descriptor)
    return None
