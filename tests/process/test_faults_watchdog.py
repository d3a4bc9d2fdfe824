"""The watchdog itself under pressure: as the real daemon, with a simulated engine in its care."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running, simulated_command
from tests.support.outages import FAST, READY, engine, fault, recovered, starts
from tests.support.simulated import ROOT, alive, free_port, stat_fields, until

BROKEN = [
    ('[engine.main]\nstart_timeout = "soon"\n', "engine.main.start_timeout"),
    ("[policy]\nbudget = 5\n", "policy"),
    ('[[rule]]\nname = "x"\nsubject = "engine"\nwhen = "engine.nothing > 1"\n', "rule"),
    ('[engine.main]\nstart_timeout = "30', ""),
]
"""A wrong value, an unknown key, an unknown sample, and a file that is half written."""


@pytest.mark.parametrize(("text", "key"), BROKEN)
def test_w3_a_bad_configuration_starts_nothing(tmp_path: Path, text: str, key: str) -> None:
    """FACT (W3): exit 2, one line with file and key, and no engine."""
    file = tmp_path / "watchdog.toml"
    file.write_text(text)
    command = simulated_command(free_port())
    with running(tmp_path / "s", command, 0, config=file) as daemon:
        assert daemon.ended(READY) == 2
        (line,) = daemon.log_path.read_text().splitlines()
    assert line.startswith(f"{file}: ")
    assert key in line


@pytest.mark.parametrize(("text", "key"), BROKEN)
def test_w3_a_bad_configuration_at_a_reload_changes_nothing(
    tmp_path: Path, text: str, key: str
) -> None:
    """FACT (W3): refused with file and key; the old one stays, and so does the engine."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        (tmp_path / "watchdog.toml").write_text(text)
        done = daemon.command("reload")
        assert done.returncode != 0
        assert str(tmp_path / "watchdog.toml") in done.stdout + done.stderr
        assert key in done.stdout + done.stderr
        assert daemon.events("config.rejected")
        assert daemon.engine()["generation"] == before["generation"]
        assert daemon.get("/healthz")[0] == 200


@contextlib.contextmanager
def as_pid_1(folder: Path, *flags: str) -> Iterator[Daemon]:
    """A daemon that is the first process of a PID namespace; the outer process is ``unshare``."""
    port, listen = free_port(), f"127.0.0.1:{free_port()}"
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
    words += ["-m", "watchdog", "run", "--state-dir", str(folder), "--listen", listen]
    words += ["--", *simulated_command(port, *flags)]
    log = folder / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=ROOT
        )
    daemon = Daemon(process, listen, folder, log, port)
    try:
        yield daemon
    finally:
        process.kill()  # and with it, by --kill-child, the whole namespace
        process.wait()


def inside(process: int) -> dict[int, str]:
    """All descendants of the process by their pids out here, and their states."""
    found: dict[int, str] = {}
    frontier = [process]
    while frontier:
        parent = frontier.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for pid in map(int, task.read_text().split()):
                    found[pid] = (stat_fields(pid) or ["gone"])[0]
                    frontier.append(pid)
    return found


def test_w4_term_as_pid_1(tmp_path: Path) -> None:
    """FACT (W4): zombies that come to PID 1 are reaped; TERM ends the engine, all of it, exit 0."""
    with as_pid_1(tmp_path) as daemon:
        daemon.wait_ready(READY)
        settled = len(inside(daemon.process.pid))
        fault(daemon, "double_fork", 1)
        until(lambda: len(inside(daemon.process.pid)) > settled)
        until(lambda: len(inside(daemon.process.pid)) <= settled)
        assert "Z" not in inside(daemon.process.pid).values()
        everyone = inside(daemon.process.pid)
        (init,) = (
            Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children")
            .read_text()
            .split()
        )
        os.kill(int(init), signal.SIGTERM)
        assert daemon.ended(90) == 0
        assert not [pid for pid in everyone if alive(pid)]
        assert daemon.events("engine.exited")[-1]["cause"] == "operator"


