"""Watchdogs that are killed one after the other in front of one engine, and who watches them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, finish, launch
from tests.support.reloads import File, post
from tests.support.simulated import ROOT
from watchdog import procfs
from watchdog.contracts import ProcessInfo

READY = 120.0
MARK = "VLLM_WATCHDOG_GENERATION"
POLICY = """
[policy]
backoff = { initial = "600ms", max = "600ms", jitter = 0.0 }
restart_budget = { count = 1000, window = "9h" }
boot_budget = { count = 1000, window = "9h" }
"""
BUDGET = 1000
_SETTLED = 5.0
"""Seconds after which a process has long become what it is."""
GONE = 5.0
"""Seconds: no number of a process comes again so soon."""

Key = tuple[int, int]


def wait(look: Callable[[], object], patience: float = READY) -> None:
    """As ``until``, with a rest between two looks: what is measured needs the processor."""
    deadline = time.monotonic() + patience
    while not look():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def _is_settled(info: ProcessInfo) -> bool:
    """Whether its leader has long shown what it is: a scan may see a child before that."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - info.start_ticks / procfs.TICKS > _SETTLED


class Auditor:
    """Watches /proc by itself: which generations of the engine on ``port`` live, at every moment.

    A process is told by the mark in its environment, or by the session that a marked one led.
    """

    def __init__(self, port: int) -> None:
        self.double: list[str] = []
        self.seen: set[str] = set()
        self._argument = f"--port\0{port}\0".encode()
        self._of: dict[Key, str] = {}
        self._sessions: dict[int, str] = {}
        self._seen_at: dict[int, float] = {}
        self._strangers: set[Key] = set()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def living(self) -> dict[str, dict[int, ProcessInfo]]:
        """The living processes of each generation, by pid."""
        with self._lock:
            found: dict[str, dict[int, ProcessInfo]] = {}
            everyone = procfs.scan()
            self._forget({info.session for info in everyone})
            for info in everyone:
                generation = self._generation(info) if procfs.lives(info) else ""
                if generation:
                    found.setdefault(generation, {})[info.pid] = info
            return found

    def close(self) -> None:
        """Watch no more."""
        self._done.set()
        self._thread.join()

    def _forget(self, present: set[int]) -> None:
        """The number of a session without members is soon another's, on a busy box in minutes."""
        now = time.monotonic()
        self._seen_at |= dict.fromkeys(self._sessions.keys() & present, now)
        for number in [one for one, at in self._seen_at.items() if now - at > GONE]:
            del self._seen_at[number], self._sessions[number]

    def _generation(self, info: ProcessInfo) -> str:
        key = (info.pid, info.start_ticks)
        if key in self._strangers:
            return ""
        if key not in self._of:
            generation = self._leads(info) or self._sessions.get(info.session, "")
            if not generation:
                if info.session != info.pid and _is_settled(info):
                    self._strangers.add(key)  # nobody enters a session
                return ""
            self._of[key] = generation
            self._sessions[info.session] = generation
            self._seen_at[info.session] = time.monotonic()
            self.seen.add(generation)
        return self._of[key]

    def _leads(self, info: ProcessInfo) -> str:
        if info.session != info.pid:
            return ""
        with contextlib.suppress(OSError):
            if self._argument in Path(f"/proc/{info.pid}/cmdline").read_bytes() + b"\0":
                return procfs.environ_value(info.pid, MARK) or ""
        return ""

    def _watch(self) -> None:
        while not self._done.wait(0.04):
            found = self.living()
            if len(found) > 1 and len(again := self._confirmed(found)) > 1:
                self.double.append(str({g: sorted(pids) for g, pids in again.items()}))

    def _confirmed(self, found: dict[str, dict[int, ProcessInfo]]) -> dict[str, set[int]]:
        """Those that still live now that all of them have been seen: they did at one moment."""
        return {
            generation: alive
            for generation, members in found.items()
            if (alive := {pid for pid, info in members.items() if _still(info)})
        }


def _still(info: ProcessInfo) -> bool:
    now = procfs.stat(info.pid)
    return now is not None and now.start_ticks == info.start_ticks and procfs.lives(now)


