"""The duties of PID 1, and a PID namespace that is shared: the real daemon in real namespaces."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.namespaces import Box, boxed, folder, simulated, watchdog
from tests.support.simulated import alive, cmdline, until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

_ORPHANS = 10_000
_NOISE = 4096
"""KiB that a daemon's memory moves by while nothing happens."""
_FORKS = f"""
import os
for number in range({_ORPHANS} // 100):
    parent = os.fork()
    if parent == 0:
        if number % 2: os.setsid()
        for _ in range(100):
            if os.fork() == 0: os._exit(os.getpid() % 7)
        os._exit(0)
    os.waitpid(parent, 0)
"""
_PAUSE = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.sigwait({signal.SIGTERM})
"""
"""What a pod with one PID namespace for all has for PID 1: it reaps, and does nothing else."""


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory."""
    with folder() as made:
        yield made


@pytest.fixture
def box(state: Path) -> Iterator[Box]:
    """The daemon as PID 1, with an engine that serves."""
    with boxed(watchdog(state, "--", *simulated()), state) as started:
        started.ready()
        yield started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_container_that_is_stopped_stops_its_engine(box: Box, number: signal.Signals) -> None:
    """FACT: a signal to PID 1 ends the engine first, then the daemon, with exit code 0."""
    until(lambda: len(box.engine()["pids"]) > 2)
    everybody = box.members().values()
    box.send(number)
    assert box.ended() == 0
    names = [line["event"] for line in box.lines()]
    story = ["engine.ready", "engine.exited", "engine.stopped", "watchdog.stopping"]
    assert [name for name in names if name in story] == story
    assert not [pid for pid in everybody if alive(pid)]


def test_a_killed_engine_is_replaced_and_leaves_no_zombie(box: Box) -> None:
    """FACT: PID 1 adopts what a killed leader leaves, ends and reaps it, and starts anew."""
    before = box.engine()
    os.kill(box.outer(before["pid"]), signal.SIGKILL)
    after = box.ready(other_than=before["generation"])
    assert not set(before["pids"]) & set(box.members())
    assert after["starts"] == 2
    assert not box.zombies()


def test_nobody_in_the_container_can_kill_it(box: Box) -> None:
    """FACT: the kernel keeps PID 1 from SIGKILL and from signals it does not handle."""
    for number in ("KILL", "USR1", "STOP"):
        assert box.spawn("kill", f"-{number}", "1").wait() == 0
    generation = box.engine()["generation"]
    assert box.ready()["generation"] == generation
    assert box.process.poll() is None


def _memory(pid: int) -> int:
    """Resident, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def _files(pid: int) -> list[str]:
    """The files that it has open, sorted; connections come and go by themselves."""
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(one.readlink()))
    return sorted(name for name in found if not name.startswith("socket:"))


def test_ten_thousand_orphans_are_reaped_without_growth(box: Box) -> None:
    """FACT: none of 10,000 orphans stays a zombie; neither memory nor descriptors grow."""
    generation = box.engine()["generation"]
    until(lambda: any("/recording/" in name for name in _files(box.pid)))
    files, memory = _files(box.pid), _memory(box.pid)
    with box.spawn(sys.executable, "-ISc", _FORKS) as forking:
        assert forking.wait() == 0
    until(lambda: not box.zombies())
    until(lambda: _files(box.pid) == files)
    assert _memory(box.pid) - memory < _NOISE
    assert box.ready()["generation"] == generation
    assert not box.lines("watchdog.bug")


def test_the_exit_code_is_that_of_the_container(state: Path) -> None:
    """FACT: an engine that is given up ends PID 1 with 75 where that is configured."""
    command = watchdog(state, "--", "false")
    config = Path(command[command.index("--config") + 1])
    config.write_text(
        '[policy]\non_give_up = "exit"\nboot_budget = { count = 1, window = "1h" }\n'
        'backoff = { initial = "10ms" }\n'
    )
    with boxed(command, state) as box:
        assert box.ended() == 75


# --- one PID namespace for several containers -----------------------------------------------------


@contextlib.contextmanager
def pod(state: Path) -> Iterator[tuple[Box, subprocess.Popen[bytes]]]:
    """A PID 1 that does nothing, and beside it an engine of somebody else's."""
    with boxed([sys.executable, "-ISc", _PAUSE], state) as box:
        engine = box.spawn(*simulated())
        until(lambda: box.get("/health", 8000)[0] == 200)
        until(lambda: len(_engine_of(box)) == 3)
        try:
            yield box, engine
        finally:
            engine.kill()
            engine.wait()


def _engine_of(box: Box) -> list[int]:
    titles = {pid: cmdline(pid) for pid in box.members().values()}
    return [p for p, t in titles.items() if t.startswith("VLLM::") or _is_leader(t)]


def _is_leader(title: str) -> bool:
    """And not the watchdog that has the same command behind its own."""
    return "watchdog.simulator" in title and "--state-dir" not in title


@pytest.mark.parametrize("mode", ["act", "observe"])
def test_a_strangers_engine_is_seen_and_not_signalled(state: Path, mode: str) -> None:
    """FACT: beside an engine of another container it says that, and starts and signals nothing.

    The engine serves on, then and when the watchdog has ended.
    """
    log = state / "sidecar.log"
    with pod(state) as (box, _):
        strangers = sorted(_engine_of(box))
        words = watchdog(state, "--mode", mode, "--", *simulated())
        with box.spawn(*words, log=log) as sidecar:
            box.log_path = log
            try:
                told = until(
                    lambda: [e for e in box.lines("finding.firing") if "foreign" in e["rule"]]
                )
                assert told[0]["rule"] == "foreign-manager"
                assert box.get("/livez")[0] == 200
                assert sorted(_engine_of(box)) == strangers
                (pid,) = (p for p in box.members().values() if "--state-dir" in cmdline(p))
                os.kill(pid, signal.SIGTERM)
                assert sidecar.wait(60) == 0
            finally:
                sidecar.kill()
        assert sorted(_engine_of(box)) == strangers
        assert box.get("/health", 8000)[0] == 200
        assert not box.lines("engine.started")
