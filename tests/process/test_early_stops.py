"""A stop that comes while ``run`` still loads, as PID 1 and not: it is kept, and then obeyed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running, simulated_command
from tests.support.namespaces import boxed, folder, simulated, watchdog
from tests.support.simulated import ROOT, alive, free_port, until

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
READY = 120.0
STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]
_SLOW = """
import importlib, os, sys, time
print('loads', flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.01)
sys.path.remove(os.path.dirname(__file__))
del sys.modules['click']
importlib.import_module('click')
"""


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory."""
    with folder() as made:
        yield made


def slowed(command: list[str], go: Path) -> list[str]:
    """``command``, that loads no further than the command line until there is a file ``go``."""
    shadow = go.parent / "slow"
    shadow.mkdir()
    (shadow / "click.py").write_text(_SLOW.format(go=str(go)))
    return ["env", f"PYTHONPATH={shadow}:{ROOT}", *command]


def signals(pid: int, row: str) -> int:
    """One of the masks of signals that the kernel tells of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(row))


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether it has a handler for that signal by now."""
    return bool(signals(pid, "SigCgt:") >> (number - 1) & 1)


def taken(pid: int, number: signal.Signals) -> bool:
    """Whether nothing of that signal is left to be handled."""
    return not signals(pid, "ShdPnd:") >> (number - 1) & 1


@root
@pytest.mark.root
@pytest.mark.parametrize("number", STOPS)
def test_pid_1_keeps_a_stop_until_it_is_up(state: Path, number: signal.Signals) -> None:
    """FACT: it is obeyed once the daemon is up: no engine is started, and the exit code is 0."""
    go = state.parent / "go"
    with boxed(slowed(watchdog(state, "--", *simulated()), go), state) as box:
        until(lambda: "loads" in box.log_path.read_text())
        box.send(number)
        until(lambda: taken(box.pid, number))
        go.touch()
        assert box.ended() == 0
        names = [line["event"] for line in box.lines()]
    assert "engine.started" not in names
    assert names[-1] == "watchdog.stopping"


@root
@pytest.mark.root
def test_a_second_stop_ends_pid_1_that_never_comes_up(state: Path) -> None:
    """FACT: nothing has been started that had to be stopped in order; nothing is left behind."""
    never = state.parent / "never"
    with boxed(slowed(watchdog(state, "--", *simulated()), never), state) as box:
        until(lambda: "loads" in box.log_path.read_text())
        box.send(signal.SIGTERM)
        until(lambda: taken(box.pid, signal.SIGTERM))
        box.send(signal.SIGINT)
        assert box.ended() == 128 + signal.SIGINT
    assert not [*state.iterdir()]


@root
@pytest.mark.root
@pytest.mark.parametrize("later", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6])
def test_pid_1_obeys_a_stop_at_any_moment_of_its_start(state: Path, later: float) -> None:
    """FACT: from its first handler on no stop is lost, and what was started is ended in order."""
    with boxed(watchdog(state, "--", *simulated()), state) as box:
        until(lambda: handles(box.pid, signal.SIGTERM))
        time.sleep(later)
        box.send(signal.SIGTERM)
        assert box.ended() == 0
        names = [line["event"] for line in box.lines()]
    assert names.count("engine.started") == names.count("engine.stopped")
    assert names[-1] == "watchdog.stopping"


@root
@pytest.mark.root
def test_any_other_command_is_ended_as_pid_1(state: Path) -> None:
    """FACT: a command that starts nothing is ended at once by what ends any other process."""
    never = state.parent / "never"
    command = [sys.executable, "-m", "watchdog", "--json", "status", "--watch"]
    with boxed(slowed(command, never), state) as box:
        until(lambda: "loads" in box.log_path.read_text())
        box.send(signal.SIGTERM)
        assert box.ended() == 128 + signal.SIGTERM


def loading(daemon: Daemon, go: Path) -> subprocess.Popen[bytes]:
    """Another daemon in the place of one that was killed; it loads until ``go`` is there."""
    words = ["--state-dir", str(daemon.state_dir), "--listen", f"127.0.0.1:{free_port()}"]
    run = [sys.executable, "-m", "watchdog", "--state-dir", "/nowhere", "run", *words]
    out = daemon.state_dir.parent / "loading.log"
    with out.open("wb") as log:
        process = subprocess.Popen(
            slowed([*run, "--", *simulated_command(daemon.engine_port)], go), stdout=log, stderr=log
        )
    try:
        until(lambda: "loads" in out.read_text())
    except BaseException:
        process.kill()
        raise
    return process


def test_a_stop_that_comes_early_stops_what_was_left(tmp_path: Path) -> None:
    """FACT: the engine that a killed watchdog left is stopped, though the next one still loads."""
    port, go = free_port(), tmp_path / "go"
    with running(tmp_path / "state", simulated_command(port), port) as daemon:
        pids = daemon.wait_ready(READY)["pids"]
        daemon.process.kill()
        daemon.process.wait()
        with loading(daemon, go) as process:
            try:
                process.send_signal(signal.SIGTERM)
                until(lambda: taken(process.pid, signal.SIGTERM))
                go.touch()
                assert process.wait(60) == 0
            finally:
                process.kill()
        assert not [pid for pid in pids if alive(pid)]
