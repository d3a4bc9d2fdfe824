"""A generation's own cgroup: who sits in it is a member; the stop's last proof is the kernel's."""

import contextlib
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated import until
from tests.support.trees import QUICK, carriers, grown, living, script
from watchdog.contracts import ActionError
from watchdog.core.model import Cause
from watchdog.supervisor.cgroup import LEAF, Cgroup, Limits, limited, made
from watchdog.supervisor.household import Household
from watchdog.supervisor.ladder import StopLadder, StopSettings
from watchdog.supervisor.members import MemberTable

SLEEP = "time.sleep(600)\n"


def usable() -> bool:
    """Whether this process may make a cgroup of version 2."""
    probe = made(f"probe-{uuid.uuid4().hex}").cgroup
    return probe is not None and probe.remove()


kernel = pytest.mark.skipif(not usable(), reason="no cgroup v2 can be made below our own")


@pytest.fixture
def own() -> Iterator[Cgroup]:
    """A new cgroup, which is empty and gone afterwards."""
    cgroup = made(uuid.uuid4().hex).cgroup
    assert cgroup is not None
    try:
        yield cgroup
    finally:
        cgroup.kill()
        until(cgroup.remove)


@contextlib.contextmanager
def stranger(text: str = SLEEP) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a session of its own and nothing in its environment."""
    with subprocess.Popen(
        script(text), env={}, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[bytes]) -> int:
    """The number in the next line that it prints."""
    assert process.stdout is not None
    return int(process.stdout.readline())


@pytest.mark.root
@kernel
def test_who_was_forked_before_the_move_is_moved_too(own: Cgroup) -> None:
    """FACT: the leader is taken with its children and theirs; who is born later is born in it."""
    text = (
        "if os.fork() == 0:\n"
        "    if os.fork() == 0: print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "sys.stdin.readline()\n"
        "if os.fork() == 0: print(os.getpid(), flush=True)\n" + SLEEP
    )
    with stranger(text) as process:
        early = said(process)
        assert own.is_empty()

        assert own.take(process.pid)

        assert {process.pid, early} < set(own.pids())
        assert len(own.pids()) == 3
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert said(process) in own.pids()
        assert not own.is_empty()
        assert not own.remove()
        assert own.kill()
        until(own.is_empty)
        assert own.remove()


@pytest.mark.root
@kernel
def test_nobody_is_not_taken(own: Cgroup) -> None:
    """FACT: a process that is gone cannot be moved, which is said and is no error."""
    with stranger() as process:
        process.kill()
        process.wait()

        assert own.take(process.pid) is False


@pytest.mark.root
@kernel
@pytest.mark.parametrize("full", [True, False])
def test_whoever_sits_in_it_is_a_member(own: Cgroup, *, full: bool) -> None:
    """FACT: without session, descent, environment or record the cgroup alone makes a member."""
    with stranger() as process:
        household = Household()
        household.register(process.pid)
        table = MemberTable("f" * 32, None, household)
        table.cgroup = own
        assert table.refresh(full=full) == ()

        own.take(process.pid)

        assert [info.pid for info in table.refresh(full=full)] == [process.pid]
        assert table.pids_ever() == {process.pid}
        StopLadder(table, household, QUICK).run(drain=False, cause=Cause.CRASH)
        assert living([process.pid]) == []
        assert own.is_empty()


@pytest.mark.root
@kernel
def test_a_cgroup_below_it_belongs_to_it(own: Cgroup) -> None:
    """FACT: who moved on into a cgroup below is still in it, and that one is removed with it."""
    below = own.path / "below" / "deeper"
    below.mkdir(parents=True)
    with stranger() as process:
        (below / "cgroup.procs").write_text(str(process.pid))

        assert own.pids() == (process.pid,)
        assert not own.is_empty()
        assert own.kill()
        process.wait()
        until(own.is_empty)
        assert own.remove()
        assert not own.path.exists()


@pytest.mark.root
@kernel
def test_who_runs_from_the_kill_does_not_escape() -> None:
    """FACT: who forks and exits faster than anybody can look is ended, and the cgroup is empty.

    The dead are reaped meanwhile, as the daemon does: they would use up the pids of the box.
    """
    token = f"runners-{uuid.uuid4().hex}"
    text = (
        f"# {token}\n"
        "end = time.monotonic() + 20\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        while time.monotonic() < end:\n"
        "            if os.fork(): os._exit(0)\n"
        "            os.setsid()\n"
        "print('pid=1', flush=True)\n" + SLEEP
    )
    with grown(text, housed=True, token=token) as set_:
        with reaping(set_.household):
            until(lambda: set_.said("pid"))

            StopLadder(set_.table, set_.household, QUICK).run(drain=False, cause=Cause.STALLED)

        assert carriers(token) == []
        assert set_.cgroup is not None
        assert set_.cgroup.remove()


@contextlib.contextmanager
def reaping(household: Household) -> Iterator[None]:
    """A thread that reaps the orphans until the end."""
    over = threading.Event()

    def reap() -> None:
        while not over.wait(0.005):
            household.reap_orphans()

    thread = threading.Thread(target=reap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.root
@kernel
def test_a_later_watchdog_finds_it_again(own: Cgroup) -> None:
    """FACT: a recorded path is taken up when it is a generation's cgroup, and only then."""
    name = own.path.name.removeprefix("vllm-watchdog-")
    assert Cgroup.at(str(own.path), name) == own
    assert Cgroup.at(str(own.path), "another") is None
    assert Cgroup.at(own.path.parent, name) is None
    assert Cgroup.at(f"{own.path}-gone", f"{name}-gone") is None
    assert Cgroup.at("", name) is None
    assert Cgroup.at(f"/{'x/' * 9000}vllm-watchdog-{name}", name) is None
    assert Cgroup.at(f"/\0/vllm-watchdog-{name}", name) is None


