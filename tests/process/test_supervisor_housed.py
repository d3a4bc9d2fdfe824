"""An engine's own cgroup, from the record of its start to the end, and who hears what when."""

from __future__ import annotations

import os
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.support.simulated import until
from tests.support.trees import script, supervision
from watchdog.contracts import ActionError, Endpoint
from watchdog.core.model import Cause, EngineExited, EngineSpawned, Event
from watchdog.ledger import GenerationRecord
from watchdog.supervisor import identity, launched
from watchdog.supervisor.cgroup import made
from watchdog.supervisor.engine import SupervisedEngine, Surroundings
from watchdog.supervisor.ladder import StopSettings
from watchdog.supervisor.memory_ledger import MemoryLedger
from watchdog.supervisor.spawn import Launch

SLEEP = "time.sleep(600)\n"


def usable() -> bool:
    """Whether this process may make a cgroup of version 2."""
    probe = made(f"probe-{uuid.uuid4().hex}").cgroup
    return probe is not None and probe.remove()


kernel = pytest.mark.skipif(not usable(), reason="no cgroup v2 can be made below our own")


class Notes(MemoryLedger):
    """Remembers where the cgroups of the starts are, and whether they were there when noted."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken
        self.places: list[tuple[Path, bool]] = []

    def planned(self, record: GenerationRecord) -> None:
        """Note it; the end of the world when ``broken``."""
        told = launched.read(record)
        assert told is not None
        place = Path(told.cgroup)
        self.places.append((place, place.exists()))
        if self.broken:
            raise KeyboardInterrupt
        super().planned(record)


@pytest.mark.root
@kernel
def test_it_is_recorded_before_it_is_made_and_goes_with_the_set() -> None:
    """FACT: a watchdog that dies in between leaves no cgroup that nobody knows of."""
    notes = Notes()
    with supervision(script(SLEEP), ledger=notes) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        ((place, was_there),) = notes.places
        assert not was_there
        assert str(supervised.pid) in (place / "cgroup.procs").read_text().split()
        supervised.engine.stop(drain=False, cause=Cause.OPERATOR)
        assert not place.exists()


@pytest.mark.root
@kernel
@pytest.mark.parametrize("how", ["no program", "no record"])
def test_a_start_that_fails_leaves_none(how: str) -> None:
    """FACT: without a process, or without a record, there is no cgroup afterwards."""
    notes = Notes(broken=how == "no record")
    with supervision(("/no/such/program",), ledger=notes) as supervised:
        with pytest.raises((ActionError, KeyboardInterrupt)):
            supervised.engine.start(Cause.OPERATOR)
        ((place, _),) = notes.places
        assert place.name.startswith("vllm-watchdog-")
        assert not place.exists()


@pytest.mark.root
@kernel
def test_a_later_watchdog_removes_it_too() -> None:
    """FACT: who adopts the engine, and stops it, leaves no cgroup of it behind."""
    notes = Notes()
    with supervision(script(SLEEP), ledger=notes) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        supervised.engine.leave()
        assert supervised.engine.adopt().record is not None
        supervised.engine.stop(drain=False, cause=Cause.OPERATOR)
        assert not notes.places[0][0].exists()


def test_what_cannot_be_ended_does_not_cost_what_serves(tmp_path: Path) -> None:
    """FACT: the living engine is adopted although an older start of it cannot be ended."""
    ledger = MemoryLedger()
    with supervision(script(SLEEP), ledger=ledger) as supervised:
        engine = supervised.engine
        place = tmp_path / "vllm-watchdog-older"
        place.mkdir()
        (place / "cgroup.procs").write_text("")
        (place / "cgroup.events").write_text("populated 1\n")
        launch, at = Launch("main", ("x",), tmp_path / "log"), Endpoint("127.0.0.1", 1)
        older = launched.planned(launch, at, StopSettings(), name="older", cgroup=str(place))
        engine.reconfigure(replace(engine.settings, stop=StopSettings(0.1, 0.1, 0.1)))
        engine.start(Cause.OPERATOR)
        pid = supervised.pid
        engine.leave()
        ledger.planned(older)

        with pytest.raises(ActionError, match="is not empty"):
            engine.adopt()

        assert [info.pid for info in engine.processes()] == [pid]
        (place / "cgroup.events").write_text("populated 0\n")
        engine.stop(drain=False, cause=Cause.OPERATOR)


class Slow:
    """Takes its time over an exit."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.begun = threading.Event()

    def __call__(self, event: Event) -> None:
        """Note it, an exit a moment late."""
        if isinstance(event, EngineExited):
            self.begun.set()
            time.sleep(0.3)
        self.events.append(event)


def test_an_exit_is_told_before_the_next_start() -> None:
    """FACT: a start in the moment of an exit's explanation is told after it, and the end noted."""
    with supervision(script(SLEEP)) as supervised:
        told = Slow()
        around = Surroundings(supervised.household, supervised.exit_watch, supervised.ledger, told)
        engine = SupervisedEngine(supervised.engine.settings, around)
        try:
            engine.start(Cause.OPERATOR)
            (leader,) = engine.processes()
            pidfd = identity.open_pidfd(leader.pid, leader.start_ticks)
            assert pidfd is not None
            identity.send(pidfd, SIGKILL)
            os.close(pidfd)
            until(told.begun.is_set)
            engine.start(Cause.CRASH)
            kinds = [type(event) for event in told.events]
            assert kinds == [EngineSpawned, EngineExited, EngineSpawned]
        finally:
            engine.stop(drain=False, cause=Cause.OPERATOR)


def test_a_stop_does_not_depend_on_who_sends_requests() -> None:
    """FACT: when the engine cannot be withdrawn it is stopped all the same, and that is told."""
    with supervision(script(SLEEP)) as supervised:

        def broken() -> None:
            raise RuntimeError("no nginx")

        said: list[str] = []
        settings = replace(supervised.engine.settings, withdraw=broken)
        around = Surroundings(
            supervised.household,
            supervised.exit_watch,
            supervised.ledger,
            supervised.events.append,
            said.append,
        )
        engine = SupervisedEngine(settings, around)
        engine.start(Cause.OPERATOR)
        engine.stop(drain=True, cause=Cause.OPERATOR)
        assert engine.processes() == ()
        assert said == ["engine main: cannot withdraw it: no nginx"]
