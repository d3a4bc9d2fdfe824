"""Runs the real daemon for tests, asks it what it sees, and leaves not one process behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.simulated import ROOT, alive, free_port, stat_fields, until
from watchdog import procfs

_NEWCOMERS = 2.0
_REST = 0.1


@dataclass
class Daemon:
    """One ``vllm-watchdog run`` with its own state directory and ports."""

    process: subprocess.Popen[bytes]
    listen: str
    state_dir: Path
    log_path: Path
    engine_port: int
    ours: set[tuple[int, str]] = field(default_factory=set)

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET; 0 when nothing answers."""
        try:
            with urllib.request.urlopen(f"http://{self.listen}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def status(self) -> dict[str, Any]:
        """The body of /api/v1/status; empty when the daemon does not answer.

        Newcomers of a set are looked for now and then: asked again until all are told, or a while.
        """
        deadline = time.monotonic() + _NEWCOMERS
        while True:
            code, body = self.get("/api/v1/status")
            told = dict(json.loads(body)) if code == 200 else {}
            if time.monotonic() > deadline or all(map(_whole, told.get("engines", ()))):
                return told
            time.sleep(0.02)

    def engine(self) -> dict[str, Any]:
        """The first engine of the status."""
        engines = self.status().get("engines", [])
        return dict(engines[0]) if engines else {}

    def is_another(self, before: Mapping[str, Any]) -> bool:
        """Whether the first engine runs, and is a later one than it was ``before``."""
        return self.engine().get("generation") not in {None, "", before["generation"]}

    def verdict(self) -> str:
        """The fused verdict of the first engine, "" when unknown."""
        engine = self.engine()
        self.remember(engine.get("pids", ()))
        return str(engine.get("verdict", ""))

    def remember(self, pids: Sequence[int]) -> None:
        """Note processes by identity, to prove later that they are gone."""
        for pid in pids:
            fields = stat_fields(pid)
            if fields:
                self.ours.add((pid, fields[19]))

    def wait_ready(self, patience: float) -> dict[str, Any]:
        """The engine's status once it can serve."""
        until(lambda: self.verdict() in {"ready", "busy"}, patience)
        return self.engine()

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """The lines of the log, all or those of one event, once it rests for a moment.

        A thread of the daemon's own writes it: the status may tell a little earlier what happened.
        """
        size = -1
        while self.process.poll() is None and size != (size := self.log_path.stat().st_size):
            time.sleep(_REST)
        return self.lines(name)

    def lines(self, name: str = "") -> list[dict[str, Any]]:
        """The lines of the log so far, as ``events``; not one half written."""
        whole, _, _ = self.log_path.read_text(errors="replace").rpartition("\n")
        lines = whole.splitlines()
        parsed = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in parsed if not name or line.get("event") == name]

    def wait_event(
        self,
        name: str,
        patience: float = 120.0,
        wanted: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """The first log line of event ``name`` that ``wanted`` accepts."""
        return until(lambda: next((e for e in self.lines(name) if wanted(e)), None), patience) or {}

    def metric(self, name: str) -> float | None:
        """The summed value of all series whose name and labels begin with ``name``."""
        values = [
            float(line.rpartition(" ")[2])
            for line in self.get("/metrics")[1].splitlines()
            if line.startswith(name)
        ]
        return sum(values) if values else None

    def command(self, *words: str, patience: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run one of the daemon's control commands to its end."""
        return subprocess.run(
            [sys.executable, "-m", "watchdog", *words, "--state-dir", str(self.state_dir)],
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
            cwd=ROOT,
        )

    def survivors(self) -> list[int]:
        """Remembered processes that still live."""
        return [
            pid
            for pid, ticks in self.ours
            if alive(pid) and (fields := stat_fields(pid)) and fields[19] == ticks
        ]

    def send(self, number: signal.Signals) -> None:
        """Signal the daemon itself."""
        self.process.send_signal(number)

    def ended(self, patience: float = 60.0) -> int:
        """The daemon's exit code."""
        return self.process.wait(patience)


def _whole(engine: dict[str, Any]) -> bool:
    """Whether an engine's status tells all the descendants that its leader has now."""
    pids, frontier = set(engine.get("pids", ())), [int(engine.get("pid") or 0)]
    while frontier:
        below = procfs.children(pid) if (pid := frontier.pop()) else ()
        living = [child for child in below if alive(child)]
        if not pids.issuperset(living):
            return False
        frontier.extend(living)
    return True


def launch(
    state_dir: Path,
    command: Sequence[str],
    engine_port: int,
    *flags: str,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Daemon:
    """Start a daemon in front of ``command``; the caller ends it."""
    listen = f"127.0.0.1:{free_port()}"
    state_dir.mkdir(parents=True, exist_ok=True)
    log_path = state_dir / f"watchdog-{time.monotonic_ns()}.log"
    argv = [sys.executable, "-m", "watchdog", "run", "--state-dir", str(state_dir)]
    argv += ["--listen", listen, *flags]
    if config is not None:
        argv += ["--config", str(config)]
    if command:
        argv += ["--", *command]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
    return Daemon(process, listen, state_dir, log_path, engine_port)


def simulated_command(port: int, *flags: str) -> list[str]:
    """The command line of an embedded engine on ``port``."""
    return [sys.executable, "-m", "watchdog.simulator", "--port", str(port), *flags]


@contextlib.contextmanager
def running(
    state_dir: Path,
    command: Sequence[str],
    engine_port: int,
    *flags: str,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Daemon]:
    """A daemon that is gone afterwards, with everything it ever started."""
    daemon = launch(state_dir, command, engine_port, *flags, config=config, environment=environment)
    try:
        yield daemon
    finally:
        finish(daemon)


def finish(daemon: Daemon) -> None:
    """End the daemon the polite way, then by pid, and every engine process it was seen with."""
    with contextlib.suppress(Exception):
        daemon.verdict()
    if daemon.process.poll() is None:
        daemon.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.ended(45)
    if daemon.process.poll() is None:
        daemon.process.kill()
        daemon.process.wait()
    for pid in daemon.survivors():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
