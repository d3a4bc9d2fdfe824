"""Keeps the watchdog running as a service manager would, and asks its /livez all along."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from tests.chaos.journal import Invariant, Journal
from tests.chaos.place import Place
from tests.support.simulated import ROOT

_BOUND = 5.0
"""Seconds in which /livez has to be answered."""
_START = 20.0
"""Seconds that a watchdog has until it answers, on a busy box."""
_PERIOD = 0.25
_TAIL = 1500
_IN_MEMORY, _ON_DISK = "going on in memory", "the store is on disk again"


@dataclass
class Keeper:
    """The watchdog of the moment, and whoever comes after it."""

    place: Place
    journal: Journal
    latencies: list[float] = field(default_factory=list)
    started: int = 0
    forgets: Callable[[], None] = lambda: None
    """Called when a watchdog dies that could not write: what it knew dies with it."""
    wait: float = 0.2
    """Seconds until a successor is started."""
    bad_file: bool = False
    """The configuration is broken right now: a start may be refused."""
    _process: subprocess.Popen[bytes] | None = None
    _killed: set[int] = field(default_factory=set)
    _answered: bool = False
    _began: float = 0.0
    _done: threading.Event = field(default_factory=threading.Event)
    _ending: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Launch the first one."""
        self._launch()
        for work in (self._keep, self._ask):
            thread = threading.Thread(target=work, name=work.__name__, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def pid(self) -> int | None:
        """Of the watchdog of the moment; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def up(self) -> bool:
        """Whether it has answered."""
        return self._answered and self.pid is not None

    def kill(self, wait: float) -> None:
        """SIGKILL it; the successor comes after ``wait`` seconds."""
        with self._lock:
            process = self._process
            if process is not None and process.poll() is None:
                self.wait = wait
                if self.only_in_memory():
                    self.journal.note("killed while the store was only in memory, as its log said")
                    self.forgets()
                self._killed.add(process.pid)
                self._answered = False
                process.send_signal(signal.SIGKILL)

    def end(self, patience: float = 90.0) -> int | None:
        """SIGTERM, and no successor; the exit code, None when it had to be killed."""
        self._ending = True
        self._done.set()
        for thread in self._threads:
            thread.join()
        process = self._process
        if process is None:
            return None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None

    def command(self, *words: str, patience: float = 60.0) -> subprocess.CompletedProcess[str]:
        """One of the control commands, to its end; 124 when it has none."""
        argv = [sys.executable, "-m", "watchdog", *words, "--state-dir", str(self.place.state)]
        environment = os.environ | {"TMPDIR": str(self.place.folder / "t")}
        try:
            return subprocess.run(
                argv,
                capture_output=True,
                text=True,
                timeout=patience,
                check=False,
                cwd=ROOT,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 124, "", "no end")

    def status(self) -> dict[str, Any]:
        """What the watchdog says; empty when it does not answer."""
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            return dict(json.loads(self._get("/api/v1/status")[1]))
        return {}

    def engine(self, name: str) -> dict[str, Any]:
        """What it says of one engine."""
        found = [one for one in self.status().get("engines", ()) if one.get("name") == name]
        return dict(found[0]) if found else {}

    def only_in_memory(self) -> bool:
        """Whether the watchdog has told that it cannot write its store, and not taken it back."""
        log = self.place.folder / "logs" / f"{self.started:04}.log"
        told = log.read_text(errors="replace")
        return told.rfind(_IN_MEMORY) > told.rfind(_ON_DISK)

    def last_words(self) -> str:
        """The end of the newest log."""
        logs = sorted((self.place.folder / "logs").iterdir())
        return logs[-1].read_text(errors="replace")[-_TAIL:] if logs else ""

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.place.listen, timeout=_BOUND)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def _launch(self) -> None:
        self.started += 1
        self._answered, self._began = False, time.monotonic()
        argv = [sys.executable, "-m", "watchdog", "run", "--state-dir", str(self.place.state)]
        argv += ["--config", str(self.place.file), "--listen", f"127.0.0.1:{self.place.listen}"]
        log: IO[bytes]
        with (self.place.folder / "logs" / f"{self.started:04}.log").open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | self.place.environment(),
            )

    def _keep(self) -> None:
        while not self._done.wait(0.05):
            process = self._process
            if process is None or (code := process.poll()) is None:
                continue
            killed = process.pid in self._killed
            excused = killed or (self.bad_file and code == 2)
            evidence = "" if excused else f"exit {code}: {self.last_words()}"
            self.journal.check(Invariant.STAYS, excused, evidence)
            if self._done.wait(self.wait):
                return
            with self._lock:
                self.wait = 0.2
                self._launch()

    def _ask(self) -> None:
        while not self._done.wait(_PERIOD):
            process = self._process
            if process is None or process.poll() is not None:
                continue
            began = time.monotonic()
            try:
                self._get("/livez")
            except (OSError, http.client.HTTPException) as error:
                self._unanswered(process, began, error)
            else:
                self._answered = True
                self.latencies.append(time.monotonic() - began)
                self.journal.check(Invariant.LIVEZ, True, "")  # noqa: FBT003

    def _unanswered(self, process: subprocess.Popen[bytes], began: float, error: Exception) -> None:
        """A violation, unless it was killed meanwhile, or is still at its start."""
        time.sleep(_PERIOD)
        same = process is self._process and process.poll() is None
        starting = not self._answered and time.monotonic() - self._began < _START
        if not same or starting or self._ending or process.pid in self._killed:
            return
        took = time.monotonic() - began
        evidence = f"{error!r} after {took:.1f} s, pid {process.pid}: {self.last_words()}"
        self.journal.check(Invariant.LIVEZ, False, evidence)  # noqa: FBT003
