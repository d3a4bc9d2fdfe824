"""An engine that somebody else starts: watched, told of, and ended only where that is allowed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running
from tests.support.managers import Manager, managed
from tests.support.outages import READY
from tests.support.simulated import ROOT, alive, free_port, until


@contextlib.contextmanager
def attached(tmp_path: Path, to: Manager, how: str) -> Iterator[Daemon]:
    """A daemon that is attached to what the manager runs."""
    flags = ("--attach", how)
    with running(tmp_path / "s", to.command, to.port, *flags) as daemon:
        yield daemon


def core_of(manager: Manager) -> int:
    """The pid of its EngineCore."""
    return until(lambda: [p for p, words in manager.members().items() if "EngineCore" in words])[0]


def another(daemon: Daemon, manager: Manager, before: int) -> int:
    """The next leader, once the daemon sees it serve."""
    until(lambda: manager.leader != before, READY)
    until(lambda: daemon.engine().get("pid") not in {None, before}, READY)
    return int(daemon.wait_ready(READY)["pid"])


def test_it_is_found_watched_and_left(tmp_path: Path) -> None:
    """FACT: its whole set is seen, a canary proves it, and our end is not its end."""
    with managed() as manager, attached(tmp_path, manager, "report") as daemon:
        engine = daemon.wait_ready(READY)
        assert engine["pid"] == manager.leader
        assert set(manager.members()) <= set(engine["pids"])
        assert daemon.get("/healthz")[0] == 200
        daemon.send(signal.SIGTERM)
        assert daemon.ended() == 0
        assert daemon.events("engine.left")
        assert alive(manager.leader)
        assert len(manager.pids) == 1


def test_attached_to_report_it_tells_of_a_death_and_touches_nobody(tmp_path: Path) -> None:
    """FACT: the incident opens and ends with the other one's restart; the orphan is let be."""
    with managed() as manager, attached(tmp_path, manager, "report") as daemon:
        daemon.wait_ready(READY)
        first, core = manager.leader, core_of(manager)
        os.kill(core, signal.SIGSTOP)  # it would end itself otherwise when its leader is gone
        os.kill(first, signal.SIGKILL)
        daemon.wait_event("incident.opened")
        assert another(daemon, manager, first) == manager.leader
        closed = daemon.wait_event("incident.resolved")
        assert closed["rule"] == "engine-dead"
        assert alive(core)
        assert daemon.events("decision.act") == []
        assert {line["reason"] for line in daemon.events("decision.hold")} >= {"observe"}


def test_attached_to_report_no_command_moves_it(tmp_path: Path) -> None:
    """FACT: stop and restart are refused with one line, exit code 1, and the engine serves on."""
    with managed() as manager, attached(tmp_path, manager, "report") as daemon:
        daemon.wait_ready(READY)
        for verb in ("stop", "restart"):
            done = daemon.command(verb)
            assert done.returncode == 1
            assert done.stderr == (
                "main: attached to report: somebody else starts and stops this engine\n"
            )
        assert len(manager.pids) == 1
        assert daemon.engine()["pid"] == manager.leader


def test_attached_to_signal_a_hang_is_ended_whole(tmp_path: Path) -> None:
    """FACT: of an engine that hangs behind a 200 the whole set is ended, and started anew."""
    with managed() as manager, attached(tmp_path, manager, "signal") as daemon:
        daemon.wait_ready(READY)
        first, members = manager.leader, manager.members()
        os.kill(core_of(manager), signal.SIGSTOP)
        found = daemon.wait_event("decision.act", wanted=lambda e: e["rule"] != "engine-down")
        assert (found["action"], found["cause"]) == ("restart_engine", "stalled")
        another(daemon, manager, first)
        assert not [pid for pid in members if alive(pid)]
        assert daemon.wait_event("incident.resolved")["rule"] == "engine-stalled"
        assert len(manager.pids) == 2


