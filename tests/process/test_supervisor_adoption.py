"""A watchdog is killed; the next one takes over what lives, ends what is half dead, and no more."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.simulated import ROOT, free_port, until
from tests.support.trees import Supervision, ended, living, script, supervision
from watchdog.core.model import Cause, EngineSpawned
from watchdog.ledger import GenerationRecord
from watchdog.supervisor import tempdirs
from watchdog.supervisor.ladder import StopSettings
from watchdog.supervisor.launched import planned
from watchdog.supervisor.memory_ledger import MemoryLedger

PAIR = script("if os.fork() == 0: time.sleep(600)\nprint('ready=1', flush=True)\ntime.sleep(600)\n")


@dataclass
class Left:
    """What the killed watchdog left: its record, members, and the living pids, leader first."""

    record: GenerationRecord
    members: tuple[tuple[int, int], ...]
    pids: list[int]

    def ledger(self, **changes: object) -> MemoryLedger:
        """The store as the next watchdog finds it."""
        ledger = MemoryLedger()
        ledger.planned(replace(self.record, **changes))  # type: ignore[arg-type]
        ledger.members(self.record.id, self.members)
        return ledger


@contextlib.contextmanager
def left_behind(directory: Path, mode: str = "spawned") -> Iterator[Left]:
    """Run a watchdog in another process until its engine is up, then SIGKILL it."""
    first_one = ROOT / "tests" / "support" / "left_behind.py"
    place = (str(ROOT), str(directory), str(free_port()), mode)
    with subprocess.Popen(
        [sys.executable, str(first_one), *place, *PAIR], stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        answer = json.loads(first.stdout.readline())
        first.kill()
        first.wait()
    record = GenerationRecord(**answer["record"])
    members = tuple((pid, ticks) for pid, ticks in answer["members"])
    try:
        yield Left(record, members, answer["pids"])
    finally:
        for pid in living(answer["pids"]):
            os.kill(pid, signal.SIGKILL)
        until(lambda: all(ended(pid) for pid in answer["pids"]))
        tempdirs.remove(record.tempdir)


@contextlib.contextmanager
def successor(left: Left, **changes: object) -> Iterator[Supervision]:
    """The next watchdog, which has the record."""
    with supervision(PAIR, ledger=left.ledger(**changes)) as supervised:
        yield supervised


@pytest.mark.parametrize("mode", ["spawned", "planned"])
def test_a_living_engine_is_adopted(tmp_path: Path, mode: str) -> None:
    """FACT: W1: the same pids go on, it is no start, its exit is noticed, and a stop ends it all.

    Also when the first watchdog died between the spawn and its record.
    """
    with left_behind(tmp_path, mode) as left, successor(left, ready_at=1.0) as supervised:
        adoption = supervised.engine.adopt()

        assert adoption.record is not None
        assert adoption.record.id == left.record.id
        assert list(supervised.pids()) == left.pids
        (event,) = supervised.events
        assert isinstance(event, EngineSpawned)
        assert (event.pid, event.adopted, event.ready) == (left.pids[0], True, True)

        supervised.engine.stop(drain=False, cause=Cause.OPERATOR)

        assert living(left.pids) == []
        assert supervised.exited().cause is Cause.OPERATOR
        assert supervised.ledger.living("main") == ()
        assert not Path(left.record.tempdir).exists()


def test_the_death_of_an_adopted_leader_is_an_event(tmp_path: Path) -> None:
    """FACT: the exit of a leader that is not our child is reported, and its child is then ended."""
    with left_behind(tmp_path) as left, successor(left) as supervised:
        supervised.engine.adopt()
        os.kill(left.pids[0], signal.SIGKILL)

        event = supervised.exited()
        supervised.engine.stop(drain=False, cause=Cause.CRASH)

        assert event.generation == left.record.id
        assert event.signal in (signal.SIGKILL, None)
        assert living(left.pids) == []


def test_an_engine_without_its_leader_is_ended(tmp_path: Path) -> None:
    """FACT: half dead: the leader died unseen; what it left is killed and the record closed."""
    with left_behind(tmp_path) as left, successor(left) as supervised:
        os.kill(left.pids[0], signal.SIGKILL)
        until(lambda: not living(left.pids[:1]))

        adoption = supervised.engine.adopt()

        assert (adoption.record, adoption.ended) == (None, (left.record.id,))
        assert living(left.pids) == []
        assert supervised.events == []
        assert supervised.ledger.living("main") == ()


def test_an_observer_adopts_and_ends_nothing(tmp_path: Path) -> None:
    """FACT: without cleaning up, half dead remains live on and stay recorded."""
    with left_behind(tmp_path) as left, successor(left) as supervised:
        os.kill(left.pids[0], signal.SIGKILL)
        until(lambda: not living(left.pids[:1]))

        supervised.engine.adopt(clean_up=False)

        assert living(left.pids) == left.pids[1:]
        assert len(supervised.ledger.living("main")) == 1


@pytest.mark.parametrize("stranger", ["other start", "other boot"])
def test_a_stranger_with_the_pid_is_left_alone(tmp_path: Path, stranger: str) -> None:
    """FACT: another start time or boot: neither adopted nor signalled; the record is closed."""
    with subprocess.Popen(script("time.sleep(600)"), start_new_session=True) as process:
        try:
            record = GenerationRecord(
                id="0" * 16,
                engine="main",
                tempdir=str(tmp_path / "vw-0"),
                log_path=str(tmp_path / "log"),
                log_offset=0,
                port=0,
                command=(),
                boot_id="another",
                planned_at=0.0,
                planned_wall=0.0,
            )
            left = Left(record, ((process.pid, 1),), [])
            changes: dict[str, object] = {"pid": process.pid, "start_ticks": 1}
            if stranger == "other start":
                changes["boot_id"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            with successor(left, **changes) as supervised:
                supervised.household.register(process.pid)
                adoption = supervised.engine.adopt()

                assert (adoption.record, adoption.ended) == (None, (record.id,))
                assert supervised.engine.processes() == ()
                assert supervised.ledger.living("main") == ()
            assert process.poll() is None
        finally:
            process.kill()


def test_leaving_keeps_the_engine_for_the_next(tmp_path: Path) -> None:
    """FACT: after leave the engine lives, still recorded, and can be adopted again."""
    with left_behind(tmp_path) as left, successor(left) as supervised:
        supervised.engine.adopt()
        supervised.engine.leave()

        assert living(left.pids) == left.pids
        assert supervised.engine.processes() == ()
        assert supervised.engine.adopt().record is not None
        assert list(supervised.pids()) == left.pids


def test_nothing_recorded_is_nothing_adopted() -> None:
    """FACT: an empty ledger adopts nobody and ends nobody."""
    with supervision(PAIR) as supervised:
        adoption = supervised.engine.adopt()

        assert (adoption.record, adoption.ended, supervised.events) == (None, (), [])


def test_an_engine_is_adopted_as_what_it_was_started_as(tmp_path: Path) -> None:
    """FACT: it keeps its port and its patience, and whether the next start makes another is known.

    A record of an older version tells by its port alone.
    """
    with left_behind(tmp_path) as left, successor(left) as supervised:
        engine = supervised.engine
        engine.adopt()
        present = engine.present
        assert present is not None
        assert (engine.endpoint.port, present.stop) == (left.record.port, StopSettings())
        assert not engine.is_outdated()
        launch = replace(engine.settings.launch, env={"KEY": "s3cret"})
        other = replace(engine.settings, launch=launch)
        assert engine.is_outdated(other)
        assert "s3cret" not in planned(other.launch, other.endpoint, other.stop).launched
        engine.leave()
    with left_behind(tmp_path) as left, successor(left, launched="") as supervised:
        supervised.engine.adopt()
        assert supervised.engine.is_outdated()
        assert supervised.engine.endpoint.port == left.record.port
