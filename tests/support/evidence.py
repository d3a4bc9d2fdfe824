"""An engine about which evidence is taken: real processes, a real log, everything else as set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.engines import Target
from watchdog import procfs
from watchdog.config.settings import EvidenceSettings
from watchdog.contracts import Endpoint, LogPlace, Order
from watchdog.core.model import Cause, ProcessState, engine_subject
from watchdog.core.state import EngineSettings, EngineState, State
from watchdog.evidence import DIRECTORY, Collector, Sources
from watchdog.snapshot import Snapshot
from watchdog.supervisor.household import Household

KEY = 'sk-"hush\\ 123'
"""A key that looks otherwise in JSON, in a URL and in Python's words."""


class Control:
    """Implements ``contracts.EngineControl``: nothing is done."""

    name = "main"

    def stop(self, *, drain: bool, cause: Cause, generation: str = "") -> None:
        """Nothing to stop."""

    def start(self, cause: Cause) -> None:
        """Nothing to start."""


@dataclass
class Stage:
    """Everything that a collector asks, and what it says. ``at_snapshot`` is done at that part."""

    folder: Path
    pid: int
    said: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    settings: EvidenceSettings = field(default_factory=EvidenceSettings)
    at_snapshot: Callable[[], object] = lambda: None
    kernel_log: str = "/dev/null"
    path: str = "/nowhere"
    key: str = KEY
    leader: int | None = None
    program: str = "/venv/bin/vllm"
    generation: str = "g1"

    def __post_init__(self) -> None:
        """The leader lives, unless it is set otherwise."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.leader = self.pid
        self.log = self.folder / "engine-main.log"
        if not self.log.exists():
            self.log.touch()
        self.state = self._state()

    def _state(self) -> State:
        engine = EngineState(
            EngineSettings("main"),
            ProcessState.STOPPING,
            leader=self.leader,
            generation=self.generation,
        )
        return State(engines={"main": engine})

    def dead(self, generation: str = "g1") -> None:
        """The end of the leader of that start is known."""
        self.leader, self.generation = None, generation
        self.state = self._state()

    def target(self) -> Target:
        """The engine."""
        info = procfs.stat(self.pid)
        return Target(
            Endpoint("127.0.0.1", 1, api_key=self.key),
            living=() if info is None else (info,),
            log=LogPlace("g1", str(self.log), 0),
            command=(self.program, "serve", "--api-key", self.key),
            environment={"PATH": self.path, "HF_TOKEN": "hf-quiet-please", "USER": "somebody"},
        )

    def snapshot(self) -> Snapshot:
        """As the status would be made of."""
        self.at_snapshot()
        return Snapshot(self.state, 1.0, 2.0, "0.0.0")

    def say(self, _level: str, event: str, /, **keys: object) -> None:
        """Keep the line."""
        self.said.append((event, keys))

    def collector(self, limit: float = 5.0) -> Collector:
        """One that works here; who lives was started by this process, as a leader is."""
        household = Household()
        if self.leader is not None:
            household.register(self.leader)
        sources = Sources(
            engines=lambda: (self.target(),),
            published=lambda: self.state,
            snapshot=self.snapshot,
            settle=lambda _: True,
            household=household,
            settings=lambda: self.settings,
            say=self.say,
            kernel_log=self.kernel_log,
        )
        return Collector(self.folder, sources, limit)

    @property
    def directory(self) -> Path:
        """Where the bundles are."""
        return self.folder / DIRECTORY

    def failures(self) -> list[str]:
        """Why there were no bundles."""
        return [str(keys["reason"]) for event, keys in self.said if event == "evidence.failed"]


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """A stage with a Python process as engine, which is gone afterwards."""
    script = "import signal; signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        yield Stage(folder, process.pid)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def order(action: str = "restart_engine", rule: str = "engine-stalled") -> Order:
    """What was decided."""
    incident = "" if rule == "operator" else "inc-000007"
    return Order(action, engine_subject("main"), Cause.STALLED, incident, rule=rule)


def contents(bundle: Path) -> dict[str, str]:
    """The files of a bundle."""
    return {path.name: path.read_text() for path in bundle.iterdir()}


def program(path: Path, script: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def evidence_threads() -> list[str]:
    """The threads that still take evidence in this process."""
    return [one.name for one in threading.enumerate() if one.name.startswith("evidence-")]
