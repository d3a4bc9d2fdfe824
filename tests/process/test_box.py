"""Whose a process is: real processes, recognised by identity, session, mark and descent."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.support.engines import Target
from tests.support.simulated import until
from tests.support.trees import script, supervision
from watchdog import procfs
from watchdog.contracts import (
    Endpoint,
    EngineLook,
    EngineTarget,
    Owned,
    Owner,
    ProcessInfo,
)
from watchdog.core.model import Cause
from watchdog.daemon.box import EngineBox
from watchdog.ledger import GenerationRecord
from watchdog.supervisor.members import GENERATION_VARIABLE
from watchdog.supervisor.memory_ledger import MemoryLedger

# A process whose child, in a session of its own, it names.
PARENT = script(
    "child = os.fork()\n"
    "if child == 0:\n    os.setsid()\n    os.write(1, b'.')\n    time.sleep(600)\n"
    "print(child, flush=True)\ntime.sleep(600)\n"
)
# The same, but the parent ends: the child stays in the session of its grandparent.
LEFT = script(
    "if os.fork() == 0:\n"
    "    child = os.fork()\n"
    "    if child == 0:\n        time.sleep(600)\n"
    "    print(child, flush=True)\n    os._exit(0)\n"
    "os.wait()\nprint(0, flush=True)\ntime.sleep(600)\n"
)


def engine(living: tuple[ProcessInfo, ...] = (), generation: str = "") -> Target:
    """An engine of which the supervisor shows what the test says."""
    look = EngineLook(generation=generation)
    return Target(Endpoint("127.0.0.1", 1), now=look, living=living)


@contextlib.contextmanager
def sleeping(mark: str = "") -> Iterator[ProcessInfo]:
    """A process that does nothing, marked with a generation or not; it is gone afterwards."""
    env = {**os.environ, **({GENERATION_VARIABLE: mark} if mark else {})}
    with subprocess.Popen(["sleep", "600"], env=env, start_new_session=True) as process:
        try:
            until(lambda: procfs.cmdline(process.pid)[:1] == ("sleep",))  # its environment too
            yield shown(process.pid)
        finally:
            process.kill()


@contextlib.contextmanager
def family(command: Sequence[str]) -> Iterator[tuple[ProcessInfo, ProcessInfo]]:
    """A process in a session of its own, and the descendant that it names."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        child = 0
        try:
            said = b""
            while not said.count(b"\n") or (command is PARENT and b"." not in said):
                said += os.read(process.stdout.fileno(), 100)
            child = int(said.replace(b".", b"").split()[0])
            yield shown(process.pid), shown(child)
        finally:
            for pid in filter(None, (child, process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)


def shown(pid: int) -> ProcessInfo:
    """The process in /proc."""
    info = procfs.stat(pid)
    assert info is not None
    return info


def record(generation: str, leader: ProcessInfo | None = None, boot: str = "") -> GenerationRecord:
    """A start that was planned, and spawned when there is a leader."""
    return GenerationRecord(
        id=generation,
        engine="main",
        tempdir="",
        log_path="",
        log_offset=0,
        port=1,
        command=(),
        boot_id=boot or procfs.boot_id(),
        planned_at=1.0,
        planned_wall=1.0,
        pid=leader.pid if leader else None,
        start_ticks=leader.start_ticks if leader else None,
    )


def ledger(
    of: GenerationRecord | None = None, members: Sequence[tuple[int, int]] = ()
) -> MemoryLedger:
    """What is remembered of one start."""
    memory = MemoryLedger()
    if of is not None:
        memory.planned(of)
        memory.members(of.id, members)
    return memory


def ask(
    pid: int, memory: MemoryLedger | None = None, target: EngineTarget | None = None
) -> tuple[Owner, str]:
    """Owner and engine, as a fresh box says."""
    ours = target or engine()
    owned = EngineBox({ours.name: ours}, memory or ledger()).owner(pid)
    return owned.owner, owned.engine


ENGINE = (Owner.ENGINE, "main")
ORPHAN = (Owner.ORPHAN, "main")
FOREIGN = (Owner.FOREIGN, "")


def test_a_running_engine_owns_its_processes() -> None:
    """FACT: all of a real engine's set is its own, named by comm; afterwards nobody's."""
    command = script("if os.fork() == 0: time.sleep(600)\nprint('ready=1', flush=True)\n"
                     "time.sleep(600)\n")  # fmt: skip
    with supervision(command) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        supervised.said("ready")
        pids = supervised.pids()
        assert len(pids) == 2
        target = engine(supervised.engine.processes())
        box = EngineBox({"main": target}, supervised.ledger)
        assert {box.owner(pid) for pid in pids} == {
            Owned(Owner.ENGINE, "main", comm) for comm in pids.values()
        }
        supervised.engine.stop(drain=False, cause=Cause.OPERATOR)
        supervised.household.reap_orphans()
        assert {box.owner(pid) for pid in pids} == {Owned(Owner.UNKNOWN)}


def test_anybody_else_in_sight_is_foreign() -> None:
    """FACT: a process that nothing links to an engine is foreign, with its name."""
    with sleeping() as other:
        owned = EngineBox({"main": engine()}, ledger()).owner(other.pid)
    assert owned == Owned(Owner.FOREIGN, "", "sleep")


@pytest.mark.parametrize("pid", [0, -1, 1 << 22, 0xFFFFFFFF, 1 << 70])
def test_who_cannot_be_seen_is_unknown(pid: int) -> None:
    """FACT: G16: a pid that /proc does not show makes no claim and no error."""
    assert EngineBox({"main": engine()}, ledger()).owner(pid) == Owned(Owner.UNKNOWN)


def test_an_ended_process_is_unknown_even_if_recorded() -> None:
    """FACT: a recorded orphan that is gone is no orphan any more."""
    with sleeping() as old:
        memory = ledger(record("old", old))
        assert ask(old.pid, memory) == ORPHAN
    assert ask(old.pid, memory) == (Owner.UNKNOWN, "")


def test_a_new_child_is_the_engines_before_it_is_recorded() -> None:
    """FACT: descent from the leader makes a process the engine's, even in another session."""
    with family(PARENT) as (leader, child):
        assert child.session != leader.session
        assert ask(child.pid, target=engine((leader,))) == ENGINE
        assert ask(child.pid) == FOREIGN


def test_the_session_of_a_recorded_leader_is_the_engines() -> None:
    """FACT: a child whose parent died is the engine's by the leader's session."""
    with family(LEFT) as (leader, child):
        assert child.ppid != leader.pid
        assert child.session == leader.pid
        memory = ledger(record("now", leader))
        assert ask(child.pid, memory, engine((leader,), "now")) == ENGINE
        assert ask(child.pid, memory) == ORPHAN


def test_a_recorded_member_of_an_earlier_start_is_an_orphan() -> None:
    """FACT: G3: pid and start ticks of an earlier start that has not ended prove an orphan."""
    with sleeping() as member, sleeping() as other:
        memory = ledger(record("old"), [(member.pid, member.start_ticks)])
        assert ask(member.pid, memory) == ORPHAN
        assert ask(member.pid, memory, engine(generation="new")) == ORPHAN
        assert ask(member.pid, memory, engine(generation="old")) == ENGINE
        assert ask(other.pid, memory) == FOREIGN
        memory.ended("old", exit_code=None, signal=None, cause=Cause.UNKNOWN)
        assert ask(member.pid, memory) == FOREIGN


def test_a_reused_pid_is_no_orphan() -> None:
    """FACT: other start ticks, or another boot, make the same pid another process."""
    with sleeping() as other:
        stale = (other.pid, other.start_ticks - 1)
        assert ask(other.pid, ledger(record("old"), [stale])) == FOREIGN
        before = replace(other, start_ticks=other.start_ticks - 1)
        assert ask(other.pid, ledger(record("old", before))) == FOREIGN  # nor by its session
        exact = [(other.pid, other.start_ticks)]
        assert ask(other.pid, ledger(record("old", other, boot="before"), exact)) == FOREIGN


def test_the_child_of_an_orphan_is_an_orphan() -> None:
    """FACT: descent counts for remains as it does for the living."""
    with family(PARENT) as (member, child):
        memory = ledger(record("old"), [(member.pid, member.start_ticks)])
        assert ask(child.pid, memory) == ORPHAN


def test_a_mark_of_ours_is_proof() -> None:
    """FACT: a generation id in the environment counts when it is in the ledger, and only then."""
    with sleeping("abcd") as marked:
        assert ask(marked.pid, ledger(record("abcd"))) == ORPHAN
        assert ask(marked.pid, ledger(record("abcd")), engine(generation="abcd")) == ENGINE
        assert ask(marked.pid, ledger(record("other"))) == FOREIGN
        assert ask(marked.pid) == FOREIGN


def test_the_set_says_which_start_is_present() -> None:
    """FACT: a start that the core has not heard of yet makes no orphans of its own members."""
    with sleeping() as leader, sleeping("new") as marked:
        memory = ledger(record("new", leader))
        assert ask(marked.pid, memory, engine((leader,), generation="old")) == ENGINE


def test_targets_may_come_later() -> None:
    """FACT: a box is built before its engines, and knows them when they are there."""
    targets: dict[str, EngineTarget] = {}
    box = EngineBox(targets, ledger())
    with sleeping() as leader:
        targets["main"] = engine((leader,))
        assert [one.name for one in box.engines()] == ["main"]
        assert box.owner(leader.pid).owner is Owner.ENGINE


def test_any_thread_may_ask() -> None:
    """FACT: eight threads get the same answer at once."""
    found: list[Owner] = []
    with sleeping() as leader:
        box = EngineBox({"main": engine((leader,))}, ledger(record("now", leader)))

        def many() -> None:
            found.extend(box.owner(leader.pid).owner for _ in range(50))

        threads = [threading.Thread(target=many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [Owner.ENGINE] * 400
