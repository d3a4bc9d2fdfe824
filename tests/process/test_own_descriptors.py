"""File descriptors that run out: in the engine, which is told, and in us, who keep a reserve."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.files import descriptors
from tests.support.daemon import Daemon, finish, simulated_command
from tests.support.simulated import ROOT, free_port, until
from tests.support.windows import serving_window
from watchdog.web.app import App
from watchdog.web.server import Server, serve_socket, serve_tcp

CROWD = 300
OFTEN = '[probes.files]\nperiod = "200ms"\n'
ASKS = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
SPENT = """
import os, resource, sys
from tests.support.windows import serving_window
from watchdog.web.app import App
from watchdog.web.server import serve_tcp
server = serve_tcp(App(serving_window()), '127.0.0.1', 0)
server.start()
held = []
try:
    while True:
        held.append(os.open('/dev/null', os.O_RDONLY))
except OSError:
    print(server.port, flush=True)
sys.stdin.readline()
"""
STARTED = """
import subprocess, sys
from watchdog.supervisor import descriptors
descriptors.allow_more()
with subprocess.Popen(['sh', '-c', sys.argv[1]], stdin=-1, stdout=-1, text=True) as child:
    child.stdout.readline()
    descriptors.as_inherited(child.pid)
    child.stdin.write('go\\n')
    child.stdin.flush()
    print(child.stdout.readline().strip())
"""


def limited(soft: int, hard: int, *command: str) -> list[str]:
    """The command, allowed so many open files."""
    return ["prlimit", f"--nofile={soft}:{hard}", *command]


@contextlib.contextmanager
def daemon_with(
    soft: int, hard: int, state_dir: Path, command: list[str], *, config: str = ""
) -> Iterator[Daemon]:
    """A daemon that was allowed so many open files when it was started."""
    state_dir.mkdir()
    (state_dir / "config.toml").write_text(config)
    listen = f"127.0.0.1:{free_port()}"
    log_path = state_dir / "watchdog.log"
    argv = [sys.executable, "-m", "watchdog", "run", "--state-dir", str(state_dir)]
    argv += ["--listen", listen, "--config", str(state_dir / "config.toml"), "--", *command]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            limited(soft, hard, *argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT
        )
    daemon = Daemon(process, listen, state_dir, log_path, 0)
    try:
        yield daemon
    finally:
        finish(daemon)


def tcp(port: int) -> socket.socket:
    """A connection that says nothing."""
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def local(path: Path) -> socket.socket:
    """The same, on a Unix socket."""
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(10)
    raw.connect(str(path))
    return raw


def ended(raw: socket.socket) -> bool:
    """Whether the other side has ended the connection."""
    with contextlib.suppress(TimeoutError, BlockingIOError):
        raw.settimeout(0)
        return raw.recv(1) == b""
    return False


def asked(port: int) -> int:
    """The status of a well-behaved question."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=20) as answer:
        return int(answer.status)


def test_a_crowd_does_not_keep_us_from_our_work(tmp_path: Path) -> None:
    """FACT: however many connections stand on both doors, the work goes on.

    With 64 descriptors in all an engine that is killed is started again, questions are answered,
    and the log is written.
    """
    state_dir = tmp_path / "state"
    with (
        daemon_with(64, 64, state_dir, simulated_command(free_port())) as daemon,
        contextlib.ExitStack() as crowd,
    ):
        leader = daemon.wait_ready(120)["pid"]
        port = int(daemon.listen.rpartition(":")[2])
        for _ in range(CROWD):
            crowd.enter_context(tcp(port))
            crowd.enter_context(local(state_dir / "control.sock"))
        use = descriptors(daemon.process.pid)
        assert use is not None
        assert use.used < use.limit == 64
        os.kill(leader, signal.SIGKILL)
        daemon.wait_event("engine.exited")
        until(lambda: daemon.engine().get("pid") not in {None, leader}, 120)
        daemon.wait_ready(120)
        assert daemon.get("/livez")[0] == 200
        done = daemon.command("pause", "--reason", "crowded")
        assert done.returncode == 0, done.stderr
        assert len(daemon.events("engine.ready")) == 2
        assert not daemon.events("watchdog.bug")


@pytest.mark.parametrize(
    ("sets", "limit"),
    [("true", "256"), ("ulimit -Sn 100", "100"), ("ulimit -Hn 3000; ulimit -Sn 3000", "3000")],
)
def test_what_a_child_asks_for_itself_it_keeps(sets: str, limit: str) -> None:
    """FACT: a child keeps the limit that it has set itself; any other has what we came with."""
    ask = f"{sets}; echo; read x; ulimit -Sn"
    argv = limited(256, 4096, sys.executable, "-c", STARTED, ask)
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=30)
    assert (done.returncode, done.stdout.strip()) == (0, limit), done.stderr


def test_a_server_without_one_free_descriptor_answers() -> None:
    """FACT: when nothing can be opened any more, one caller after the other is still answered."""
    argv = limited(64, 64, sys.executable, "-c", SPENT)
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            assert [asked(port) for _ in range(5)] == [200] * 5
            with contextlib.ExitStack() as crowd:
                for _ in range(20):
                    crowd.enter_context(tcp(port))
                assert [asked(port) for _ in range(5)] == [200] * 5
        finally:
            process.kill()


@pytest.fixture(params=["tcp", "unix"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server with places for sixteen connections; its path where it has one."""
    path = tmp_path / "control.sock"
    app = App(serving_window(), control=True)
    unix = request.param == "unix"
    server = serve_socket(app, path, 16) if unix else serve_tcp(app, "127.0.0.1", 0, 16)
    server.start()
    try:
        yield server, path
    finally:
        server.stop()


def test_who_has_waited_longest_makes_room(small: tuple[Server, Path]) -> None:
    """FACT: in a crowd the oldest silent connections are ended, and who asks is answered."""
    server, path = small
    with contextlib.ExitStack() as stack:

        def enter() -> socket.socket:
            return stack.enter_context(local(path) if path.exists() else tcp(server.port))

        crowd = [enter() for _ in range(40)]
        caller = enter()
        caller.sendall(ASKS)
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: all(ended(one) for one in crowd[:20]))
        assert not any(ended(one) for one in crowd[-5:])


def test_an_engine_without_descriptors_is_told(tmp_path: Path) -> None:
    """FACT: an engine whose connections use up its limit is found, with the command that helps.

    Its limit is the one that we came with; our own has risen as far as it may.
    """
    port = free_port()
    rule = '[[rule]]\nname = "files-engine-full"\nfor = "0s"\nclear_for = "0s"\n'
    command, config = simulated_command(port), f"{rule}\n{OFTEN}"
    with (
        daemon_with(60, 4096, tmp_path / "state", command, config=config) as daemon,
        contextlib.ExitStack() as crowd,
    ):
        leader = daemon.wait_ready(120)["pid"]
        assert resource.prlimit(leader, resource.RLIMIT_NOFILE) == (60, 4096)
        assert resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE) == (4096, 4096)
        assert until(lambda: daemon.metric("vllm_watchdog_files_own_limit")) == 4096
        for _ in range(80):
            crowd.enter_context(tcp(port))
        fired = daemon.wait_event("finding.firing", wanted=_is_full)
        assert fired["files.engine_limit"] == 60
        assert fired["fix"] == f"prlimit --nofile=1048576:1048576 --pid {leader}"
        crowd.close()
        daemon.wait_event("finding.resolved", wanted=_is_full)


def _is_full(event: dict[str, object]) -> bool:
    return event["rule"] == "files-engine-full"
