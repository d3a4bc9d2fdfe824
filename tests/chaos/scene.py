"""Everything that a fault needs at hand, and how an engine is brought back after one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.accounts import Accounts
from tests.chaos.bystander import Bystander
from tests.chaos.journal import Invariant, Journal
from tests.chaos.keeper import Keeper
from tests.chaos.observer import Observer
from tests.chaos.place import Place
from tests.chaos.sightings import Sighting, command

RECOVERY = 150.0
"""Seconds in which an engine has to serve again, on a busy box, pauses and lost cards included."""
_ASK = 3.0
_SERVES = {"ready", "busy"}


@dataclass
class Scene:
    """One run."""

    place: Place
    journal: Journal
    keeper: Keeper
    observer: Observer
    accounts: Accounts
    bystanders: list[Bystander] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    # --- engines -----------------------------------------------------------------------------

    def ask(self, engine: str, path: str, body: object = None, method: str = "") -> int:
        """The engine's own answer; 0 when there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.place.ports[engine], timeout=_ASK)
        with contextlib.suppress(OSError, http.client.HTTPException):
            data = None if body is None else json.dumps(body)
            connection.request(method or ("GET" if data is None else "POST"), path, data)
            return connection.getresponse().status
        connection.close()
        return 0

    def fault(self, engine: str, name: str, value: float | None = None) -> bool:
        """Switch a fault of the simulator on."""
        return self.ask(engine, "/simulator/fault", {"name": name, "value": value}) == 200

    def clear(self, engine: str, name: str) -> None:
        """Switch it off."""
        self.ask(engine, f"/simulator/fault/{name}", method="DELETE")

    def members(self, engine: str) -> list[Sighting]:
        """Who lives of it, the leader first."""
        found = self.observer.of(engine)
        return [one for generation in found.values() for one in generation]

    def titled(self, engine: str, title: str) -> int:
        """The pid of a member; 0 without one."""
        return next(
            (one.pid for one in self.members(engine) if title in command(one.pid)),
            0,
        )

    def leader(self, engine: str) -> int:
        """The pid of the leader; 0 without one."""
        return next((one.pid for one in self.members(engine) if one.pid == one.session), 0)

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal one process of an engine."""
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def serves(self, engine: str) -> bool:
        """By its own word and by the watchdog's."""
        if self.ask(engine, "/health") != 200:
            return False
        return self.keeper.engine(engine).get("verdict") in _SERVES

    # --- the operator ------------------------------------------------------------------------

    def operate(self, word: str, engine: str) -> int:
        """``start``, ``stop``, ``restart`` or ``reset-breaker``; starts by it are on no account."""
        if word != "stop":
            self.accounts.asked(engine, reset=word == "reset-breaker")
        done = self.keeper.command(word, engine)
        self.journal.note(f"`{word}` ended with {done.returncode}")
        return done.returncode

    def recover(self, engine: str) -> None:
        """Bring it back as a person would; a check that it can be brought back."""
        deadline = time.monotonic() + RECOVERY
        told: dict[str, Any] = {}
        while not self.serves(engine):
            told = self.keeper.engine(engine)
            if time.monotonic() > deadline:
                evidence = f"{engine}: {told}; {self.keeper.last_words()}"
                self.journal.check(Invariant.RECOVERS, False, evidence)  # noqa: FBT003
                return
            if self.done.wait(0.3) or self.journal.hopeless:
                return
            if told.get("breaker_open") or told.get("state") == "given_up":
                self.journal.note("breaker reset by hand")
                self.operate("reset-breaker", engine)
            elif told.get("state") == "stopped":
                self.operate("start", engine)
        self.journal.check(Invariant.RECOVERS, True, "")  # noqa: FBT003

    # --- strangers ---------------------------------------------------------------------------

    def look_at_strangers(self) -> None:
        """One check of each; one that was harmed is told once."""
        for one in list(self.bystanders):
            trouble = one.trouble()
            if not self.journal.check(Invariant.STRANGERS, not trouble, trouble):
                self.bystanders.remove(one)
                one.close()