@dataclass
class Ward:
    """An engine, its configuration, and the watchdog of the moment."""

    file: File
    auditor: Auditor
    daemon: Daemon
    began: float = 0.0
    words: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    def at(cls, directory: Path, *flags: str, policy: str = POLICY) -> Ward:
        """With a first watchdog that has just been launched."""
        file = File(directory / "watchdog.toml")
        port = file.engine("main", 0, "--startup-time", "0.5", "--tokens-per-second", "20", *flags)
        file.engines["main"]["stop"] = {"drain_timeout": "3s", "term_timeout": "700ms"}
        file.write(policy)
        auditor = Auditor(port)
        began = time.time()
        daemon = launch(directory / "s", (), port, config=file.path)
        return cls(file, auditor, daemon, began)

    @property
    def port(self) -> int:
        """The engine's."""
        return self.file.port

    def kill(self) -> dict[str, dict[int, ProcessInfo]]:
        """SIGKILL the watchdog; who lived of the engine when it was gone."""
        self.daemon.send(signal.SIGKILL)
        self.daemon.ended()
        return self.auditor.living()

    def succeed(self) -> Daemon:
        """Launch the next watchdog."""
        self.began = time.time()
        self.daemon = launch(self.daemon.state_dir, (), self.port, config=self.file.path)
        return self.daemon

    def adoption_took(self) -> float | None:
        """Seconds from the launch of this watchdog to its ``engine.adopted``; None without one."""
        lines = self.daemon.events("engine.adopted")
        if not lines:
            return None
        return datetime.fromisoformat(lines[0]["timestamp"]).timestamp() - self.began

    def say(self, *words: str) -> None:
        """A command of an operator, whose end nobody waits for."""
        argv = [sys.executable, "-m", "watchdog", *words]
        argv += ["--state-dir", str(self.daemon.state_dir)]
        quiet = subprocess.DEVNULL
        self.words.append(subprocess.Popen(argv, cwd=ROOT, stdout=quiet, stderr=quiet))

    def ask(self, tokens: int) -> None:
        """Put a request into the engine, and wait until it is known to be there."""

        def work() -> None:
            with contextlib.suppress(OSError):
                post(self.port, "/v1/completions", {"prompt": "a", "max_tokens": tokens})

        threading.Thread(target=work, daemon=True).start()
        wait(lambda: self.daemon.verdict() == "busy")

    def fault(self, name: str) -> None:
        """Switch a fault of the engine on."""
        post(self.port, "/simulator/fault", {"name": name, "value": None})

    def state(self) -> str:
        """The engine's state in the life cycle; "" when the watchdog does not answer."""
        return str(self.daemon.engine().get("state", ""))

    def reach(self, *states: str) -> None:
        """Wait until it is in one of them."""
        wait(lambda: self.state() in states)

    def kill_leader(self) -> int:
        """SIGKILL the engine's leader; its pid."""
        pid = int(self.daemon.engine()["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def serves(self) -> bool:
        """Whether the engine serves, and all that lives of it is known to this watchdog."""
        now = self.daemon.engine()
        self.daemon.remember(now.get("pids", ()))
        living = self.auditor.living()
        pids = {pid for members in living.values() for pid in members}
        known = now.get("verdict") in {"ready", "busy"} and set(now["pids"]) == pids
        return bool(known) and list(living) == [now["generation"]]

    def rests(self) -> bool:
        """Whether nothing lives of the engine, and this watchdog says so."""
        now = self.daemon.engine()
        return now.get("state") in {"stopped", "given_up"} and not self.auditor.living()

    def account(self) -> tuple[str, int, int]:
        """The engine's name, how often it was started, and how many of them are on its account."""
        now = self.daemon.engine()
        return str(now["name"]), int(now["starts"]), BUDGET - int(now["budget_remaining"])

    def close(self) -> None:
        """End everything by pid."""
        for word in self.words:
            word.kill()
            word.wait()
        finish(self.daemon)
        for members in self.auditor.living().values():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait(lambda: not self.auditor.living())
        self.auditor.close()


@contextlib.contextmanager
def ward(directory: Path, *flags: str, policy: str = POLICY) -> Iterator[Ward]:
    """An engine that serves under its first watchdog; afterwards nothing of it is left."""
    one = Ward.at(directory, *flags, policy=policy)
    try:
        wait(one.serves)
        yield one
    finally:
        one.close()


def records(one: Ward) -> list[dict[str, Any]]:
    """What all watchdogs of this ward have logged, in order."""
    found: list[dict[str, Any]] = []
    for path in sorted(one.daemon.state_dir.glob("watchdog-*.log")):
        lines = path.read_text(errors="replace").splitlines()
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line of one that was killed
                found.append(json.loads(line))
    return found
