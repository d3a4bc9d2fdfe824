"""The real nginx for tests: in the foreground, the test's own child, with a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.simulated import PATIENCE, free_port, until

PROGRAM = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "nginx"
"""``make test`` installs it."""

_CONFIG = """\
daemon off;
master_process on;
worker_processes 2;
pid nginx.pid;
error_log error.log info;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include {include};
    server {{
        listen 127.0.0.1:{port};
        location = /nginx {{ return 204; }}
        location / {{
            proxy_pass http://{upstream};
            proxy_buffering off;
            proxy_read_timeout 60s;
        }}
    }}
}}
"""


@dataclass
class Nginx:
    """One nginx below ``folder`` that includes a group, and where it listens."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def argv(self) -> list[str]:
        """The program with its own prefix and configuration."""
        return [PROGRAM, "-p", f"{self.folder}/", "-e", "error.log", "-c", "nginx.conf"]

    @property
    def reload(self) -> list[str]:
        """What is configured as its reload command."""
        return [*self.argv, "-s", "reload"]

    def check(self) -> tuple[int, str]:
        """Whether it likes its configuration: 0, and what it says."""
        done = subprocess.run([*self.argv, "-t"], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    def start(self) -> None:
        """Run it; returns when it answers."""
        with (self.folder / "out.log").open("wb") as out:
            self.process = subprocess.Popen(self.argv, stdout=out, stderr=out)
        until(lambda: (self.folder / "nginx.pid").exists() and self.workers())

    def workers(self) -> list[int]:
        """The pids of its children."""
        assert self.process is not None
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def log(self) -> str:
        """What it has noted of errors."""
        return (self.folder / "error.log").read_text(errors="replace")

    def end(self) -> None:
        """End it, by its pid, with its workers."""
        if self.process is None or self.process.poll() is not None:
            return
        workers = self.workers()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def nginx(folder: Path, include: Path, upstream: str = "vllm") -> Iterator[Nginx]:
    """An nginx that is not started yet and includes ``include``; it is gone afterwards."""
    folder.mkdir()
    one = Nginx(folder, free_port())
    config = _CONFIG.format(include=include, port=one.port, upstream=upstream)
    (folder / "nginx.conf").write_text(config)
    try:
        yield one
    finally:
        one.end()
