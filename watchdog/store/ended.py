"""What a store remembers of ended starts, for who reads it beside the daemon and writes nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from watchdog.core.model import Seconds
from watchdog.store import sql
from watchdog.store.database import FILE

_PATIENCE: Seconds = 2.0


def ended_tempdirs(state_dir: Path) -> tuple[str, ...] | None:
    """As ``Store.ended_tempdirs``; none where there is no store, None when it cannot be read."""
    path = state_dir / FILE
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        if not path.exists():
            return ()
        with contextlib.closing(sqlite3.connect(address, timeout=_PATIENCE, uri=True)) as store:
            return tuple(str(row[0]) for row in store.execute(sql.ENDED_TEMPDIRS))
    except (OSError, sqlite3.Error):
        return None
