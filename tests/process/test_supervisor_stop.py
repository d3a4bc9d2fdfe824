"""Every rung of the stop ladder on real trees: nobody lives afterwards, no stranger is hurt."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.simulated import until
from tests.support.trees import Supervision, grown, living, script, simulator, supervision
from watchdog import procfs
from watchdog.contracts import ActionError, ProcessInfo
from watchdog.core.model import Cause
from watchdog.supervisor import identity
from watchdog.supervisor.household import Household
from watchdog.supervisor.ladder import StopLadder, StopSettings
from watchdog.supervisor.members import MemberTable

SLEEP = "time.sleep(600)\n"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def started(supervised: Supervision, members: int, word: str = "ready=") -> list[int]:
    """Start, wait for so many members and for a word in the log; their pids."""
    supervised.engine.start(Cause.OPERATOR)
    until(lambda: len(supervised.pids()) == members and word in supervised.log())
    return list(supervised.pids())


def stop(supervised: Supervision, *, drain: bool = False, cause: Cause = Cause.OPERATOR) -> None:
    """Stop, and nobody is left to show."""
    supervised.engine.stop(drain=drain, cause=cause)
    assert supervised.engine.processes() == ()


def test_the_leader_is_asked_first_and_gently() -> None:
    """FACT: a leader that heeds TERM ends with its own status and its children with it."""
    text = (
        "child = os.fork()\n"
        "if child == 0: time.sleep(600)\n"
        "def end(*_):\n"
        "    os.kill(child, 15); os.waitpid(child, 0); print('bye=1', flush=True); os._exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready=1', flush=True)\n" + SLEEP
    )
    with supervision(script(text)) as supervised:
        pids = started(supervised, 2)

        stop(supervised)

        assert "bye=1" in supervised.log()
        assert living(pids) == []
        assert [(e.exit_code, e.cause) for e in supervised.exits()] == [(3, Cause.OPERATOR)]


def test_a_second_term_reaches_a_leader_that_swallowed_the_first() -> None:
    """FACT: the leader, and only the leader, is sent TERM twice."""
    text = (
        "seen = []\n"
        "def count(*_):\n"
        "    seen.append(1)\n"
        "    print(f'terms{os.getpid()}={len(seen)}', flush=True)\n"
        "    if len(seen) == 2 and os.getpid() == leader: os._exit(0)\n"
        "signal.signal(signal.SIGTERM, count)\n"
        "leader = os.getpid()\n"
        "child = os.fork()\n"
        "if child: print('ready=1', flush=True)\n"
        "while True: time.sleep(600)\n"
    )
    with supervision(script(text)) as supervised:
        leader, child = started(supervised, 2)

        stop(supervised)

        assert f"terms{leader}=2" in supervised.log()
        assert f"terms{child}=1" in supervised.log()
        assert f"terms{child}=2" not in supervised.log()
        assert living([leader, child]) == []


def test_a_tree_that_ignores_term_is_killed() -> None:
    """FACT: KILL ends leader, child and grandchild that are all deaf to TERM."""
    text = DEAF + "if os.fork() == 0: os.fork()\nprint('ready=1', flush=True)\n" + SLEEP
    with supervision(script(text)) as supervised:
        pids = started(supervised, 3)

        stop(supervised)

        assert living(pids) == []
        assert supervised.exits()[0].signal == signal.SIGKILL


def test_a_stopped_leader_is_woken_to_its_term() -> None:
    """FACT: a leader in state T gets CONT behind its TERM and ends by TERM."""
    with supervision(script("print('ready=1', flush=True)\n" + SLEEP)) as supervised:
        (pid,) = started(supervised, 1)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: (info := procfs.stat(pid)) and info.state == "T")

        stop(supervised)

        assert supervised.exits()[0].signal == signal.SIGTERM


def test_a_stalled_tree_gets_no_drain_of_the_set() -> None:
    """FACT: with cause stalled the set gets no TERM, only KILL."""
    text = (
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: print('asked=1', flush=True))\n"
        "    print('ready=1', flush=True)\n"
        "    while True: time.sleep(600)\n" + SLEEP
    )
    with supervision(script(text)) as supervised:
        pids = started(supervised, 2)

        stop(supervised, cause=Cause.STALLED)

        assert living(pids) == []
        assert "asked=1" not in supervised.log()
        assert supervised.exits()[0].cause is Cause.STALLED


@pytest.mark.parametrize(("answers", "drained"), [([2.0, 1.0, 0.0], True), ([None] * 99, False)])
def test_a_drain_waits_for_zero_and_not_for_ever(
    answers: list[float | None], *, drained: bool
) -> None:
    """FACT: TERM comes when nothing runs, or, when nobody can say, at the end of the drain."""
    asked: list[float | None] = []

    def running(_: float) -> float | None:
        asked.append(answers[len(asked)])
        return asked[-1]

    settings = StopSettings(30.0 if drained else 0.3, 0.6, 5.0)
    ready = script("print('ready=1', flush=True)\n" + SLEEP)
    with supervision(ready, stop=settings, running_requests=running) as supervised:
        pids = started(supervised, 1)

        stop(supervised, drain=True)

        assert living(pids) == []
        assert (asked == answers) is drained


def test_a_leader_that_dies_leaves_children_that_are_killed() -> None:
    """FACT: children of a dead leader are the set's and end without being asked."""
    text = "if os.fork() == 0: time.sleep(600)\nprint('ready=1', flush=True)\n" + SLEEP
    with supervision(script(text)) as supervised:
        leader, child = started(supervised, 2)
        os.kill(leader, signal.SIGKILL)
        assert supervised.exited().signal == signal.SIGKILL
        assert [info.pid for info in supervised.engine.processes()] == [child]

        stop(supervised, cause=Cause.CRASH)

        assert living([child]) == []
        assert procfs.stat(leader) is None
        assert len(supervised.exits()) == 1


