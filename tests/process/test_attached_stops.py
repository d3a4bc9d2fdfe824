"""Stops of an engine that somebody else starts: only what was judged is ever ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.simulated import alive, free_port, until
from watchdog import procfs
from watchdog.contracts import ActionError, Endpoint
from watchdog.core.model import Cause, EngineExited, EngineSpawned, Event
from watchdog.supervisor.attached import AttachedEngine, Terms
from watchdog.supervisor.engine_settings import EngineSettings, Surroundings
from watchdog.supervisor.exits import ExitWatch
from watchdog.supervisor.household import Household
from watchdog.supervisor.ladder import StopSettings
from watchdog.supervisor.memory_ledger import MemoryLedger
from watchdog.supervisor.spawn import Launch

SERVER = """
import os, socket, sys, time
if "fork" in sys.argv and os.fork():
    time.sleep(600)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(600)
"""


@dataclass
class Box:
    """A program, its port, and who is attached to it."""

    program: Path
    port: int
    engine: AttachedEngine
    events: list[Event]

    @contextlib.contextmanager
    def served(self, *words: str) -> Iterator[int]:
        """The pid of an engine that somebody has started, and that listens."""
        process = subprocess.Popen(
            [sys.executable, self.program, str(self.port), *words], start_new_session=True
        )
        try:
            until(lambda: procfs.is_listened_on(self.port))
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            until(lambda: not procfs.is_listened_on(self.port))

    def adopted(self, pid: int | None = None) -> str:
        """The name of the last generation, once it is that of ``pid``."""
        return until(lambda: next((e.generation for e in self.spawns(pid)), ""))

    def spawns(self, pid: int | None) -> list[EngineSpawned]:
        """Those that were told so far, of ``pid`` where one is named, the last first."""
        found = [event for event in self.events if isinstance(event, EngineSpawned)]
        return [event for event in reversed(found) if pid in {None, event.pid}]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A watchdog's hands that look for an engine which nobody has started yet."""
    program, port, events = tmp_path / "serve.py", free_port(), list[Event]()
    program.write_text(SERVER)
    watch = ExitWatch()
    engine = AttachedEngine(
        EngineSettings(
            Launch("main", (sys.executable, str(program)), tmp_path / "log"),
            Endpoint("127.0.0.1", port),
            StopSettings(term_timeout=1.0),
        ),
        Surroundings(Household(), watch, MemoryLedger(), events.append),
        Terms(signals=True, patience=30.0),
    )
    engine.adopt()
    try:
        yield Box(program, port, engine, events)
    finally:
        engine.leave()
        watch.close()


def test_what_came_since_it_was_judged_is_let_be(box: Box) -> None:
    """FACT: a stop for the start before ends nobody; one for this start ends it."""
    with box.served() as first:
        old = box.adopted(first)
    with box.served() as pid:
        new = box.adopted(pid)
        box.engine.stop(drain=False, cause=Cause.STALLED, generation=old)
        box.engine.start(Cause.STALLED)
        assert alive(pid)
        assert [info.pid for info in box.engine.processes()] == [pid]
        box.engine.stop(drain=False, cause=Cause.STALLED, generation=new)
        until(lambda: not alive(pid))


def test_a_child_that_serves_on_is_the_engine(box: Box) -> None:
    """FACT: whose first process has gone while a child of the same words serves is not ended."""
    with box.served("fork") as parent:
        old = box.adopted(parent)
        (child,) = procfs.children(parent)
        with box.engine._hands:  # noqa: SLF001 - a stop that comes before the next look
            os.kill(parent, signal.SIGKILL)
            until(box.engine._generation.leader_gone)  # type: ignore[union-attr]  # noqa: SLF001
            box.engine.stop(drain=False, cause=Cause.CRASH, generation=old)
        assert alive(child)
        assert box.adopted(child) != old
        os.kill(child, signal.SIGKILL)


def test_a_launcher_that_started_another_engine_since_is_not_ended(box: Box) -> None:
    """FACT: what has become the parent of several engines is no longer ended for one of them."""
    other = free_port()
    box.program.write_text(
        "import os, signal, socket, sys, time\n"
        f"for port in (int(sys.argv[1]), {other}):\n"
        "    if os.fork() == 0:\n"
        "        listener = socket.create_server(('127.0.0.1', port))\n"
        "        time.sleep(600)\n"
        "    signal.sigwait({signal.SIGUSR1})\n".replace(
            "import os", "import os, signal; signal.pthread_sigmask(0, {10})\nimport os"
        )
    )
    with box.served() as launcher:
        box.adopted(launcher)
        os.kill(launcher, signal.SIGUSR1)
        until(lambda: procfs.is_listened_on(other))
        with pytest.raises(ActionError, match="has started several engines") as raised:
            box.engine.stop(drain=False, cause=Cause.STALLED)
        assert raised.value.untouched
        assert alive(launcher)
        assert not [event for event in box.events if isinstance(event, EngineExited)]


def test_one_that_was_out_of_sight_for_a_look_is_seen_again(box: Box) -> None:
    """FACT: a first look that missed its processes is made good, and nobody is told to be gone."""
    with box.engine._hands, box.served() as pid:  # noqa: SLF001 - no look before that one
        box.engine._found(None)  # noqa: SLF001 - what a look tells that cannot see them
        assert box.spawns(None)[0].pid is None
        box.engine._glance(box.engine._found)  # noqa: SLF001 - the next look
        assert [info.pid for info in box.engine.processes()] == [pid]
        assert box.spawns(None)[0].pid == pid
        assert not [event for event in box.events if isinstance(event, EngineExited)]