def test_attached_to_signal_what_a_crash_leaves_is_ended(tmp_path: Path) -> None:
    """FACT: the EngineCore that outlives its leader, and holds the GPU, does not stay."""
    with managed(again=False) as manager, attached(tmp_path, manager, "signal") as daemon:
        daemon.wait_ready(READY)
        core = core_of(manager)
        os.kill(core, signal.SIGSTOP)
        os.kill(manager.leader, signal.SIGKILL)
        until(lambda: not alive(core), READY)
        told = until(lambda: daemon.engine().get("waiting"), READY)
        assert told == "somebody else to start it"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_the_wait_for_somebody_else_keeps_no_shutdown(
    tmp_path: Path, number: signal.Signals
) -> None:
    """FACT: a start that waits for another one to make it ends with us, at once and with 0."""
    port = free_port()
    command = [sys.executable, "-m", "watchdog.simulator", "--port", str(port)]
    with running(tmp_path / "s", command, port, "--attach", "signal") as daemon:
        until(lambda: daemon.engine().get("waiting") == "somebody else to start it", READY)
        daemon.send(number)
        assert daemon.ended() == 0
        names = [line["event"] for line in daemon.events()]
    assert "engine.started" not in names
    assert names[-1] == "watchdog.stopping"
    assert "watchdog.bug" not in names


def test_a_stranger_on_the_port_is_never_taken_for_it(tmp_path: Path) -> None:
    """FACT: who listens there and runs another program is named, and lives on unwatched."""
    port = free_port()
    text = f"import socket, time\ns = socket.create_server(('127.0.0.1', {port}))\ntime.sleep(600)"
    stranger = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT)
    try:
        command = [sys.executable, "-m", "watchdog.simulator", "--port", str(port)]
        with running(tmp_path / "s", command, port, "--attach", "signal") as daemon:
            told = daemon.wait_event("watchdog.degraded")
            assert told["reason"] == (
                f"engine main: process {stranger.pid} (python) listens on port {port} and does not"
                " run the engine's program"
            )
            assert daemon.wait_event("action.started")["action"] == "start_engine"
            assert daemon.engine()["pids"] == []
            assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_engine_of_another_watchdog_is_its_own(tmp_path: Path) -> None:
    """FACT: whoever bears a watchdog's mark is that one's to keep: no second one signals it."""
    with managed(mark="0123456789abcdef") as manager, attached(tmp_path, manager, "signal") as one:
        told = one.wait_event("watchdog.degraded")
        said = f"process {manager.leader} was started by a watchdog: that one keeps it"
        assert told["reason"] == f"engine main: {said}"
        assert one.engine()["pids"] == []
        assert alive(manager.leader)


@pytest.mark.root
def test_out_of_sight_it_is_judged_by_its_answers(tmp_path: Path) -> None:
    """FACT: in a PID namespace of its own the watchdog sees HTTP alone: it says so, and judges."""
    with managed(again=False) as manager, out_of_sight(tmp_path, manager) as daemon:
        engine = daemon.wait_ready(READY)
        assert (engine["pid"], engine["pids"]) == (None, [])
        assert "cannot be seen" in daemon.wait_event("watchdog.degraded")["reason"]
        manager.end()
        gone = daemon.wait_event("engine.exited")
        assert gone["explanation"] == f"nobody listens on port {manager.port} any more"
        until(lambda: daemon.verdict() == "dead", READY)


@contextlib.contextmanager
def out_of_sight(tmp_path: Path, manager: Manager) -> Iterator[Daemon]:
    """A daemon as a sidecar that shares the network alone, attached to what the manager runs."""
    listen, log = f"127.0.0.1:{free_port()}", tmp_path / "watchdog.log"
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    words = [sys.executable, "-m", "watchdog", "run", "--attach", "report", "--listen", listen]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*alone, *words, "--state-dir", str(tmp_path / "s"), "--", *manager.command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
        )
    try:
        yield Daemon(process, listen, tmp_path / "s", log, manager.port)
    finally:
        process.kill()  # and with it, by --kill-child, the daemon
        process.wait()


def test_a_reload_neither_attaches_nor_lets_go(tmp_path: Path) -> None:
    """FACT: only the next watchdog can: the configuration in force stays, with one line why."""
    config = tmp_path / "watchdog.toml"
    with managed() as manager:
        plain = f"[engine.main]\ncommand = {manager.command!r}\n"
        config.write_text(f'{plain}attach = "report"\n')
        with running(tmp_path / "s", (), manager.port, config=config) as daemon:
            daemon.wait_ready(READY)
            config.write_text(plain)
            done = daemon.command("reload")
            assert done.returncode == 2
            assert "engine.main.attach: expected as it is" in done.stderr
            assert daemon.engine()["pid"] == manager.leader
            assert len(manager.pids) == 1
