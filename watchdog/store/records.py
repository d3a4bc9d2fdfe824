"""What is remembered across restarts, in the words of the rest of the program."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from watchdog.command_line import redacted
from watchdog.core.model import Cause, Seconds
from watchdog.ledger import GenerationRecord
from watchdog.store import sql
from watchdog.store.anchor import Anchor, now_anchor
from watchdog.store.database import Database, Warn

KEPT_INCIDENTS = 1000
KEPT_GENERATIONS = 200
"""Ended ones. The living are always kept."""

_T = TypeVar("_T")
_PAUSE = "pause"
_TRACKS = "tracks"


def _silent(_: str) -> None:
    """For who reads ``warnings`` only."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A text and when it was saved: its monotonic times go through ``rebase``."""

    body: str
    anchor: Anchor


@dataclass(frozen=True, slots=True)
class StoredIncident:
    """One incident. ``opened`` and ``resolved`` are seconds since the epoch."""

    id: str
    body: str
    opened: Seconds
    resolved: Seconds | None


@dataclass(frozen=True, slots=True)
class EndedGeneration:
    """How a generation ended. Times are seconds since the epoch, ``cause`` as stored."""

    id: str
    engine: str
    pid: int | None
    planned_wall: Seconds
    spawned_wall: Seconds | None
    ready_wall: Seconds | None
    ended_wall: Seconds
    exit_code: int | None
    signal: int | None
    cause: str


