"""The real Prometheus and Alertmanager for tests, and somebody who is told."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.simulated import PATIENCE, ROOT, free_port, until

DEPLOY = ROOT / "deploy"


@dataclass
class Server:
    """One program that answers HTTP on a port of its own."""

    process: subprocess.Popen[bytes]
    port: int

    def get(self, path: str, **query: str) -> Any:  # noqa: ANN401 - JSON
        """What it answers; None while it does not."""
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.loads(answer.read())
        except OSError:
            return None


@contextlib.contextmanager
def _serving(argv: list[str], port: int, folder: Path, probe: str) -> Iterator[Server]:
    with (folder / "out.log").open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, cwd=folder)
    one = Server(process, port)
    try:
        until(lambda: one.get(probe) is not None, 30)
        yield one
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)


@contextlib.contextmanager
def alertmanager(folder: Path, config: str, port: int = 0) -> Iterator[Server]:
    """An Alertmanager without a cluster; what it knows is kept in ``folder``."""
    folder.mkdir(exist_ok=True)
    port = port or free_port()
    (folder / "alertmanager.yml").write_text(config)
    argv = [
        "prometheus-alertmanager",
        "--config.file=alertmanager.yml",
        "--storage.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with _serving(argv, port, folder, "/api/v2/status") as one:
        yield one


@contextlib.contextmanager
def prometheus(folder: Path, config: str) -> Iterator[Server]:
    """A Prometheus; its configuration names rules and targets."""
    folder.mkdir(exist_ok=True)
    port = free_port()
    (folder / "prometheus.yml").write_text(config)
    argv = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with _serving(argv, port, folder, "/api/v1/status/runtimeinfo") as one:
        yield one


@dataclass
class Hook:
    """Takes JSON by POST. ``answers`` are given first, in turn, then ``status`` for ever."""

    port: int = 0
    status: int = 200
    answers: list[int] = field(default_factory=list)
    got: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, path: str = "") -> list[Any]:
        """What came to ``path``, or anywhere."""
        return [body for where, _, body in tuple(self.got) if path in {"", where}]


@contextlib.contextmanager
def hook(**settings: Any) -> Iterator[Hook]:  # noqa: ANN401 - the fields of Hook
    """Somebody who is told."""
    one = Hook(**settings)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Keep what came, and answer as told."""
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            one.got.append((self.path, dict(self.headers), body))
            status = one.answers.pop(0) if one.answers else one.status
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", f"{one.url}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", one.port), Handler)
    server.daemon_threads = True
    one.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield one
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
