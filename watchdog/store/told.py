"""The incidents that a store keeps, for who reads it beside the daemon and writes nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from watchdog.core.model import Seconds
from watchdog.store import sql
from watchdog.store.database import FILE, legible
from watchdog.store.records import StoredIncident, stored_incident_of

_PATIENCE: Seconds = 2.0


class UnreadableStoreError(Exception):
    """A store that is there and cannot be read. One line."""


def stored_incidents(state_dir: Path, limit: int) -> tuple[StoredIncident, ...] | None:
    """The last incidents, the newest first; None where there is no store.

    Raises UnreadableStoreError.
    """
    return _asked(state_dir, sql.INCIDENTS, limit)


def stored_incident(state_dir: Path, name: str) -> StoredIncident | None:
    """The incident of that id; None where there is none, or no store. Raises as above."""
    found = _asked(state_dir, sql.ONE_INCIDENT, name)
    return found[0] if found else None


def _asked(state_dir: Path, statement: str, value: object) -> tuple[StoredIncident, ...] | None:
    path = state_dir / FILE
    try:
        if not path.exists():
            return None
        address = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, timeout=_PATIENCE, uri=True)) as store:
            store.text_factory = legible
            found = map(stored_incident_of, store.execute(statement, (value,)))
            return tuple(filter(None, found))
    except (OSError, ValueError, sqlite3.Error) as error:
        raise UnreadableStoreError(f"cannot read {path}: {error}") from error