class Store:
    """The memory of the watchdog; implements ``Ledger`` and ``ModelLedger`` of ``watchdog.ledger``.

    No method raises for a sick disk: the store goes on in memory and says so once, through
    ``warn`` (called from the writing thread). All methods are safe from any thread.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted: dict[str, frozenset[tuple[int, int]]] = {}

    @classmethod
    def open(cls, state_dir: Path, warn: Warn = _silent) -> Store:
        """The store below ``state_dir``, which is made where it is missing.

        What went wrong is in ``warnings``: damage was moved aside, or it is memory only.
        """
        return cls(Database(state_dir, warn))

    @classmethod
    def in_memory(cls, warning: str = "", warn: Warn = _silent) -> Store:
        """A store that dies with this process; ``warning`` says why it has to."""
        return cls(Database(None, warn, warning))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What went wrong while opening, one line each."""
        return self._database.warnings

    @property
    def durable(self) -> bool:
        """Whether what is written now survives this process."""
        return self._database.durable

    def planned(self, record: GenerationRecord) -> None:
        """See ``Ledger``. Keys in the command are redacted here in any case."""
        command = json.dumps(redacted(record.command))
        self._database.write(
            (
                sql.PLAN,
                (*(asdict(record) | {"command": command}).values(),),
            )
        )

    def spawned(self, generation: str, pid: int, start_ticks: int, at: Seconds) -> None:
        """See ``Ledger``. Counts as a start unless it was noted before."""
        self._database.write(
            (
                sql.COUNT_START,
                (generation,),
            ),
            (
                sql.SPAWN,
                (pid, start_ticks, at, time.time(), generation),
            ),
        )

    def members(self, generation: str, members: Iterable[tuple[int, int]]) -> None:
        """See ``Ledger``. The same set again costs nothing."""
        found = frozenset(members)
        if self._noted.get(generation) == found:
            return
        self._database.write(
            (sql.FORGET_MEMBERS, (generation,)),
            *((sql.MEMBER, (generation, pid, ticks)) for pid, ticks in sorted(found)),
        )
        self._noted[generation] = found

    def members_of(self, generation: str) -> tuple[tuple[int, int], ...]:
        """See ``Ledger``."""
        rows = self._database.read(sql.MEMBERS, (generation,))
        return tuple((_int(pid), _int(ticks)) for pid, ticks in rows)

    def became_ready(self, generation: str, at: Seconds) -> None:
        """See ``Ledger``."""
        self._database.write(
            (
                sql.READY,
                (at, time.time(), generation),
            )
        )

    def ended(
        self, generation: str, *, exit_code: int | None, signal: int | None, cause: Cause
    ) -> None:
        """See ``Ledger``."""
        self._noted.pop(generation, None)
        self._database.write(
            (
                sql.END,
                (time.time(), exit_code, signal, cause.value, generation),
            ),
            (sql.FORGET_MEMBERS, (generation,)),
        )

    def living(self, engine: str) -> tuple[GenerationRecord, ...]:
        """See ``Ledger``."""
        rows = self._database.read(
            sql.LIVING,
            (engine,),
        )
        return tuple(filter(None, (_record(row) for row in rows)))

    def engines(self, boot_id: str) -> tuple[str, ...]:
        """See ``Ledger``."""
        return tuple(str(name) for (name,) in self._database.read(sql.ENGINES, (boot_id,)))

    def history(self, engine: str, limit: int = KEPT_GENERATIONS) -> tuple[EndedGeneration, ...]:
        """The generations that ended, the newest first."""
        rows = self._database.read(
            sql.HISTORY,
            (engine, limit),
        )
        return tuple(filter(None, (_row(EndedGeneration, row) for row in rows)))

    def ended_tempdirs(self) -> tuple[str, ...]:
        """The private directories of generations that ended, the newest first, at most 200."""
        return tuple(str(row[0]) for row in self._database.read(sql.ENDED_TEMPDIRS, ()))

    def starts(self, engine: str) -> int:
        """Spawns since the store began, the first included."""
        return self._number(f"starts/{engine}")

    def save_engine(self, name: str, body: str) -> None:
        """Keep the policy state of an engine, with this moment as its anchor."""
        self._save(f"engine/{name}", body)

    def load_engine(self, name: str) -> Saved | None:
        """What ``save_engine`` kept last."""
        return self._load(f"engine/{name}")

    def save_pause(self, body: str | None) -> None:
        """Keep the pause; None ends it."""
        if body is None:
            self._database.write((sql.UNSAVE, (_PAUSE,)))
        else:
            self._save(_PAUSE, body)

    def load_pause(self) -> Saved | None:
        """The pause that was kept; None when there is none."""
        return self._load(_PAUSE)

    def save_tracks(self, body: str) -> None:
        """Keep what rules have done, with this moment as its anchor."""
        self._save(_TRACKS, body)

    def load_tracks(self) -> Saved | None:
        """What ``save_tracks`` kept last."""
        return self._load(_TRACKS)

    def save_model(self, engine: str, body: str) -> None:
        """See ``ModelLedger``."""
        self._save(f"model/{engine}", body)

    def load_model(self, engine: str) -> str:
        """See ``ModelLedger``."""
        saved = self._load(f"model/{engine}")
        return "" if saved is None else saved.body

    def save_incident(
        self, incident: str, body: str, opened: Seconds, resolved: Seconds | None = None
    ) -> None:
        """Keep or replace one incident; times are seconds since the epoch.

        Only the last KEPT_INCIDENTS stay, in the order in which they were first saved.
        """
        self._database.write(
            (
                sql.INCIDENT,
                (incident, body, opened, resolved),
            ),
            (
                sql.FORGET_INCIDENTS,
                (KEPT_INCIDENTS,),
            ),
        )

    def incidents(self, limit: int = KEPT_INCIDENTS) -> tuple[StoredIncident, ...]:
        """The last incidents, the newest first."""
        rows = self._database.read(
            sql.INCIDENTS,
            (limit,),
        )
        return tuple(filter(None, (stored_incident_of(row) for row in rows)))

    def incident(self, incident: str) -> StoredIncident | None:
        """The incident of that id."""
        rows = self._database.read(sql.ONE_INCIDENT, (incident,))
        return stored_incident_of(rows[0]) if rows else None

    def incident_serial(self) -> int:
        """The highest serial ever saved; 0 at the beginning."""
        return self._number("incident_serial")

    def save_incident_serial(self, serial: int) -> None:
        """Keep the serial, which never goes back."""
        self._database.write(
            (
                sql.SERIAL,
                (serial,),
            )
        )

    def tidy(self) -> None:
        """Forget old generations, bring the file up to date, return to it after trouble.

        May wait for the disk: for a timer (every few minutes), never on the way to a restart.
        """
        self._database.write(
            (
                sql.FORGET_GENERATIONS,
                (KEPT_GENERATIONS,),
            )
        )
        self._database.checkpoint()

    def return_to_disk(self) -> None:
        """After trouble: write the file anew once that is possible; else nothing.

        For a timer of some seconds: what a killed watchdog knew in memory alone is lost.
        """
        if not self.durable:
            self._database.checkpoint()

    def close(self) -> None:
        """Bring the file up to date and let go of it."""
        self._database.close()

    def _save(self, name: str, body: str) -> None:
        anchor = now_anchor()
        self._database.write(
            (
                sql.SAVE,
                (name, body, anchor.boot_id, anchor.monotonic, anchor.wall),
            )
        )

    def _load(self, name: str) -> Saved | None:
        rows = self._database.read(sql.SAVED, (name,))
        return _saved(*rows[0]) if rows else None

    def _number(self, name: str) -> int:
        rows = self._database.read(sql.NUMBER, (name,))
        return _int(rows[0][0]) if rows else 0


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def stored_incident_of(row: Iterable[object]) -> StoredIncident | None:
    """None where a cell has what another program wrote."""
    return _row(StoredIncident, row)


def _record(row: tuple[Any, ...]) -> GenerationRecord | None:
    try:
        command = json.loads(row[6])
    except (TypeError, ValueError, RecursionError):
        return None
    return _row(GenerationRecord, (*row[:6], command, *row[7:]))


def _saved(body: object, boot_id: object, monotonic: object, wall: object) -> Saved | None:
    anchor = _row(Anchor, (boot_id, monotonic, wall))
    return Saved(body, anchor) if isinstance(body, str) and anchor is not None else None


def _row(kind: type[_T], values: Iterable[object]) -> _T | None:
    """A row as that kind; None for what another version wrote, or nobody."""
    named: Mapping[str, object] = dict(zip(kind.__annotations__, values, strict=True))
    try:
        return msgspec.convert(named, kind)
    except msgspec.ValidationError:
        return None
