"""What not even SIGKILL ends: it counts as alive, is named with where it is stuck, and blocks."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.simulated import until
from tests.support.trees import Supervision, grown, living, script, supervision
from watchdog import procfs
from watchdog.contracts import ActionError
from watchdog.core.model import Cause
from watchdog.supervisor.cgroup import Cgroup
from watchdog.supervisor.ladder import StopLadder, StopSettings

FREEZER = Path("/sys/fs/cgroup/freezer")
SETTINGS = StopSettings(drain_timeout=0.0, term_timeout=0.1, kill_timeout=0.4)
SLEEP = "time.sleep(600)\n"
DYING_LEADER = (
    "import ctypes, threading\n"
    "def stay():\n"
    "    print(f'thread={threading.get_native_id()}', flush=True)\n"
    "    time.sleep(600)\n"
    "threading.Thread(target=stay, daemon=True).start()\n"
    "signal.signal(signal.SIGUSR1, lambda *_: ctypes.CDLL(None).syscall(60, 0))\n" + SLEEP
)
"""On SIGUSR1 its first thread ends, and only that: system call 60 is exit on x86-64."""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        not (FREEZER / "cgroup.procs").exists() or os.geteuid() != 0,
        reason="needs a freezer of version 1, which SIGKILL does not reach into",
    ),
]


@dataclass(frozen=True)
class Ice:
    """A freezer: what is put into it is in state D until it thaws."""

    folder: Path

    def freeze(self, task: int) -> None:
        """Freeze one thread."""
        (self.folder / "freezer.state").write_text("FROZEN")
        (self.folder / "tasks").write_text(str(task))
        until(lambda: self.state(task) == "D")

    def state(self, task: int) -> str:
        """The letter of a thread's state."""
        return Path(f"/proc/{task}/stat").read_text().rpartition(") ")[2][0]

    def thaw(self) -> None:
        """Let go of all."""
        (self.folder / "freezer.state").write_text("THAWED")


@pytest.fixture
def ice() -> Iterator[Ice]:
    """A freezer that is thawed, empty and gone afterwards."""
    folder = FREEZER / f"vllm-watchdog-test-{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    try:
        yield Ice(folder)
    finally:
        Ice(folder).thaw()
        until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


@contextlib.contextmanager
def frozen_engine(ice: Ice, text: str) -> Iterator[Supervision]:
    """An engine that is started; whatever of it was frozen is thawed at the end."""
    with supervision(script(text), stop=SETTINGS) as supervised:
        try:
            supervised.engine.start(Cause.OPERATOR)
            yield supervised
        finally:
            ice.thaw()


def refused(supervised: Supervision) -> ActionError:
    """The error of a stop that cannot end everything."""
    with pytest.raises(ActionError) as caught:
        supervised.engine.stop(drain=False, cause=Cause.STALLED)
    assert caught.value.unkillable
    return caught.value


def test_a_dead_leader_with_a_stuck_thread_lives(ice: Ice) -> None:
    """FACT: a zombie leader with a thread in D is unkillable, told with both, and blocks a start.

    When the thread comes back to itself, the same stop ends it.
    """
    with frozen_engine(ice, DYING_LEADER) as supervised:
        thread, pid = supervised.said("thread"), supervised.pid
        ice.freeze(thread)
        os.kill(pid, 10)
        until(lambda: ice.state(pid) == "Z")

        error = refused(supervised)

        assert str(error).startswith(
            f"cannot end 1 of the engine's processes: {pid} python Z, thread {thread} D in "
        )
        assert living([pid]) == [pid]
        assert supervised.exits() == []
        with pytest.raises(ActionError, match=f"{pid} lives"):
            supervised.engine.start(Cause.CRASH)

        ice.thaw()
        supervised.engine.stop(drain=False, cause=Cause.STALLED)
        assert living([pid]) == []
        assert procfs.stat(pid) is None


def test_the_evidence_shows_where_in_the_kernel(ice: Ice) -> None:
    """FACT: the message has a few functions of the kernel stack in one line, the evidence more."""
    with frozen_engine(ice, "print('ready=1', flush=True)\n" + SLEEP) as supervised:
        supervised.said("ready")
        pid = supervised.pid
        ice.freeze(pid)

        error = refused(supervised)

        stack = procfs.kernel_stack(pid, pid)
        assert len(stack) > 3
        where = " < ".join(stack[:3])
        assert str(error) == f"cannot end 1 of the engine's processes: {pid} python D in {where}"
        long = " < ".join(stack[:12])
        assert error.evidence == ((f"survivor_{pid}", f"{pid} python D in {long}"),)
        assert "\n" not in str(error)


def test_many_survivors_are_counted_and_a_few_are_told(ice: Ice) -> None:
    """FACT: of seven that cannot be ended four are in the line, which says how many more there are.

    The evidence has all of them.
    """
    text = (
        "for _ in range(6):\n"
        "    if os.fork() == 0: break\n"
        "print(f'pid={os.getpid()}', flush=True)\n" + SLEEP
    )
    with frozen_engine(ice, text) as supervised:
        until(lambda: supervised.log().count("pid=") == 7)
        pids = sorted(int(word.partition("=")[2]) for word in supervised.log().split())
        for pid in pids:
            ice.freeze(pid)

        error = refused(supervised)

        assert str(error).startswith("cannot end 7 of the engine's processes: ")
        assert str(error).endswith("; and 3 more")
        assert sorted(name for name, _ in error.evidence) == sorted(f"survivor_{p}" for p in pids)
        assert len(str(error)) < 800


def test_what_can_be_ended_is_ended(ice: Ice) -> None:
    """FACT: one that is stuck keeps nobody else alive."""
    text = "child = os.fork()\nif child: print(f'child={child}', flush=True)\n" + SLEEP
    with frozen_engine(ice, text) as supervised:
        child = supervised.said("child")
        ice.freeze(child)

        error = refused(supervised)

        assert [name for name, _ in error.evidence] == [f"survivor_{child}"]
        assert living([supervised.pid, child]) == [child]


def test_the_cgroup_is_killed_when_pidfds_do_not_suffice(ice: Ice, tmp_path: Path) -> None:
    """FACT: before a stop gives up it has asked the kernel to kill the whole cgroup."""
    for name in ("cgroup.kill", "cgroup.procs"):
        (tmp_path / name).write_text("")
    with grown("print('pid=1', flush=True)\n" + SLEEP, housed=False) as set_:
        until(lambda: set_.said("pid"))
        ice.freeze(set_.process.pid)
        set_.table.cgroup = Cgroup(tmp_path)
        try:
            with pytest.raises(ActionError, match=f"{set_.process.pid} python D"):
                StopLadder(set_.table, set_.household, SETTINGS).run(drain=False, cause=Cause.CRASH)
        finally:
            ice.thaw()

        assert (tmp_path / "cgroup.kill").read_text() == "1"
