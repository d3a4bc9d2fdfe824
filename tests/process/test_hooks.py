"""The operator's own commands before a start and after a stop."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated import alive, until
from tests.support.trees import script
from watchdog.supervisor import identity
from watchdog.supervisor.hooks import Hook, run
from watchdog.supervisor.household import Household, become_reaper
from watchdog.supervisor.members import MemberTable
from watchdog.supervisor.spawn import Launch

LONG = 60.0
STUBBORN = (
    "import signal, subprocess\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "open(sys.argv[-1], 'w').write(f'{os.getpid()} {child.pid}')\n"
    "time.sleep(600)\n"
)


class Bench:
    """One engine's place, and what runs hooks for it."""

    def __init__(self, folder: Path) -> None:
        self.household = Household()
        self.launch = Launch("main", ("true",), folder / "engine.log", {"ITS_OWN": "value"})

    def run(self, *hooks: Hook, cut: bool = False) -> str | None:
        """All of them."""
        return run(hooks, "pre_start", self.launch, self.household, lambda: cut)

    def log(self) -> str:
        """What they wrote."""
        return self.launch.log_path.read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench; orphans come to this process."""
    assert become_reaper()
    bench = Bench(tmp_path)
    yield bench
    bench.household.reap_orphans()


def test_they_run_in_order_with_the_engines_environment(bench: Bench) -> None:
    """Each writes into the engine's log, knows which hook it is, and has what the engine has."""
    show = "print(os.environ['VLLM_WATCHDOG_HOOK'], os.environ['ITS_OWN'], sys.argv[-1])\n"
    first, second = (Hook((*script(show), word), LONG) for word in ("one", "two"))
    assert bench.run(first, second) is None
    assert bench.log() == "pre_start value one\npre_start value two\n"


def test_the_first_that_fails_ends_it(bench: Bench) -> None:
    """The sentence names the hook and how it ended; those behind it do not run."""
    failing = Hook(script("sys.exit(3)\n"), LONG)
    never = Hook(script("print('never')\n"), LONG)
    wrong = bench.run(Hook(("true",), LONG), failing, never)
    assert wrong is not None
    assert wrong.startswith("pre_start[1] (")
    assert wrong.endswith("exited with status 3")
    assert "never" not in bench.log()


def test_a_signal_is_named(bench: Bench) -> None:
    """A hook that was killed did not succeed."""
    wrong = bench.run(Hook(script(f"os.kill(os.getpid(), {signal.SIGKILL:d})\n"), LONG))
    assert wrong is not None
    assert wrong.endswith("was ended by SIGKILL")


def test_a_program_that_is_missing(bench: Bench) -> None:
    """One line, as for an engine."""
    wrong = bench.run(Hook(("/no/such/program",), LONG))
    assert wrong is not None
    assert "did not run: cannot start '/no/such/program': no such file" in wrong


@pytest.mark.parametrize("why", ["late", "cut"])
def test_nothing_is_left_of_one_that_takes_too_long(bench: Bench, tmp_path: Path, why: str) -> None:
    """A hook that ignores TERM, and its child in a session of its own, are gone afterwards.

    So also when nobody waits for it any more.
    """
    note = tmp_path / "pids"
    hook = Hook((*script(STUBBORN), str(note)), 2.0 if why == "late" else LONG)
    wrong = run(
        (hook,), "pre_start", bench.launch, bench.household, lambda: why == "cut" and _told(note)
    )
    assert wrong is not None
    expected = {"late": "took more than 2 s", "cut": "was not waited for any more"}
    assert wrong.endswith(expected[why])
    pids = [int(pid) for pid in note.read_text().split()]
    until(lambda: not any(map(alive, pids)))


def _told(note: Path) -> bool:
    return note.exists() and len(note.read_text().split()) == 2


