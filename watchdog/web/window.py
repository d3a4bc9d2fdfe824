"""What the web side may ask of the daemon, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from watchdog.core.model import Seconds
from watchdog.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What became of a command. ``exit_code`` is that of the command line tool.

    ``details`` are further keys of the answer.
    """

    ok: bool
    message: str
    exit_code: int
    details: Mapping[str, object] = field(default_factory=dict)


class Window(Protocol):
    """Implemented by the daemon; every method is safe from any thread."""

    def snapshot(self) -> Snapshot:
        """The state after the last step."""
        ...

    def loop_age(self) -> Seconds:
        """Seconds since the main loop last turned."""
        ...

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The page for Prometheus, and its content type."""
        ...

    def command(
        self, verb: str, engine: str, reason: str, owner: str, seconds: Seconds | None
    ) -> CommandResult:
        """Carry a command out and wait for its end."""
        ...
