"""A window on a daemon that does not exist: what the web side is tested against."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

from tests.support.core import engine, restarting, serving
from watchdog.core.state import State
from watchdog.snapshot import Snapshot
from watchdog.web.window import CommandResult

Asked = tuple[str, str, str, str, float | None]


@dataclass
class FakeWindow:
    """Shows ``shown``; remembers the commands, which wait until ``gate`` is open."""

    shown: Snapshot
    age: float = 0.0
    page: bytes = b"# EOF\n"
    asked: list[Asked] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def snapshot(self) -> Snapshot:
        """The one that was given."""
        return self.shown

    def loop_age(self) -> float:
        """Seconds."""
        return self.age

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The page that was given, and what was asked for as its type."""
        return self.page, f"text/plain; asked={accept}"

    def command(
        self, verb: str, engine: str, reason: str, owner: str, seconds: float | None
    ) -> CommandResult:
        """Fails for the engine ``broken``."""
        self.asked.append((verb, engine, reason, owner, seconds))
        self.gate.wait(30)
        if engine == "broken":
            return CommandResult(ok=False, message="cannot stop it", exit_code=1)
        return CommandResult(ok=True, message=f"{verb}: done", exit_code=0)


def snapshot(state: State, at: float = 100.0, wall: float = 1_767_225_600.0) -> Snapshot:
    """``state`` as published at 2026-01-01T00:00:00Z, unless ``wall`` says otherwise."""
    return Snapshot(
        state=state,
        at=at,
        wall=wall,
        version="1.2.3",
        config_hash="abc",
        pids={"main": (1, 2)},
        ports={"main": 8000},
        budget={"main": 5},
    )


def serving_window() -> FakeWindow:
    """One engine that serves."""
    return FakeWindow(snapshot(serving().state))


def broken_window() -> FakeWindow:
    """One engine that crashed 90 s ago, with its finding and its incident."""
    return FakeWindow(snapshot(restarting().state))


def hostile_window(name: str) -> FakeWindow:
    """One engine with a name and reasons that want to be markup."""
    one = replace(engine(name=name), reasons=(name,), since=time.monotonic())
    return FakeWindow(snapshot(State(engines={name: one})))
