"""The ledger without a disk: for a state directory that cannot be written. Dies with us."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from watchdog.core.model import Cause, Seconds
from watchdog.ledger import GenerationRecord

_Members = tuple[tuple[int, int], ...]


class MemoryLedger:
    """Implements ``Ledger``. Generations that ended are forgotten."""

    def __init__(self) -> None:
        self._records: dict[str, GenerationRecord] = {}
        self._members: dict[str, _Members] = {}
        self._lock = threading.Lock()

    def planned(self, record: GenerationRecord) -> None:
        """See ``Ledger``."""
        with self._lock:
            self._records[record.id] = record

    def spawned(self, generation: str, pid: int, start_ticks: int, at: Seconds) -> None:
        """See ``Ledger``."""
        with self._lock:
            if generation in self._records:
                self._records[generation] = replace(
                    self._records[generation], pid=pid, start_ticks=start_ticks, spawned_at=at
                )

    def members(self, generation: str, members: Iterable[tuple[int, int]]) -> None:
        """See ``Ledger``."""
        with self._lock:
            self._members[generation] = tuple(members)

    def became_ready(self, generation: str, at: Seconds) -> None:
        """See ``Ledger``."""
        with self._lock:
            if generation in self._records:
                self._records[generation] = replace(self._records[generation], ready_at=at)

    def ended(
        self, generation: str, *, exit_code: int | None, signal: int | None, cause: Cause
    ) -> None:
        """See ``Ledger``."""
        del exit_code, signal, cause  # nobody reads history from here
        with self._lock:
            self._records.pop(generation, None)
            self._members.pop(generation, None)

    def living(self, engine: str) -> tuple[GenerationRecord, ...]:
        """See ``Ledger``."""
        with self._lock:
            return tuple(r for r in reversed(self._records.values()) if r.engine == engine)

    def engines(self, boot_id: str) -> tuple[str, ...]:
        """See ``Ledger``."""
        with self._lock:
            found = (r.engine for r in self._records.values() if r.boot_id == boot_id)
            return tuple(dict.fromkeys(found))

    def members_of(self, generation: str) -> _Members:
        """See ``Ledger``."""
        with self._lock:
            return self._members.get(generation, ())
