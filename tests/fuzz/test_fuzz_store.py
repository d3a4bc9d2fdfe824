"""Stores that were damaged, or that somebody else wrote: told in lines, and the rest is kept."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.budget import mutated, times
from tests.support.core import NAME, restarting
from watchdog.core.model import Pause, engine_subject
from watchdog.core.state import EngineSettings, RestartHistory, State, Step, Track
from watchdog.daemon.memory import Memory
from watchdog.ledger import GenerationRecord
from watchdog.store import Store
from watchdog.store.database import FILE
from watchdog.store.ended import ended_tempdirs
from watchdog.store.told import UnreadableStoreError, stored_incident, stored_incidents

OTHER = "other"
BOOT = "boot"
OURS = (EngineSettings(NAME), EngineSettings(OTHER))
KEY = ("mine", engine_subject(OTHER))


def kept() -> State:
    """What a watchdog of two engines, of which one broke, keeps."""
    state, now = restarting().state, time.monotonic()
    other = state.engines[NAME].__class__(
        EngineSettings(OTHER), history=RestartHistory(wanted=True)
    )
    return State(
        engines={**state.engines, OTHER: other},
        incidents=state.incidents,
        incident_serial=state.incident_serial,
        pause=Pause("maintenance", "me", now, now + 9000.0),
        tracks={KEY: Track(1, acted_at=now, action="restart_engine")},
    )


def planned(store: Store, name: str, engine: str) -> None:
    """A start that was noted."""
    place = (f"/tmp/{name}", f"/tmp/{name}.log", 0, 8000, ("vllm", "serve", "m"), BOOT)
    store.planned(GenerationRecord(name, engine, *place, 1.0, 2.0))
    store.spawned(name, 1 << 22, 5, 3.0)


@pytest.fixture(scope="module", name="written")
def fixture_written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a whole store, with all that it can have; its log is in it."""
    folder = tmp_path_factory.mktemp("written")
    with contextlib.closing(Store.open(folder)) as store:
        Memory(store).keep(Step(kept()))
        planned(store, "g1", NAME)
        planned(store, "g2", OTHER)
        store.save_model(NAME, "{}")
    with contextlib.closing(sqlite3.connect(folder / FILE)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        raw.execute("PRAGMA journal_mode=DELETE").fetchall()
    return folder / FILE


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples are made, one after the other."""
    return tmp_path_factory.mktemp("store") / "state"


def laid(folder: Path, data: bytes) -> None:
    """A state directory with this store and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / FILE).write_bytes(data)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[Store, list[str]]]:
    """The store, and every line that was said of it so far."""
    said: list[str] = []
    with contextlib.closing(Store.open(folder, said.append)) as store:
        said += store.warnings
        yield store, said


def everything(store: Store) -> State:
    """Whatever a watchdog asks at its beginning; nothing may be raised."""
    state = Memory(store).recall(OURS, frozenset())
    for name in (NAME, OTHER):
        for record in store.living(name):
            store.members_of(record.id)
        store.history(name)
        store.load_model(name)
    store.engines(BOOT)
    store.ended_tempdirs()
    store.tidy()
    assert set(state.engines) == {NAME, OTHER}
    return state


def beside(folder: Path) -> None:
    """What a command reads without a daemon: incidents, or one line."""
    with contextlib.suppress(UnreadableStoreError):
        for one in stored_incidents(folder, 50) or ():
            stored_incident(folder, one.id)
    ended_tempdirs(folder)


def check_words(said: list[str]) -> None:
    """One line each."""
    for line in said:
        assert line.isprintable(), line
        assert len(line) <= 400


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, int, int, bytes]:
    """What is done to a file: how, where in parts of a million, how many bytes, and noise."""
    how = draw(st.sampled_from(("flip", "cut", "noise", "zeros", "repeat")))
    at, size = draw(st.integers(0, 999_999)), draw(st.sampled_from((1, 1, 1, 16, 512, 4096)))
    return how, at, size, draw(st.binary(min_size=1, max_size=16))


