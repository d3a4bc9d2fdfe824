"""``run`` where something is in its way: it refuses before anything starts, or it serves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.support.daemon import running, simulated_command
from tests.support.simulated import ROOT, free_port, until

READY = 120.0
SECRET = "sk-very-secret-key"  # noqa: S105 - made up, to be looked for


def refused(*words: str, state_dir: Path, cwd: Path = ROOT) -> str:
    """The one line with which ``run WORDS`` ends, having exited 2."""
    done = subprocess.run(
        [sys.executable, "-m", "watchdog", "run", "--state-dir", str(state_dir), *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (*log, line) = done.stderr.splitlines()
    assert log == []
    return line


def leaves_a_trace(directory: Path) -> list[str]:
    """The command of an engine that writes a file when it is started."""
    write = f"open({str(directory / 'started')!r}, 'w')"
    return [sys.executable, "-c", write, "--port", str(free_port())]


def test_a_taken_listen_port_starts_no_engine(tmp_path: Path) -> None:
    """Where somebody listens on our port we exit 2 with one line, and no engine was started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("--listen", listen, "--", *leaves_a_trace(tmp_path))
        line = refused(*words, state_dir=tmp_path / "state")
    assert line.startswith(f"cannot listen on {listen}: ")
    assert not (tmp_path / "started").exists()


def test_a_state_path_too_long_starts_no_engine(tmp_path: Path) -> None:
    """A directory whose socket has no room in the kernel's 107 bytes is refused in one line."""
    words = ("--listen", "127.0.0.1:0", "--", *leaves_a_trace(tmp_path))
    assert "--state-dir" in refused(*words, state_dir=tmp_path / ("x" * 110))
    assert not (tmp_path / "started").exists()


def test_without_an_engine_there_is_nothing_to_run(tmp_path: Path) -> None:
    """Neither COMMAND nor configuration: exit 2, and the line says what to give."""
    assert refused(state_dir=tmp_path, cwd=tmp_path).startswith("no engine: ")


def test_an_unwritable_state_directory_is_memory_only(tmp_path: Path) -> None:
    """Below a regular file nothing can be kept: warned about, and the engine serves all the same.

    Not with permissions, which root does not feel.
    """
    (tmp_path / "file").touch()
    port = free_port()
    flags = ("--state-dir", str(tmp_path / "file" / "below"))
    with running(tmp_path, simulated_command(port), port, *flags) as daemon:
        daemon.wait_ready(10)
        assert daemon.get("/healthz")[0] == 200
        reason = daemon.wait_event("watchdog.degraded")["reason"]
    assert reason.startswith(f"cannot write to {tmp_path}/file/below: ")


def test_a_closed_stderr_is_no_reason_to_die(tmp_path: Path) -> None:
    """Started with descriptor 2 closed the watchdog runs without a log, and stops cleanly."""
    port, listen = free_port(), free_port()
    words = [sys.executable, "-m", "watchdog", "run", "--state-dir", str(tmp_path)]
    words += ["--listen", f"127.0.0.1:{listen}"]
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *words, "--", *simulated_command(port)],
        cwd=ROOT,
    )
    try:
        until(lambda: answers(listen), READY)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    """Whether the watchdog looks alive; the port alone is bound before signals are heeded."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_api_keys_are_nowhere(tmp_path: Path) -> None:
    """Keys of the command line and the environment are in no answer and no line of the log.

    They are used: the engine that asks for them becomes ready, and again after a crash.
    """
    port = free_port()
    command = simulated_command(port, "--api-key", SECRET)
    with running(tmp_path, command, port, environment={"VLLM_API_KEY": SECRET + "2"}) as daemon:
        before = daemon.wait_ready(READY)
        os.kill(before["pid"], signal.SIGKILL)
        incident = daemon.wait_event("incident.resolved", 60)["incident"]
        api = [f"/api/v1/{path}" for path in ("status", "incidents", f"incidents/{incident}")]
        for path in ("/", "/metrics", "/healthz", "/readyz", "/livez", *api):
            code, body = daemon.get(path)
            assert code == 200, path
            assert SECRET not in body, path
        assert SECRET not in daemon.command("status").stdout
    assert SECRET not in daemon.log_path.read_text()
