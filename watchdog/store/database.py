"""The SQLite file, and what happens when it cannot be used: moved aside, or memory instead."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

FILE = "store.sqlite3"
VERSION = 2
"""Of the schema. Versions only add, so that an older watchdog can use a newer file."""

Warn = Callable[[str], None]
Row = tuple[object, ...]
Statement = tuple[str, Sequence[object]]
T = TypeVar("T")

_BUSY = 0.05
"""Seconds to wait for another process's lock: only a reader can hold one, and only briefly."""

_LONGEST = 200

_WAL_PAGES = 4000
"""Of 4 KiB, until a commit copies the log back itself, with fsync; ``checkpoint`` comes before."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS generations (
  serial INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, engine TEXT NOT NULL, state TEXT NOT NULL,
  tempdir TEXT NOT NULL, log_path TEXT NOT NULL, log_offset INTEGER NOT NULL,
  port INTEGER NOT NULL, command TEXT NOT NULL, boot_id TEXT NOT NULL,
  planned_at REAL NOT NULL, planned_wall REAL NOT NULL,
  pid INTEGER, start_ticks INTEGER, spawned_at REAL, spawned_wall REAL,
  ready_at REAL, ready_wall REAL, ended_wall REAL, exit_code INTEGER, signal INTEGER, cause TEXT,
  launched TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS generations_living ON generations (engine) WHERE state != 'ended';
CREATE TABLE IF NOT EXISTS members (
  generation TEXT NOT NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL,
  PRIMARY KEY (generation, pid, start_ticks)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS saved (
  name TEXT PRIMARY KEY, body TEXT NOT NULL,
  boot_id TEXT NOT NULL, monotonic REAL NOT NULL, wall REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS incidents (
  serial INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL,
  opened REAL NOT NULL, resolved REAL);
"""


def _ignore(_: str) -> None:
    """Nobody listens to a store that is closed."""


class _CorruptError(Exception):
    """The file is no database, or a damaged one."""


