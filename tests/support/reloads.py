"""A configuration that tests rewrite, and a daemon on it that is told to reload."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, running, simulated_command
from tests.support.simulated import free_port, until
from watchdog.supervisor.lock import LockHeldError, lock_port

READY = 120.0
"""Seconds until an engine has to serve, on a machine that is busy with other tests."""


@dataclass
class File:
    """A configuration that a test rewrites. ``engines`` are tables by name."""

    path: Path
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    rest: str = ""

    @property
    def port(self) -> int:
        """That of the first engine."""
        command = next(iter(self.engines.values()))["command"]
        return int(command[command.index("--port") + 1])

    def engine(self, name: str = "main", port: int = 0, *flags: str, **keys: Any) -> int:  # noqa: ANN401
        """Configure a simulated engine; its port."""
        port = port or free_port()
        stop = {"drain_timeout": "20s", "term_timeout": "5s"}
        self.engines[name] = {"command": simulated_command(port, *flags), "stop": stop, **keys}
        return port

    def write(self, rest: str | None = None) -> None:
        """Write it as a whole."""
        self.rest = self.rest if rest is None else rest
        self.path.write_text("\n".join([*self._tables(), self.rest, ""]))

    def _tables(self) -> Iterator[str]:
        for name, keys in self.engines.items():
            yield f"[engine.{name}]"
            yield from (f"{key} = {_toml(value)}" for key, value in keys.items())


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


@contextlib.contextmanager
def watched(file: File, *flags: str) -> Iterator[Daemon]:
    """A daemon on the file whose first engine serves."""
    file.write()
    with running(file.path.parent / "s", (), file.port, *flags, config=file.path) as daemon:
        until(lambda: len(ready(daemon)) == len(file.engines), READY)
        yield daemon


def engines(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """The engines of the status by name."""
    found = {one["name"]: one for one in daemon.status().get("engines", [])}
    for one in found.values():
        daemon.remember(one["pids"])
    return found


def ready(daemon: Daemon) -> set[str]:
    """Names of the engines that can serve."""
    return {n for n, one in engines(daemon).items() if one["verdict"] in {"ready", "busy"}}


def reload(daemon: Daemon, code: int = 0) -> dict[str, Any]:
    """The answer of ``reload --json``, which has to exit with ``code``."""
    done = daemon.command("reload", "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return dict(json.loads(done.stdout))


def fault(port: int, name: str) -> None:
    """Switch a fault of the engine on ``port`` on."""
    post(port, "/simulator/fault", {"name": name, "value": None})


def post(port: int, path: str, body: object) -> int:
    """The status of one request."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)


def rule(name: str, **keys: object) -> str:
    """One ``[[rule]]``."""
    lines = (f"{key} = {json.dumps(value)}" for key, value in {"name": name, **keys}.items())
    return "\n".join(["[[rule]]", *lines])


def is_locked(port: int) -> bool:
    """Whether another watchdog could not have the port."""
    try:
        lock_port(port).release()
    except LockHeldError:
        return True
    return False
