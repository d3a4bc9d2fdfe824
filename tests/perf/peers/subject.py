"""What a comparison is made of: a worker tree, and somebody who keeps it alive."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.perf.peers.processes import own
from tests.support.simulated import alive, free_port

WORKER = Path(__file__).with_name("worker.py")
LIFE = 1.2
"""Seconds after which the worker of a crash loop exits with status 1."""


class Purpose(StrEnum):
    """What a trial measures. A subject lifts its limits of restarts for ``CRASH``."""

    CRASH = "crash"
    STOP = "stop"
    LOOP = "loop"
    HANG = "hang"
    SATURATED = "saturated"
    IDLE = "idle"

    @property
    def asks_health(self) -> bool:
        """Whether a subject shall look at its worker's health port, if it can."""
        return self in {Purpose.HANG, Purpose.SATURATED}


@dataclass(frozen=True, slots=True)
class Start:
    """What a leader wrote: its first moment (monotonic seconds), its pid and its child's."""

    at: float
    pid: int
    child: int


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker tree of a trial: its name, its folder and its port on loopback."""

    name: str
    folder: Path
    port: int
    loops: bool = False

    @classmethod
    def new(cls, folder: Path, number: int, *, loops: bool = False) -> Worker:
        """Worker ``number`` below a trial's folder, which it makes."""
        name = f"w{number}"
        (folder / name).mkdir(parents=True)
        return cls(name, folder / name, free_port(), loops)

    @property
    def command(self) -> list[str]:
        """Its command line; no word has a blank."""
        words = [sys.executable, "-IS", str(WORKER), "--folder", str(self.folder)]
        words += ["--port", str(self.port)]
        return words + (["--exit-after", str(LIFE)] if self.loops else [])

    @property
    def url(self) -> str:
        """Where its health is asked for."""
        return f"http://127.0.0.1:{self.port}/health"

    @property
    def pattern(self) -> str:
        """What `pgrep -f` finds this leader by, and nobody else: the folder is this run's own."""
        return f"worker.py --folder {self.folder} --port {self.port}"

    def starts(self) -> list[Start]:
        """All leaders so far, oldest first."""
        with contextlib.suppress(OSError):
            lines = (self.folder / "starts").read_text().splitlines(keepends=True)
            rows = [line.split() for line in lines if line.endswith("\n")]
            return [Start(float(at), int(pid), int(child)) for at, pid, child in rows]
        return []

    def living(self) -> list[int]:
        """Leaders and children of it that live."""
        return [pid for s in self.starts() for pid in (s.pid, s.child) if alive(pid)]


@dataclass(frozen=True, slots=True)
class Trial:
    """What a subject gets: a folder, the workers, and what for."""

    folder: Path
    workers: tuple[Worker, ...]
    purpose: Purpose

    @property
    def worker(self) -> Worker:
        """The first one: only idle trials have more."""
        return self.workers[0]


@dataclass(frozen=True, slots=True)
class Kept:
    """A subject that runs: its root process (0: none of its own), and how to stop its worker.

    ``stop`` returns whether the subject said that the worker is stopped, when it does.
    """

    root: int
    stop: Callable[[], bool] | None = None
    metrics: int = 0
    """The port of its /metrics, 0 when it has none."""

    def own(self) -> list[int]:
        """The processes that do the keeping: root and descendants, without the worker trees."""
        return own(self.root) if self.root else []


@dataclass(frozen=True, slots=True)
class Subject:
    """Somebody who keeps workers alive, in one configuration, told by ``settings``."""

    name: str
    profile: str
    settings: str
    keep: Callable[[Trial], AbstractContextManager[Kept]]
    needs: tuple[str, ...] = ()
    """Programs, absolute or on the path, and how to get each: PROGRAM:PACKAGE."""
    settle: float = 0.4
    """Seconds that a worker lives before it is killed: a subject calls less a failed start."""
    phase: float = 0.0
    """Seconds of its polling period, over which the kills are spread; 0: it waits for the exit."""
    health: str = ""
    """What asks the worker's health, "" when it has no such feature."""
    grace: float = 10.0
    """Seconds after a start in which its health checks may be blind."""

    @property
    def title(self) -> str:
        """The two words of its row."""
        return f"{self.name}, {self.profile}"

    def missing(self) -> list[str]:
        """PROGRAM:PACKAGE of all that is not here."""
        return [need for need in self.needs if shutil.which(need.rpartition(":")[0]) is None]