def test_w6_an_action_without_effect_is_no_silent_loop(tmp_path: Path) -> None:
    """FACT (W6): restarts that succeed and help nothing: each told, then the breaker, then rest."""
    config = '[engine.main]\nstart_timeout = "1s"\nstop = { drain_timeout = "0s" }\n' + FAST
    with engine(tmp_path, "--fault", "never_ready", config=config, ready=False) as daemon:
        daemon.wait_event("breaker.opened", 90)
        until(lambda: daemon.engine()["breaker_open"])
        ended = [e for e in daemon.events("action.finished") if e["action"] == "restart_engine"]
        assert [e["result"] for e in ended] == ["ok"] * 3
        assert (
            len([e for e in daemon.events("incident.opened") if e["severity"] == "critical"]) == 1
        )
        held = daemon.wait_event("decision.hold", wanted=lambda e: e["reason"] == "breaker_open")
        assert held["rule"] == "engine-dead"
        assert starts(daemon) == 4
        assert daemon.get("/livez")[0] == 503


def test_w7_a_crowd_of_bad_clients_hurts_nobody(tmp_path: Path) -> None:
    """FACT (W7): 100 that never finish, 10 MB of header, junk: scrapes and repairs go on.

    The leader is killed while they all hold their connections.
    """
    with engine(tmp_path) as daemon, contextlib.ExitStack() as crowd:
        before = daemon.engine()
        host, _, port = daemon.listen.partition(":")
        for number in range(100):
            client = crowd.enter_context(socket.create_connection((host, int(port)), 10))
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * number)
        with socket.create_connection((host, int(port)), 10) as big:
            big.sendall(b"GET / HTTP/1.1\r\nX: ")
            with contextlib.suppress(OSError):
                for _ in range(160):
                    big.sendall(b"a" * 65536)
        junk = crowd.enter_context(socket.create_connection((host, int(port)), 10))
        with contextlib.suppress(OSError):
            junk.sendall(b"\x00\xff" * 10_000 + b"GET / HTTP/1.1\r\n\r\n" * 50)
        os.kill(before["pid"], signal.SIGKILL)
        assert recovered(daemon, before)["outcome"] == "recovered"
        assert daemon.get("/metrics")[0] == 200


def test_w7_a_thousand_scrapes_at_once_are_answered(tmp_path: Path) -> None:
    """FACT (W7): 1,000 scrapes by 50 clients: every one is a whole page, and the engine serves."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            pages = list(pool.map(lambda _: daemon.get("/metrics"), range(1000)))
        assert {status for status, _ in pages} == {200}
        assert all("vllm_watchdog_engine_state" in page for _, page in pages)
        assert daemon.engine()["generation"] == before["generation"]
        assert daemon.get("/livez")[0] == 200


def test_w8_a_log_that_nobody_reads_blocks_nothing(tmp_path: Path) -> None:
    """FACT (W8): stderr is a full pipe: crashes are repaired all the same, and the stop works."""
    port, listen = free_port(), f"127.0.0.1:{free_port()}"
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    words = [sys.executable, "-m", "watchdog", "run", "--state-dir", str(tmp_path)]
    words += ["--listen", listen, "--", *simulated_command(port)]
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writer, cwd=ROOT
    )
    os.close(writer)
    daemon = Daemon(process, listen, tmp_path, tmp_path / "none", port)
    try:
        daemon.wait_ready(READY)
        for _ in range(2):
            killed_and_back(daemon)
        assert daemon.get("/livez")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not daemon.survivors()
    finally:
        os.close(reader)
        process.kill()
        process.wait()
        for pid in daemon.survivors():
            os.kill(pid, signal.SIGKILL)


def killed_and_back(daemon: Daemon) -> None:
    """Kill the leader and wait for another generation that serves; not by the log."""
    before = daemon.engine()
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: daemon.is_another(before), READY)
    daemon.wait_ready(READY)
    assert not [pid for pid in before["pids"] if alive(pid)]
