"""Small trees of real processes for tests of supervision, and engines that own them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.simulated import ROOT, free_port, until
from watchdog import procfs
from watchdog.contracts import Endpoint
from watchdog.core.model import EngineExited, EngineSpawned, Event
from watchdog.ledger import Ledger
from watchdog.supervisor import tempdirs
from watchdog.supervisor.engine import EngineSettings, SupervisedEngine, Surroundings
from watchdog.supervisor.exits import ExitWatch
from watchdog.supervisor.household import Household, become_reaper
from watchdog.supervisor.ladder import RunningRequests, StopSettings, unknown_requests
from watchdog.supervisor.memory_ledger import MemoryLedger
from watchdog.supervisor.spawn import Launch

QUICK = StopSettings(drain_timeout=0.3, term_timeout=0.6, kill_timeout=5.0)


def script(text: str) -> tuple[str, ...]:
    """A command that runs Python without site packages; starts in about 10 ms."""
    return (sys.executable, "-ISc", f"import os, signal, sys, time\n{text}")


def simulator(port: int, *flags: str) -> tuple[str, ...]:
    """A command that runs the embedded engine."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = 'simulator'; "
    run = "import runpy; runpy.run_module('watchdog.simulator', run_name='__main__')"
    ready_at_once = ("--port", str(port), "--startup-time", "0")
    return (sys.executable, "-c", start + run, *ready_at_once, *flags)


@dataclass
class Supervision:
    """One engine with everything around it, and a list of all that it reported."""

    engine: SupervisedEngine
    household: Household
    exit_watch: ExitWatch
    ledger: Ledger
    directory: Path
    port: int
    events: list[Event] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The leader that was spawned last."""
        return [event.pid for event in self.events if isinstance(event, EngineSpawned)][-1]

    def exits(self) -> list[EngineExited]:
        """The exits reported so far."""
        return [event for event in self.events if isinstance(event, EngineExited)]

    def exited(self) -> EngineExited:
        """The first exit, waiting for it."""
        return until(self.exits)[0]

    def pids(self) -> dict[int, str]:
        """The living set and its comms."""
        return {info.pid: info.comm for info in self.engine.processes()}

    def log(self) -> str:
        """Everything that the engine printed."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self, word: str) -> int:
        """The number behind ``word=`` in the log, waiting for it."""

        def look() -> str:
            return self.log().partition(f"{word}=")[2].partition("\n")[0].partition(" ")[0]

        return int(until(look))


@contextlib.contextmanager
def supervision(
    command: Sequence[str],
    *,
    port: int = 0,
    stop: StopSettings = QUICK,
    running_requests: RunningRequests = unknown_requests,
    ledger: Ledger | None = None,
) -> Iterator[Supervision]:
    """An engine that is not started; afterwards nothing that it started lives."""
    assert become_reaper()
    port = port or free_port()
    events: list[Event] = []
    household, watch, memory = Household(), ExitWatch(), ledger or MemoryLedger()
    household.reap_orphans()  # of earlier tests: this process adopts them all
    with tempfile.TemporaryDirectory(prefix="sup") as folder:
        directory = Path(folder)
        launch = Launch("main", tuple(command), directory / "log")
        endpoint = Endpoint("127.0.0.1", port)
        settings = EngineSettings(launch, endpoint, stop, running_requests=running_requests)
        engine = SupervisedEngine(settings, Surroundings(household, watch, memory, events.append))
        try:
            yield Supervision(engine, household, watch, memory, directory, port, events)
        finally:
            _end_all(engine, household)
            watch.close()
            for record in memory.living("main"):
                tempdirs.remove(record.tempdir)


def _end_all(engine: SupervisedEngine, household: Household) -> None:
    """Not through the code under test: kill what it shows and whatever was left to us."""
    pids = [info.pid for info in (*engine.processes(), *household.orphans())]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        until(lambda pid=pid: ended(pid))  # type: ignore[misc]


def ended(pid: int) -> bool:
    """Whether the process is gone; reaps it when it is ours."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    info = procfs.stat(pid)
    return info is None or not procfs.lives(info)


def living(pids: Sequence[int]) -> list[int]:
    """Those of the pids that are not dead."""
    infos = (procfs.stat(pid) for pid in pids)
    return [info.pid for info in infos if info is not None and procfs.lives(info)]