def test_what_a_good_one_leaves_running_is_let_be(bench: Bench, tmp_path: Path) -> None:
    """A tunnel that a hook opened lives on; only a hook that fails takes its own with it."""
    note = tmp_path / "pid"
    tunnel = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open(sys.argv[-1], 'w').write(str(child.pid))\n"
    )
    assert bench.run(Hook((*script(tunnel), str(note)), LONG)) is None
    pid = int(note.read_text())
    pidfd = identity.open_pidfd(pid, _ticks(pid))
    assert pidfd is not None
    assert alive(pid)
    identity.send(pidfd, signal.SIGKILL)
    until(lambda: identity.gone(pidfd))
    bench.household.reap_orphans()


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[19])


def test_secrets_of_a_command_are_not_told(bench: Bench) -> None:
    """FACT: the sentence goes into log and status: it has the program and no argument."""
    wrong = bench.run(Hook(("sh", "-c", "TOKEN=sesame; exit 1"), LONG))
    assert wrong == "pre_start[0] (sh) exited with status 1"


NAKED = (
    "import subprocess\n"
    "child = subprocess.Popen(['sleep', '600'], start_new_session=True, env={})\n"
    "open(sys.argv[-1], 'w').write(str(child.pid))\n"
)


def test_nothing_is_left_of_one_that_fails(bench: Bench, tmp_path: Path) -> None:
    """FACT: what a hook started that then failed is gone: the next try would start it again."""
    note = tmp_path / "pid"
    failing = Hook((*script(f"{NAKED}sys.exit(3)\n"), str(note)), LONG)
    try:
        wrong = bench.run(failing)
        assert wrong is not None
        assert wrong.endswith("exited with status 3")
        until(lambda: not alive(int(note.read_text())))
    finally:
        _end(bench, int(note.read_text()))


def test_what_a_good_one_leaves_is_no_engines(bench: Bench, tmp_path: Path) -> None:
    """FACT: a daemon without a word in its environment, left by a hook, outlives the engine's stop.

    nginx is one: it writes over its environment, and a reload may start it.
    """
    note = tmp_path / "pid"
    engine = subprocess.Popen(["sleep", "600"], start_new_session=True)
    bench.household.register(engine.pid)
    bench.household.generation_began("the engine")
    try:
        table = MemberTable("the engine", (engine.pid, _ticks(engine.pid)), bench.household)
        assert bench.run(Hook((*script(NAKED), str(note)), LONG)) is None
        left = int(note.read_text())
        assert left in {info.pid for info in bench.household.orphans()}
        assert [info.pid for info in table.refresh(full=True)] == [engine.pid]
        assert [info.pid for info in table.refresh()] == [engine.pid]
    finally:
        engine.kill()
        engine.wait()
        _end(bench, int(note.read_text()))


def test_who_was_there_before_a_hook_is_not_its(bench: Bench, tmp_path: Path) -> None:
    """FACT: a hook takes no orphan from an engine that was there before the hook was."""
    note = tmp_path / "pid"
    leader = subprocess.Popen((*script(f"{NAKED}sys.exit()\n"), str(note)), start_new_session=True)
    bench.household.register(leader.pid)
    bench.household.generation_began("the engine")
    table = MemberTable("the engine", (leader.pid, _ticks(leader.pid)), bench.household)
    try:
        until(lambda: _said(note))
        until(lambda: int(note.read_text()) in {one.pid for one in bench.household.orphans()})
        bench.household.hook_began("a hook")
        assert [info.pid for info in table.refresh()] == [int(note.read_text())]
    finally:
        leader.wait()
        _end(bench, int(note.read_text()))


def _said(note: Path) -> bool:
    return note.exists() and note.read_text() != ""


def _end(bench: Bench, pid: int) -> None:
    """End one process that a test has left, if it has."""
    pidfd = identity.open_pidfd(pid, _ticks(pid)) if alive(pid) else None
    if pidfd is None:
        return
    identity.send(pidfd, signal.SIGKILL)
    until(lambda: identity.gone(pidfd))
    os.close(pidfd)
    bench.household.reap_orphans()
