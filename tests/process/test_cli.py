"""The command line as a person or a script meets it: help, mistakes, no daemon."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer

import pytest

from tests.support.simulated import ROOT, free_port
from tests.support.windows import FakeWindow, serving_window
from watchdog import __version__
from watchdog.cli.root import COMMANDS
from watchdog.snapshot import Snapshot
from watchdog.web.app import App
from watchdog.web.server import serve_socket


def cli(
    *words: str, cwd: Path = ROOT, python_path: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``vllm-watchdog WORDS`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "watchdog", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((python_path, str(ROOT))), **environment},
    )


@pytest.fixture(name="window")
def fixture_window(tmp_path: Path) -> Iterator[FakeWindow]:
    """A daemon's control socket in ``tmp_path``, without a daemon behind it."""
    window = serving_window()
    server = serve_socket(App(window, control=True), tmp_path / "control.sock")
    server.start()
    yield window
    server.stop()


@pytest.mark.parametrize("command", ["", *(c for c in COMMANDS if c != "simulate-engine")])
def test_help_fits_a_screen_and_shows_an_example(command: str) -> None:
    """Help of each command has at most 24 lines of 80 columns, with an example; the list 40."""
    done = cli(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= (24 if command else 40)
    assert max(map(len, lines)) <= 80
    assert f"  vllm-watchdog {command}".rstrip() in done.stdout.partition("Examples:")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["status", "--nonsense"],
        ["pause"],
        ["pause", "--reason", "x", "--for", "3 parsecs"],
        ["run", "--mode", "sleepy", "--", "x"],
        ["run", "--simulate", "--", "x"],
        ["run", "--config", "/nonexistent.toml", "--", "x"],
        ["run", "--listen", "nowhere", "--", "x"],
        ["check", "--config", "/nonexistent.toml"],
        ["simulate-engine", "--nonsense"],
        ["pause", "--reason", "\udcff"],
        ["stop", "\udcff"],
        ["run", "--", "vllm", "serve", "\udcff"],
        ["check", "--", "vllm", "serve", "m", "--served-model-name", "\udcff"],
    ],
)
def test_a_mistake_is_exit_2_without_a_traceback(words: list[str], tmp_path: Path) -> None:
    """What cannot be understood ends with exit code 2 and words on stderr only."""
    done = cli(*words, VLLM_WATCHDOG_STATE_DIR=str(tmp_path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert "no daemon" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["status", "--json"],
        ["status", "--watch"],
        ["start"],
        ["stop", "main"],
        ["restart"],
        ["resume"],
        ["reset-breaker"],
        ["pause", "--reason", "x"],
    ],
)
def test_without_a_daemon_it_is_exit_3_in_one_line(words: list[str], tmp_path: Path) -> None:
    """Where no daemon answers, every command that needs one says where it looked."""
    done = cli(*words, "--state-dir", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith(f"no daemon answers at {tmp_path}/control.sock; engines serve on")


def test_a_daemon_that_cannot_answer_is_told_in_one_line(tmp_path: Path) -> None:
    """An answer that is an error is exit 1 with its words, not a traceback."""

    class Broken(FakeWindow):
        def snapshot(self) -> Snapshot:
            raise RuntimeError("no state")

    server = serve_socket(App(Broken(serving_window().shown)), tmp_path / "control.sock")
    server.start()
    try:
        done = cli("status", "--state-dir", str(tmp_path))
    finally:
        server.stop()
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "internal error: RuntimeError: no state" in done.stderr


class OtherWords(BaseHTTPRequestHandler):
    """A daemon of another version: its status lacks most of what this one has."""

    def do_GET(self) -> None:
        """The same for every path."""
        body = b'{"version": "9.9\\u001b[31m", "engines": [{"name": "main"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not a word."""


@pytest.mark.parametrize(
    ("words", "code"),
    [(["status"], 1), (["status", "--watch"], 1), (["drill", "D1"], 2), (["status", "--json"], 0)],
)
def test_a_daemon_of_another_version_is_told_in_one_line(
    words: list[str], code: int, tmp_path: Path
) -> None:
    """FACT: after an upgrade, before the restart, what is not understood is said; no traceback."""
    with UnixStreamServer(str(tmp_path / "control.sock"), OtherWords) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        done = cli(*words, "--state-dir", str(tmp_path))
        server.shutdown()
        thread.join()
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == (1 if code else 0)
    assert ("not known here" in done.stderr) is bool(code)
    assert "\x1b" not in done.stderr


def test_a_left_over_socket_is_no_daemon(tmp_path: Path) -> None:
    """A socket file that nobody listens on counts as no daemon."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control.sock"))
    assert cli("status", "--state-dir", str(tmp_path)).returncode == 3


def test_status_speaks_to_people_and_to_scripts(window: FakeWindow, tmp_path: Path) -> None:
    """Plain text without escapes in a pipe, the body of the API with --json; before or after."""
    text = cli("status", "--state-dir", str(tmp_path))
    assert text.returncode == 0
    assert "main" in text.stdout
    assert "ready" in text.stdout
    assert "\x1b" not in text.stdout
    before = cli("--json", "--state-dir", str(tmp_path), "status")
    after = cli("status", "--json", "--state-dir", str(tmp_path))
    assert json.loads(before.stdout) == json.loads(after.stdout)
    assert json.loads(after.stdout)["version"] == window.shown.version


def test_status_says_what_a_start_waits_for(window: FakeWindow, tmp_path: Path) -> None:
    """FACT: behind the reasons, and as a key of its own for scripts: null when it does not wait."""
    quiet = json.loads(cli("status", "--json", "--state-dir", str(tmp_path)).stdout)
    assert quiet["engines"][0]["waiting"] is None
    assert "waits for" not in cli("status", "--state-dir", str(tmp_path)).stdout
    text = "GPU 0: 3.0 GiB still held by process 7 (x), for 4 s"
    window.shown = replace(window.shown, waiting={"main": text})
    assert f"waits for {text}" in cli("status", "--state-dir", str(tmp_path)).stdout
    told = json.loads(cli("status", "--json", "--state-dir", str(tmp_path)).stdout)
    assert told["engines"][0]["waiting"] == text


def test_commands_carry_their_words_and_bring_back_the_exit_code(
    window: FakeWindow, tmp_path: Path
) -> None:
    """What was typed reaches the daemon; its refusal is on stderr with its exit code."""
    where = ("--state-dir", str(tmp_path))
    done = cli("pause", "--reason", "a b", "--for", "30m", *where)
    assert (done.returncode, done.stdout) == (0, "pause: done\n")
    refused = cli("stop", "broken", *where)
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", "cannot stop it\n")
    told = cli("stop", "broken", "--json", *where)
    assert (told.returncode, json.loads(told.stdout)["ok"]) == (1, False)
    (verb, engine, reason, owner, seconds), stopped, _ = window.asked
    assert (verb, engine, reason, seconds) == ("pause", "", "a b", 1800.0)
    assert owner
    assert stopped[:2] == ("stop", "broken")


def test_check_finds_what_would_keep_an_engine_from_starting(tmp_path: Path) -> None:
    """A missing program, a missing model and a taken port are three problems and exit 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["/nonexistent/vllm", "serve", "/nonexistent/model", "--host", "127.0.0.1"]
        done = cli("check", "--json", "--", *words, "--port", str(port), cwd=tmp_path)
    assert done.returncode == 1
    problems = "\n".join(json.loads(done.stdout)["problems"])
    assert "cannot find the program '/nonexistent/vllm'" in problems
    assert "cannot find the model directory /nonexistent/model" in problems
    assert f"cannot bind port {port}" in problems
    assert f"process {os.getpid()} " in problems


def test_the_version_is_told() -> None:
    """--version prints the version of this tree."""
    done = cli("--version")
    assert done.returncode == 0
    assert done.stdout.split()[-1] == __version__


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_bad_configuration_is_told_line_by_line(command: str, tmp_path: Path) -> None:
    """Each mistake is one line ``FILE: KEY: what was expected``, all of them at once; exit 2."""
    file = tmp_path / "watchdog.toml"
    file.write_text("[watchdog]\nlisten = 5\nnope = 1\n[policy]\non_give_up = 'shout'\n")
    done = cli(command, "--config", str(file), "--state-dir", str(tmp_path), "--", "x")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert sorted(line.split(": ")[:2] for line in lines) == [
        [str(file), "policy.on_give_up"],
        [str(file), "watchdog.listen"],
        [str(file), "watchdog.nope"],
    ]


def test_check_is_content_with_a_program_that_is_there(tmp_path: Path) -> None:
    """Without problems it says so, and exits 0."""
    done = cli("check", "--", sys.executable, "-m", "x", "--port", str(free_port()), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no problems found\n", "")


@pytest.mark.parametrize("rival", ["watchdog", "probes", "actions"])
def test_a_rival_distribution_is_refused(rival: str, tmp_path: Path) -> None:
    """Beside a distribution that owns one of our module names nothing runs: one line, exit 2."""
    info = tmp_path / f"{rival}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {rival}\nVersion: 1.0\n")
    done = cli("status", python_path=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"cannot run: the distribution {rival!r} in {tmp_path} ")
    assert done.stderr.count("\n") == 1


def test_the_simulator_starts_without_the_rest() -> None:
    """``simulate-engine`` imports neither click nor anything else that is not its own."""
    code = (
        "import sys; sys.argv = ['x', 'simulate-engine', '--help']\n"
        "from watchdog.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert "watchdog.simulator.cli" in loaded
    assert not loaded & {"click", "rich", "httpx", "structlog", "msgspec", "waitress"}