@pytest.mark.parametrize("traced", [True, False])
def test_a_double_forked_escapee_is_found(*, traced: bool) -> None:
    """FACT: a setsid'd, re-parented grandchild without an environment is killed with the set.

    Even when nobody looked while its parents lived: an orphan of ours can be nobody else's.
    """
    text = (
        "sys.stdin.read()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print(f'escaped={os.getpid()}', flush=True)\n"
        "        os.execve(sys.executable, ['x', '-ISc', 'import time; time.sleep(600)'], {})\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print('ready=1', flush=True)\n" + ("" if not traced else SLEEP) + "os._exit(7)\n"
    )
    with supervision(script(text)) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        escaped = supervised.said("escaped")
        if traced:
            until(lambda: escaped in supervised.pids())
        else:
            assert supervised.exited().exit_code == 7

        stop(supervised, cause=Cause.OPERATOR if traced else Cause.CRASH)

        assert living([escaped]) == []


def test_d1_on_the_simulator_leaves_nobody() -> None:
    """FACT: EngineCore, worker and tracker outlive the leader's SIGKILL, but not the stop."""
    with supervision(simulator(0)) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        until(lambda: "VLLM::Worker" in supervised.pids().values())
        until(lambda: "Application startup complete" in supervised.log())
        pids = list(supervised.pids())
        os.kill(pids[0], signal.SIGKILL)
        supervised.exited()
        assert len(living(pids)) == 3

        stop(supervised, cause=Cause.CRASH)

        assert living(pids) == []


def test_the_resource_tracker_may_clean_up() -> None:
    """FACT: of a set that is killed the tracker ends last, by itself: shared memory is unlinked."""
    text = (
        "from multiprocessing import resource_tracker\n"
        "name = f'/psm_{os.urandom(8).hex()}'\n"
        "os.close(os.open('/dev/shm' + name, os.O_CREAT | os.O_EXCL, 0o600))\n"
        "resource_tracker.register(name, 'shared_memory')\n"
        "print(f'segment={name}', flush=True)\n"
        "if os.fork() == 0: time.sleep(600)\n"
        "print('ready=1', flush=True)\n" + DEAF + SLEEP
    )
    with supervision(script(text)) as supervised:
        pids = started(supervised, 3)
        segment = Path("/dev/shm") / supervised.log().partition("=/")[2].split()[0]
        assert segment.exists()

        stop(supervised)

        assert living(pids) == []
        assert not segment.exists()


def test_a_hung_simulator_is_stopped() -> None:
    """FACT: a stopped EngineCore and worker (hang) do not survive a stop for a stall."""
    with supervision(simulator(0, "--fault", "hang", "--fault", "ignore_term")) as supervised:
        supervised.engine.start(Cause.OPERATOR)
        until(lambda: "VLLM::Worker" in supervised.pids().values())
        pids = list(supervised.pids())

        stop(supervised, cause=Cause.STALLED)

        assert living(pids) == []


def test_a_reused_pid_is_never_signalled() -> None:
    """FACT: a process with the pid of a recorded member, but another start, gets no signal."""
    with subprocess.Popen(script(SLEEP)) as stranger:
        try:
            info = procfs.stat(stranger.pid)
            assert info is not None
            wrong = (stranger.pid, info.start_ticks - 1)

            assert identity.open_pidfd(*wrong) is None
            table = MemberTable("0" * 16, wrong, Household(), recorded=[wrong], spawned=False)
            StopLadder(table, Household(), StopSettings()).run(drain=False, cause=Cause.CRASH)

            assert table.refresh(full=True) == ()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_an_identity_of_another_boot_is_nobody() -> None:
    """FACT: the same pid and start on another boot is no process of this one."""
    info = procfs.stat(os.getpid())
    assert info is not None
    ours = identity.ProcessIdentity.of(info)

    pidfd = identity.open_identity(ours)
    assert pidfd is not None
    os.close(pidfd)
    assert identity.open_identity(identity.ProcessIdentity(info.pid, info.start_ticks, "x")) is None


def test_a_zombie_below_a_living_member_is_not_waited_for() -> None:
    """FACT: a zombie whose parent never reaps it is no member, and its parent is."""
    text = "if os.fork() == 0: os._exit(0)\nprint('ready=1', flush=True)\n" + SLEEP
    with supervision(script(text)) as supervised:
        pids = started(supervised, 1)
        until(lambda: zombies(pids[0]))

        assert [info.pid for info in supervised.engine.processes()] == pids
        stop(supervised)


def zombies(parent: int) -> list[ProcessInfo]:
    """Dead children that were not reaped."""
    infos = (procfs.stat(pid) for pid in procfs.children(parent))
    return [info for info in infos if info is not None and info.state == "Z"]


def test_what_cannot_be_ended_is_named() -> None:
    """FACT: with no time to kill, and no cgroup to kill at once, the error names each survivor."""
    with grown(f"{DEAF}print('ready=1', flush=True)\n{SLEEP}", housed=False) as set_:
        until(lambda: set_.said("ready"))
        ladder, pid = (
            StopLadder(set_.table, set_.household, StopSettings(0, 0, 0)),
            set_.process.pid,
        )

        with pytest.raises(ActionError, match=rf"cannot end 1 of .*: {pid} python") as caught:
            ladder.run(drain=False, cause=Cause.OPERATOR)

        assert caught.value.unkillable
        assert living([pid]) == [pid]


def test_a_stop_of_nothing_is_nothing() -> None:
    """FACT: an engine that was never started can be stopped."""
    with supervision(script(SLEEP)) as supervised:
        stop(supervised)

        assert supervised.events == []
