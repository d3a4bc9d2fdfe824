"""What must be remembered of an engine's generations for the next watchdog to adopt them.

The supervisor writes it, the store keeps it; neither knows the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from watchdog.core.model import Cause, Seconds


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """One start of one engine, from the moment it was planned.

    ``pid`` and ``start_ticks`` (clock ticks since boot) are None until the spawn; with ``boot_id``
    they are the leader's identity. Fields in ``…_at`` are CLOCK_MONOTONIC of that boot,
    ``planned_wall`` is seconds since the epoch. ``command`` is free of keys. ``launched`` is what
    the supervisor has to know of it later, in its own words; "" in records of older versions.
    """

    id: str
    engine: str
    tempdir: str
    log_path: str
    log_offset: int
    port: int
    command: tuple[str, ...]
    boot_id: str
    planned_at: Seconds
    planned_wall: Seconds
    pid: int | None = None
    start_ticks: int | None = None
    spawned_at: Seconds | None = None
    ready_at: Seconds | None = None
    launched: str = ""


class Ledger(Protocol):
    """The memory of generations. No method raises; all are safe from any thread."""

    def planned(self, record: GenerationRecord) -> None:
        """Note a generation before its spawn, so that a death in between leaves a trace."""
        ...

    def spawned(self, generation: str, pid: int, start_ticks: int, at: Seconds) -> None:
        """The generation's leader lives."""
        ...

    def members(self, generation: str, members: Iterable[tuple[int, int]]) -> None:
        """Replace the known members, each a pid and its start ticks."""
        ...

    def became_ready(self, generation: str, at: Seconds) -> None:
        """The generation generated its first token."""
        ...

    def ended(
        self, generation: str, *, exit_code: int | None, signal: int | None, cause: Cause
    ) -> None:
        """Nothing of the generation lives any more."""
        ...

    def living(self, engine: str) -> tuple[GenerationRecord, ...]:
        """The generations that were planned and have not ended, the newest first."""
        ...

    def engines(self, boot_id: str) -> tuple[str, ...]:
        """Names of all engines of which there are such generations, of that boot."""
        ...

    def members_of(self, generation: str) -> tuple[tuple[int, int], ...]:
        """The members last noted, each a pid and its start ticks."""
        ...


class ModelLedger(Protocol):
    """The memory of models. No method raises; all are safe from any thread."""

    def save_model(self, engine: str, body: str) -> None:
        """Keep what is known of the model that ``engine`` serves, in place of what was."""
        ...

    def load_model(self, engine: str) -> str:
        """What ``save_model`` kept last; "" when nothing was."""
        ...