class Database:
    """One connection behind one lock. After construction nothing here raises.

    While the file cannot be written everything goes on in memory, starting from what the file
    held; ``checkpoint`` tries to return. What could not be read is moved aside then, and never
    overwritten. ``warnings`` are what happened while it was opened.
    """

    def __init__(self, directory: Path | None, warn: Warn, reason: str = "") -> None:
        self._path = directory / FILE if directory else None
        self._warn = warn
        self._lock = threading.Lock()
        self._durable = False
        self._whole = True
        self._aside = ""
        self.warnings: tuple[str, ...] = (reason,) if reason else ()
        self._connection = self._open()

    @property
    def durable(self) -> bool:
        """Whether what is written now survives this process."""
        return self._durable

    def write(self, *statements: Statement) -> None:
        """Run all or none of ``statements``; in memory when the disk does not let us."""
        with self._lock:
            trouble = self._written(statements)
        if trouble:
            self._warn(f"cannot write the store: {_line(trouble)}")

    def read(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """All rows; none when the store cannot be read."""
        with self._lock:
            try:
                return list(self._connection.execute(sql, values))
            except sqlite3.Error as error:
                reason = _line(error)
        self._warn(f"cannot read the store: {reason}")
        return []

    def checkpoint(self) -> None:
        """Bring the file up to date, or return to it. May fsync: never on a hot path."""
        if self._durable and self._path:
            # On a connection of its own, so that a slow disk does not hold up a writer.
            with (
                contextlib.suppress(sqlite3.Error),
                contextlib.closing(_connect(self._path)) as own,
            ):
                own.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        elif self._path:
            self._return_to_the_disk()

    def close(self) -> None:
        """Close the connection; what comes later is lost silently."""
        self.checkpoint()
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._warn, self._durable, self._path = _ignore, False, None
            self._connection.close()

    def _written(self, statements: Sequence[Statement]) -> str:
        """Why it could not be written where it belongs; empty when it was."""
        try:
            _transact(self._connection, statements)
        except sqlite3.Error as error:
            if not self._durable:
                return str(error)
            self._leave_the_disk()
            with contextlib.suppress(sqlite3.Error):
                _transact(self._connection, statements)
            return f"going on in memory: {error}"
        except (ValueError, OverflowError) as error:  # a text or number that SQLite has no form for
            return str(error)
        return ""

    def _open(self) -> sqlite3.Connection:
        if self._path is None:
            return _in_memory()
        try:
            return self._opened(self._path)
        except _CorruptError as error:
            return self._renewed(self._path, _line(error))
        except (OSError, ValueError, sqlite3.Error) as error:
            return self._without_disk(self._path, error)

    def _renewed(self, path: Path, problem: str) -> sqlite3.Connection:
        try:
            aside = _move_aside(path)
            connection = self._opened(path)
        except (OSError, ValueError, sqlite3.Error, _CorruptError) as error:
            return self._without_disk(path, error)
        self.warnings += (f"the store was damaged ({problem}): moved to {aside}, history is lost",)
        return connection

    def _without_disk(self, path: Path, error: Exception) -> sqlite3.Connection:
        self.warnings += (f"cannot use {path}, going on in memory: {_line(error)}",)
        connection, self._whole = _remembered(path)
        return connection

    def _opened(self, path: Path) -> sqlite3.Connection:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = _connect(path)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._durable = True
        return connection

    def _leave_the_disk(self) -> None:
        broken, self._durable = self._connection, False
        copy = _copied(broken)
        self._whole = copy is not None
        self._connection = copy or _in_memory()
        with contextlib.suppress(sqlite3.Error):
            broken.close()

    def _return_to_the_disk(self) -> None:
        """Write the file anew from what is in memory, as one transaction."""
        with self._lock:
            if self._path is None or self._durable:
                return
            try:
                connection = self._ours(self._path)
            except (OSError, ValueError, sqlite3.Error, _CorruptError):
                self._durable = False
                return
            try:
                self._connection.backup(connection)
                _prepare(connection)
            except (sqlite3.Error, _CorruptError):
                self._durable = False
                connection.close()
                return
            self._connection.close()
            self._connection = connection
            before, self._aside = self._aside, ""
        told = f"; what was there before is in {before}" if before else ""
        self._warn(f"the store is on disk again{told}")

    def _ours(self, path: Path) -> sqlite3.Connection:
        """The file, in which nothing stands that is not in memory."""
        self._whole = self._whole or not path.exists()
        try:
            connection = self._opened(path)
        except _CorruptError:
            pass
        else:
            if self._whole:
                return connection
            connection.close()
        self._aside = _move_aside(path)
        self._whole = True
        return self._opened(path)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    connection.text_factory = legible
    return connection


def legible(text: bytes) -> str:
    """A text as it is; what is no UTF-8 in it costs itself, and no other row."""
    return text.decode(errors="replace")


def _line(error: object) -> str:
    """What SQLite says, in one line: it quotes what it found."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(str(error).split()))
    return shown[:_LONGEST]


def _in_memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.text_factory = legible
    connection.executescript(_SCHEMA)
    return connection


def _copied(source: sqlite3.Connection) -> sqlite3.Connection | None:
    """All of ``source`` in memory; None when it cannot be read, or not whole."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    copy.text_factory = legible
    try:
        source.backup(copy)
        whole: bool = copy.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        _add_missing(copy)
    except sqlite3.Error:
        whole = False
    if not whole:
        copy.close()
    return copy if whole else None


def _remembered(path: Path) -> tuple[sqlite3.Connection, bool]:
    """What can still be read of a file that cannot be written, in memory; whether it is all.

    Without room for SQLite's shared memory only the file itself can be read, without its log.
    """
    for how, whole in (("mode=ro", True), ("immutable=1", not _has_log(path))):
        with contextlib.suppress(sqlite3.Error, ValueError):
            uri = f"{path.absolute().as_uri()}?{how}"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY)) as source:
                if copy := _copied(source):
                    return copy, whole
    return _in_memory(), False


def _has_log(path: Path) -> bool:
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size > 0
    except (OSError, ValueError):
        return False


def _prepare(connection: sqlite3.Connection) -> None:
    """Check the file and bring it to our schema; proves that it can be written."""
    try:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != ("ok",):
            raise _CorruptError(str(verdict[0]).partition("\n")[0])
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        # The kernel keeps committed pages when we are killed; only a power cut can lose the last.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint={_WAL_PAGES}").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        _add_missing(connection)
        connection.execute(f"PRAGMA user_version={max(VERSION, int(version))}")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise _CorruptError(str(error)) from None
        raise


def _add_missing(connection: sqlite3.Connection) -> None:
    """Tables and columns that an older version did not have."""
    connection.executescript(_SCHEMA)
    columns = {row[1] for row in connection.execute("PRAGMA table_info(generations)")}
    if "launched" not in columns:
        connection.execute("ALTER TABLE generations ADD COLUMN launched TEXT NOT NULL DEFAULT ''")


def _transact(connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    if len(statements) == 1:
        connection.execute(*statements[0])
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for sql, values in statements:
            connection.execute(sql, values)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _move_aside(path: Path) -> str:
    """Rename the file and its log; returns the new name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside.name
