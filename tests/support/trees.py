"""Small trees of real processes for tests of supervision, and engines that own them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.simulated import ROOT, free_port, until
from watchdog import procfs
from watchdog.contracts import Endpoint
from watchdog.core.model import EngineExited, EngineSpawned, Event
from watchdog.ledger import Ledger
from watchdog.supervisor import cgroup, launched, tempdirs
from watchdog.supervisor.cgroup import Cgroup
from watchdog.supervisor.engine import EngineSettings, SupervisedEngine, Surroundings
from watchdog.supervisor.exits import ExitWatch
from watchdog.supervisor.household import Household, become_reaper
from watchdog.supervisor.ladder import RunningRequests, StopSettings, unknown_requests
from watchdog.supervisor.members import GENERATION_VARIABLE, MemberTable
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
        pids = [event.pid for event in self.events if isinstance(event, EngineSpawned)]
        return pids[-1] or 0

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
                told = launched.read(record)
                if told is not None and (own := Cgroup.at(told.cgroup, record.id)) is not None:
                    own.remove()


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


# --- one set without an engine around it ----------------------------------------------------------


@dataclass
class Grown:
    """A set that was started as an engine is: what a stop needs, and what it printed."""

    process: subprocess.Popen[bytes]
    household: Household
    table: MemberTable
    cgroup: Cgroup | None
    log: Path

    def said(self, word: str) -> list[int]:
        """The numbers behind ``word=`` in the log so far."""
        words = self.log.read_text(errors="replace").split()
        return [int(w.removeprefix(f"{word}=")) for w in words if w.startswith(f"{word}=")]


@contextlib.contextmanager
def grown(text: str, *, housed: bool, token: str = "") -> Iterator[Grown]:
    """A script as the leader of a generation, ``housed`` in a cgroup of its own.

    Afterwards nothing of it lives, nor anything with the token in its command line.
    """
    assert become_reaper()
    household, generation = Household(), uuid.uuid4().hex
    household.reap_orphans()  # of earlier tests
    made = cgroup.made(generation).cgroup if housed else None
    assert housed is (made is not None)
    with tempfile.TemporaryDirectory(prefix="grown") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = household.launch(lambda: _leader(text, generation, out.fileno()))
        try:
            assert made is None or made.take(process.pid) or not living([process.pid])
            household.generation_began(generation)
            info = procfs.stat(process.pid)
            assert info is not None
            table = MemberTable(generation, (info.pid, info.start_ticks), household)
            table.cgroup = made
            yield Grown(process, household, table, made, log)
        finally:
            _uproot(process, household, made, token)


def _leader(text: str, generation: str, log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        script(text),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=dict(os.environ) | {GENERATION_VARIABLE: generation},
    )


def _uproot(
    process: subprocess.Popen[bytes], household: Household, made: Cgroup | None, token: str
) -> None:
    """Not through the code under test, but for the cgroup's own means."""

    def left() -> list[int]:
        orphans = [info.pid for info in household.orphans()]
        inside = made.pids() if made is not None else ()
        return [*living([process.pid]), *orphans, *inside, *(carriers(token) if token else ())]

    def over() -> bool:
        if made is not None:
            made.kill()
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        household.reap_orphans()
        return not left()

    until(over)
    process.wait()
    household.forget(process.pid)
    if made is not None:
        until(made.remove)


def carriers(token: str) -> list[int]:
    """Living processes that have the token in their command line, in the whole box."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return [pid for pid in living(found) if pid != os.getpid()]


# --- random trees ---------------------------------------------------------------------------------

_HABITS = ("deaf", "setsid", "orphan", "stopped", "thread", "naked", "quits", "answers")
_RESTLESS = ("breeds", "runs")
_MOST_NODES = 12


@dataclass(frozen=True)
class RandomTree:
    """The script of a tree; each of its processes has the token in its command line.

    ``nodes`` say their pid before they do what they are for.
    """

    text: str
    token: str
    nodes: int


def random_tree(luck: random.Random) -> RandomTree:
    """Up to a dozen processes with bad habits; two at most fork on while they are killed."""
    nodes = luck.randint(1, _MOST_NODES)
    parents = [luck.randrange(index) for index in range(1, nodes)]
    habits = [
        [habit for habit in _HABITS if luck.random() < 1 / 4 and (habit != "orphan" or index)]
        for index in range(nodes)
    ]
    for index in luck.sample(range(nodes), min(2, nodes)):
        if index and luck.random() < 1 / 2:
            habits[index].append(luck.choice(_RESTLESS))
    token = f"tree-{uuid.UUID(int=luck.getrandbits(128)).hex}-{os.getpid()}"
    plan = f"TOKEN = {token!r}\nPARENTS = {parents!r}\nHABITS = {habits!r}\n"
    return RandomTree(plan + _TREE, token, nodes)


_TREE = """
import threading
END = time.monotonic() + 60  # who forks on all the time must not outlive a test that failed
def say(): os.write(1, f'pid={os.getpid()} '.encode())
def nap(): time.sleep(0.004)
def answer(*_):
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
def breed():
    while time.monotonic() < END:
        if os.fork() == 0:
            if os.getpid() % 2: os.setsid()
            time.sleep(0.05)
            os._exit(0)
        while os.waitpid(-1, os.WNOHANG)[0]: pass
        nap()
def run():
    while time.monotonic() < END:
        if os.fork(): os._exit(0)
        if os.getpid() % 2: os.setsid()
        nap()
def live(me):
    habits = HABITS[me]
    if 'setsid' in habits and me: os.setsid()
    if 'answers' in habits: signal.signal(signal.SIGTERM, answer)
    if 'deaf' in habits: signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say()
    for kid in [index + 1 for index, parent in enumerate(PARENTS) if parent == me]:
        if os.fork() == 0:
            if 'orphan' in HABITS[kid] and os.fork(): os._exit(0)
            live(kid)
    if 'thread' in habits: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    if 'quits' in habits: os._exit(1)
    if 'runs' in habits: run()
    if 'breeds' in habits: breed()
    if 'stopped' in habits: os.kill(os.getpid(), signal.SIGSTOP)
    if 'naked' in habits:
        os.execve(sys.executable, ['x', '-ISc', 'import time; time.sleep(600)', TOKEN], {})
    while True: time.sleep(600)
live(0)
"""
