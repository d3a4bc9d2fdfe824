"""Starts simulated engines for tests, talks to them, and always kills the whole tree by pid."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds until a condition that never comes true fails the test."""


def until(look: Callable[[], T], patience: float = PATIENCE) -> T:
    """The first true value; fails the test when there is none in time."""
    deadline = time.monotonic() + patience
    while not (value := look()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
    return value


def free_port() -> int:
    """A port that nothing is bound to at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat behind the name: state, parent, group, session...; empty when gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def cmdline(pid: int) -> str:
    """Arguments with blanks between, or the title that replaced them."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def session_members(session: int) -> dict[int, str]:
    """Living processes of a session, and their command lines."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {
        pid: cmdline(pid)
        for pid in pids
        if len(f := stat_fields(pid)) > 3 and int(f[3]) == session and f[0] not in "ZX"
    }


@dataclass
class Simulated:
    """One running engine in a session and a temporary directory of its own."""

    process: subprocess.Popen[bytes]
    port: int
    directory: Path

    @classmethod
    def start(cls, *flags: str, **environment: str) -> Self:
        """Spawn it; does not wait for anything."""
        directory = Path(tempfile.mkdtemp(prefix="sim"))
        port = free_port()
        command = [sys.executable, "-m", "watchdog.simulator", "--port", str(port)]
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--startup-time", "0", *flags],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment}
                | {"TMPDIR": str(directory)},
            )
        return cls(process, port, directory)

    @property
    def pid(self) -> int:
        """The leader."""
        return self.process.pid

    def log(self) -> str:
        """Everything printed so far."""
        return (self.directory / "log").read_text(errors="replace")

    def members(self) -> dict[int, str]:
        """The living processes of the session."""
        return session_members(self.pid)

    def member(self, title: str) -> int:
        """The pid of the living process with the title, waiting for it."""
        return until(lambda: next((p for p, t in self.members().items() if t == title), 0))

    def ready(self) -> Self:
        """Wait for /health 200."""
        until(lambda: self.status("/health") == 200)
        return self

    def wait(self) -> int:
        """The leader's exit status."""
        return self.process.wait(PATIENCE)

    def kill_all(self) -> None:
        """SIGKILL to all but the resource tracker, which then cleans up and ends by itself."""
        for pid, title in self.members().items():
            if "resource_tracker" not in title:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        until(lambda: not self.members())
        shutil.rmtree(self.directory)

    # --- HTTP ---------------------------------------------------------------------------------

    def call(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        key: str = "",
        patience: float = PATIENCE,
    ) -> tuple[int, bytes]:
        """Status and body; raises OSError (TimeoutError) when there is no answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=patience) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def status(self, path: str, body: object = None, **options: Any) -> int:  # noqa: ANN401
        """The status, 0 when refused or timed out."""
        try:
            return self.call(path, body, **options)[0]
        except OSError:
            return 0

    def complete(self, tokens: int = 1, **options: Any) -> int:  # noqa: ANN401
        """The status of one completion, 0 when it timed out."""
        return self.status("/v1/completions", {"prompt": "a b", "max_tokens": tokens}, **options)

    def metrics(self) -> dict[str, float]:
        """Series with their labels, without the engine's process_ and _created series."""
        lines = self.call("/metrics")[1].decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line.startswith("vllm:"))
        return {name: float(value) for name, _, value in pairs if "_created" not in name}

    def metric(self, name: str, engine: int = 0) -> float:
        """One series without further labels."""
        return self.metrics()[f'vllm:{name}{{engine="{engine}",model_name="simulated/tiny"}}']

    def fault(self, name: str, value: object = None) -> int:
        """Set a fault at run time; the status."""
        return self.status("/simulator/fault", {"name": name, "value": value})

    def clear(self, name: str) -> int:
        """Clear a fault; the status."""
        return self.status(f"/simulator/fault/{name}", method="DELETE")

    @contextlib.contextmanager
    def open_completion(self, tokens: int = 1000) -> Iterator[socket.socket]:
        """A request that is on its way and not answered; the client's socket."""
        body = json.dumps({"prompt": "a", "max_tokens": tokens}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            client.sendall(head.encode() + body)
            yield client


def ended(client: socket.socket) -> bool:
    """Whether something can be read: an answer or the end."""
    return bool(select.select([client], [], [], 0)[0])


@contextlib.contextmanager
def simulated(*flags: str, **environment: str) -> Iterator[Simulated]:
    """A running engine whose tree is gone afterwards, whatever happened."""
    engine = Simulated.start(*flags, **environment)
    try:
        yield engine
    finally:
        engine.kill_all()