def spoiled(data: bytes, how: str, at: int, size: int, noise: bytes) -> bytes:
    """The file after that."""
    found, place = bytearray(data), at * len(data) // 1_000_000
    match how:
        case "flip":
            found[place] ^= 1 << noise[0] % 8
        case "cut":
            del found[place:]
        case "noise":
            found[place : place + size] = (noise * size)[:size]
        case "zeros":
            found[place : place + size] = bytes(size)
        case _:
            found[place:place] = found[place : place + size]
    return bytes(found)


@times(250)
@given(deeds=st.lists(damaged(), min_size=1, max_size=3))
def test_fuzz_damage(written: Path, folder: Path, deeds: list[tuple[str, int, int, bytes]]) -> None:
    """FACT: whatever happens to the file, the watchdog begins, says it in lines, and keeps anew."""
    data = written.read_bytes()
    for deed in deeds:
        data = spoiled(data, *deed)
    laid(folder, data)
    beside(folder)
    with opened(folder) as (store, said):
        everything(store)
        store.save_engine("newcomer", "{}")
        saved = store.load_engine("newcomer")
        assert saved is not None
        assert saved.body == "{}"
    check_words(said)
    assert len(set(said)) <= 4


CELLS = tuple(
    (table, column)
    for table, columns in {
        "generations": "state tempdir log_path log_offset port command boot_id planned_at "
        "planned_wall pid start_ticks spawned_at ready_at launched",
        "members": "pid start_ticks",
        "saved": "body boot_id monotonic wall",
        "numbers": "value",
        "incidents": "id body opened resolved",
    }.items()
    for column in columns.split()
)
BODIES = (
    b'{"restarts": [], "wanted": true, "retry_at": 1e308}',
    b'{"restarts": [{"at": -1, "cause": "crash", "free": 1}], "wanted": null}',
    b'[["mine", {"kind": "engine", "name": "other"}, {"rung": -5, "acted_at": 1e300}]]',
    b'{"reason": "r", "owner": "o", "since": 1, "until": -1e308}',
    b'{"x":' + b"[" * 2000,
    b'["vllm", 5]',
)
VALUES = (
    st.none()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | mutated(BODIES).map(lambda data: data.decode(errors="replace"))
    | mutated(BODIES)
)


def foreign(folder: Path, table: str, column: str, value: object, row: int) -> bool:
    """Another program writes one cell; False when SQLite itself refuses."""
    sql = f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT rowid FROM {table} LIMIT 1 OFFSET ?)"  # noqa: E501, S608
    if table in {"saved", "numbers", "members"}:
        sql = f"UPDATE {table} SET {column} = ? WHERE (SELECT count(*) FROM {table}) > ?"  # noqa: S608
    with contextlib.closing(sqlite3.connect(folder / FILE)) as raw:
        try:
            raw.execute(sql, (value, row))
            raw.commit()
        except (sqlite3.Error, UnicodeEncodeError):
            return False
    return True


@times(300)
@given(cell=st.sampled_from(CELLS), value=VALUES, row=st.integers(0, 1))
def test_fuzz_foreign_values(
    written: Path, folder: Path, cell: tuple[str, str], value: object, row: int
) -> None:
    """FACT: a cell of another version or program costs what it tells of, and no other table."""
    laid(folder, written.read_bytes())
    if not foreign(folder, *cell, value, row):
        return
    beside(folder)
    with opened(folder) as (store, said):
        state = everything(store)
        assert store.durable
    check_words(said)
    if cell[0] not in {"saved", "generations"}:
        assert state.pause is not None
        assert set(state.tracks) == {KEY}
    if cell[0] != "incidents":
        assert len(state.incidents) == len(kept().incidents)


@times(100)
@given(cell=st.sampled_from([c for c in CELLS if c[0] == "incidents"]), value=VALUES)
def test_fuzz_one_incident(
    written: Path, folder: Path, cell: tuple[str, str], value: object
) -> None:
    """FACT: an incident that cannot be understood hides no other."""
    laid(folder, written.read_bytes())
    with contextlib.closing(sqlite3.connect(folder / FILE)) as raw:
        raw.execute(
            "INSERT INTO incidents (id, body, opened, resolved) "
            "SELECT 'inc-000999', body, opened, resolved FROM incidents LIMIT 1"
        )
        raw.commit()
    if not foreign(folder, *cell, value, 1):
        return
    with opened(folder) as (store, said):
        found = everything(store).incidents
    check_words(said)
    assert found
    assert found[0] == kept().incidents[0]