@pytest.mark.root
@kernel
def test_the_same_generation_is_not_made_twice(own: Cgroup) -> None:
    """FACT: a cgroup that is there is nobody's to share: the second gets none, with the reason."""
    second = made(own.path.name.removeprefix("vllm-watchdog-"))

    assert second.cgroup is None
    assert second.why == f"no cgroup of its own: cannot make {own.path}: file exists"


# --- files that look like the kernel's -----------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A cgroup made of files that has a memory controller, and a generation's below it."""
    folder = tmp_path / "box"
    (folder / f"{LEAF}-1").mkdir(parents=True)
    (folder / "cgroup.type").write_text("domain\n")
    (folder / "cgroup.controllers").write_text("cpu memory pids\n")
    (folder / "cgroup.subtree_control").write_text("\n")
    (folder / "cgroup.procs").write_text("")
    for name in ("memory.max", "pids.max", "cgroup.procs"):
        (folder / f"{LEAF}-1" / name).write_text("max\n")
    return folder


def below(base: Path) -> Cgroup:
    """The generation's."""
    return Cgroup(base / f"{LEAF}-1")


def test_limits_are_written_where_the_controllers_are(base: Path) -> None:
    """FACT: a controller that the children lack is enabled, and the limit is set and reported."""
    done = limited(below(base), Limits(64 << 30))

    assert (done.why, done.limits) == ("", ("memory.max=68719476736",))
    assert (base / "cgroup.subtree_control").read_text() == "+memory"
    assert (below(base).path / "memory.max").read_text().strip() == "68719476736"
    assert (below(base).path / "pids.max").read_text() == "max\n"


def test_what_the_children_have_already_is_not_enabled_again(base: Path) -> None:
    """FACT: with the controller on, nobody is moved, whoever sits in the parent."""
    (base / "cgroup.subtree_control").write_text("memory pids\n")
    (base / "cgroup.procs").write_text(f"{os.getppid()}\n")

    done = limited(below(base), Limits(1 << 30, 4096))

    assert (done.why, done.limits) == ("", ("memory.max=1073741824", "pids.max=4096"))
    assert (base / "cgroup.subtree_control").read_text() == "memory pids\n"


def test_strangers_are_not_moved_for_a_limit(base: Path) -> None:
    """FACT: a cgroup that others sit in too is left as it is, and the reason names one of them."""
    (base / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")

    done = limited(below(base), Limits(pids_max=4096))

    assert done.cgroup == below(base)
    assert done.limits == ()
    assert done.why == f"no limit pids.max=4096: 1 other processes sit in {base}, one is 1"
    assert not (base / LEAF).exists()
    assert (base / "cgroup.subtree_control").read_text() == "\n"


def test_alone_we_move_into_a_leaf(base: Path) -> None:
    """FACT: we and what we started move on into our leaf; a kernel that refuses is quoted."""
    (base / LEAF).mkdir()
    (base / LEAF / "cgroup.procs").write_text("")
    with stranger() as child:
        (base / "cgroup.procs").write_text(f"{os.getpid()}\n{child.pid}\n")

        done = limited(below(base), Limits(1 << 30))

        assert (base / LEAF / "cgroup.procs").read_text().startswith(str(child.pid))
        assert done.why == (  # files do not lose who moved on
            f"no limit memory.max=1073741824: cannot move out of {base} into {base / LEAF}: "
            "new processes keep coming"
        )


def test_a_missing_controller_is_named(base: Path) -> None:
    """FACT: a hybrid layout has no controllers in version 2: a cgroup without limits, and why."""
    (base / "cgroup.controllers").write_text("\n")

    done = limited(below(base), Limits(1 << 30))

    assert done.cgroup == below(base)
    assert done.why == (
        f"no limit memory.max=1073741824: cgroup v2 has no memory controller in {base}"
    )


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        ("", "no cgroup v2 is mounted where we sit"),
        ("41 31 0:38 / {0} rw - cgroup2 cgroup2 rw\n", "{0}/box is no cgroup"),
        ("41 31 0:38 /box {0} rw - cgroup2 cgroup2 rw\n", "{0} is no cgroup"),
        ("41 31 0:38 /other {0} rw - cgroup2 cgroup2 rw\n", "no cgroup v2 is mounted where we sit"),
        ("41 31 0:38 / {0}\\040x rw - cgroup2 cgroup2 rw\n", "cannot make {0} x/box/vllm-"),
        ("41 31 0:38 / {0} rw - cgroup cgroup rw,pids\n", "no cgroup v2 is mounted where we sit"),
    ],
)
def test_what_is_not_there_is_a_line(base: Path, mount: str, why: str, tmp_path: Path) -> None:
    """FACT: without a usable cgroup v2 there is a reason in one line, and no error."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / str(os.getpid())).mkdir()
    (proc / str(os.getpid()) / "cgroup").write_text("4:memory:/x\n0::/box\n")
    (proc / "self" / "mountinfo").write_text(mount.replace("{0}", str(tmp_path)))

    done = made("2", Limits(pids_max=99), str(proc))

    assert done.cgroup is None
    assert done.why.startswith(f"no cgroup of its own: {why.replace('{0}', str(tmp_path))}")
    assert done.why.endswith("; no limit pids.max=99")
    assert not (base / f"{LEAF}-2").exists()


def test_our_leaf_is_not_nested(tmp_path: Path) -> None:
    """FACT: who sits in our leaf makes cgroups next to it, not below."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / str(os.getpid())).mkdir()
    (proc / str(os.getpid()) / "cgroup").write_text(f"0::/box/{LEAF}\n")
    mount = f"41 31 0:38 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    (proc / "self" / "mountinfo").write_text(mount)

    assert f"{tmp_path}/box/{LEAF}-2: no such" in made("2", proc=str(proc)).why


def test_an_old_kernel_cannot_kill_at_once(base: Path) -> None:
    """FACT: without cgroup.kill the answer is no, and nothing is made in its place."""
    assert below(base).kill() is False
    assert not (below(base).path / "cgroup.kill").exists()


def test_a_set_that_cannot_be_seen_is_not_proven_empty(base: Path) -> None:
    """FACT: nobody by any mark, but the kernel says populated: the stop fails as unkillable."""
    (below(base).path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    table = MemberTable("f" * 32, None, Household())
    table.cgroup = below(base)

    with pytest.raises(ActionError, match="is not empty, its processes cannot be seen") as caught:
        StopLadder(table, Household(), StopSettings(0, 0, 0.05)).run(drain=False, cause=Cause.CRASH)

    assert caught.value.unkillable
    (below(base).path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert StopLadder(table, Household(), QUICK).run(drain=False, cause=Cause.CRASH)


def test_we_are_never_a_member(base: Path) -> None:
    """FACT: a file that names this process among the cgroup's does not make it a member."""
    (below(base).path / "cgroup.procs").write_text(f"{os.getpid()}\n0\n")
    table = MemberTable("f" * 32, None, Household())
    table.cgroup = below(base)

    assert table.refresh(full=True) == ()
    assert table.refresh() == ()
