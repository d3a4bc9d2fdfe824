"""The store: what survives a kill, a damaged file, a full disk and a reboot."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from watchdog.core.model import Cause
from watchdog.ledger import GenerationRecord, Ledger
from watchdog.store import Anchor, Store, boot_id, now_anchor, rebase

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("vllm", "serve", "m", "--api-key", "s3cret")

WRITER = """
import sys
from pathlib import Path
from watchdog.ledger import GenerationRecord
from watchdog.store import Store

store = Store.open(Path(sys.argv[1]))
for number in range(1_000_000):
    record = GenerationRecord(f"g{number}", "main", "/t", "/l", 0, 1, ("m",), "b", 1.0, 2.0)
    store.planned(record)
    store.spawned(record.id, number, number, 3.0)
    store.members(record.id, [(number, 1), (number, 2)])
    print(number, flush=True)
"""


def record(name: str = "g1", engine: str = "main") -> GenerationRecord:
    """Make the record of a planned generation."""
    return GenerationRecord(name, engine, "/t", "/l.log", 7, 8000, COMMAND, boot_id(), 10.0, 20.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Open a store in an empty directory."""
    store = Store.open(tmp_path / "state")
    yield store
    store.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 256 KiB, and unmount it afterwards."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs the rights of root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def reopened(store: Store, directory: Path) -> Store:
    """Close the store and open what it left."""
    store.close()
    return Store.open(directory)


def test_a_generation_from_plan_to_end(store: Store, tmp_path: Path) -> None:
    """What the next watchdog needs for an adoption is there at each step, also after reopening."""
    ledger: Ledger = store
    ledger.planned(record())
    (planned,) = ledger.living("main")
    assert (planned.pid, planned.command[-1]) == (None, "[redacted]")
    ledger.spawned("g1", 42, 99, 11.0)
    ledger.members("g1", [(42, 99), (43, 100)])
    ledger.became_ready("g1", 12.0)
    store = reopened(store, tmp_path / "state")
    (living,) = store.living("main")
    assert (living.pid, living.start_ticks, living.spawned_at, living.ready_at) == (42, 99, 11, 12)
    assert sorted(store.members_of("g1")) == [(42, 99), (43, 100)]
    store.ended("g1", exit_code=None, signal=9, cause=Cause.OOM_KILLED)
    assert (store.living("main"), store.members_of("g1")) == ((), ())
    (ended,) = store.history("main")
    assert (ended.exit_code, ended.signal, ended.cause) == (None, 9, "oom_killed")
    store.close()


def test_starts_are_counted_once_for_ever(store: Store, tmp_path: Path) -> None:
    """An adoption that notes the leader again is no start; the count survives us."""
    for name in ("g1", "g2"):
        store.planned(record(name))
        store.spawned(name, 1, 1, 1.0)
    store.spawned("g2", 1, 1, 1.0)
    store.planned(record("o1", "other"))
    store = reopened(store, tmp_path / "state")
    assert (store.starts("main"), store.starts("other"), store.starts("none")) == (2, 0, 0)
    store.close()


def test_the_newest_generation_comes_first(store: Store) -> None:
    """Two that live are both remembered, in the order of their plans, each with its engine."""
    for name, engine in [("a", "main"), ("b", "other"), ("c", "main")]:
        store.planned(record(name, engine))
    assert [r.id for r in store.living("main")] == ["c", "a"]


def test_members_are_replaced(store: Store) -> None:
    """A member that is gone is forgotten."""
    store.planned(record())
    store.members("g1", [(1, 1), (2, 2)])
    store.members("g1", [(2, 2)])
    assert store.members_of("g1") == ((2, 2),)


def test_policy_pause_and_serial_survive(store: Store, tmp_path: Path) -> None:
    """Texts come back with the anchor of their saving; the serial never goes back."""
    before = now_anchor()
    store.save_engine("main", "{}")
    store.save_engine("main", '{"failures": 1}')
    store.save_pause("why")
    store.save_incident_serial(7)
    store.save_incident_serial(3)
    store = reopened(store, tmp_path / "state")
    saved, pause = store.load_engine("main"), store.load_pause()
    assert saved is not None
    assert pause is not None
    assert (saved.body, pause.body, store.incident_serial()) == ('{"failures": 1}', "why", 7)
    assert saved.anchor.boot_id == before.boot_id
    assert before.monotonic <= saved.anchor.monotonic <= now_anchor().monotonic
    store.save_pause(None)
    assert (store.load_pause(), store.load_engine("other")) == (None, None)
    store.close()


def test_only_the_last_incidents_are_kept(store: Store) -> None:
    """The thousand newest stay; one that is saved again keeps its place."""
    for number in range(1005):
        store.save_incident(f"i{number}", "{}", float(number))
    store.save_incident("i500", "new", 500.0, 501.0)
    kept = store.incidents()
    assert (len(kept), kept[0].id, kept[-1].id) == (1000, "i1004", "i5")
    again = store.incident("i500")
    assert again is not None
    assert (again.body, again.resolved, store.incident("i4")) == ("new", 501.0, None)


def test_tidying_keeps_the_living(store: Store) -> None:
    """Old generations are forgotten once they have ended, and only then."""
    store.planned(record("first"))
    for number in range(250):
        store.planned(record(f"g{number}"))
        store.ended(f"g{number}", exit_code=0, signal=None, cause=Cause.CRASH)
    store.tidy()
    assert len(store.history("main", 1000)) == 200
    assert [r.id for r in store.living("main")] == ["first"]


def test_what_was_noted_survives_sigkill(tmp_path: Path) -> None:
    """A writer killed in the middle loses nothing that a call returned from, members included."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        noted = [next(writer.stdout) for _ in range(50)]
        writer.send_signal(signal.SIGKILL)
        noted += writer.stdout.readlines()
    finally:
        writer.kill()
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
    last = int([line for line in noted if line.endswith("\n")][-1])
    with closing(Store.open(tmp_path)) as store:
        living = {r.id: r for r in store.living("main")}
        assert store.warnings == ()
        assert {f"g{n}" for n in range(last + 1)} <= set(living)
        assert all(living[f"g{n}"].pid == n for n in range(last + 1))
        assert store.members_of(f"g{last}") == ((last, 1), (last, 2))
        assert store.starts("main") >= last + 1


@pytest.mark.parametrize("damage", ["noise", "middle", "other"])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, damage: str) -> None:
    """A new store begins and says what became of the old one; each time under a new name."""
    path = tmp_path / "store.sqlite3"
    for number in (1, 2):
        with closing(Store.open(tmp_path)) as store:
            for serial in range(200):
                store.save_incident(f"i{serial}", "x" * 200, 1.0)
        data = path.read_bytes()
        spoiled = {"noise": b"noise" * 999, "other": data[:50], "middle": data[:4096]}[damage]
        path.write_bytes(spoiled + (b"\xa5" * (len(data) - 4096) if damage == "middle" else b""))
        with closing(Store.open(tmp_path)) as store:
            (warning,) = store.warnings
            assert f"store.sqlite3.corrupt-{number}" in warning
            assert store.durable
            assert store.incidents() == ()
        assert (tmp_path / f"store.sqlite3.corrupt-{number}").exists()


@pytest.mark.parametrize("spoil", ["a file", "a loop", "nul"])
def test_a_directory_that_cannot_be_used(tmp_path: Path, spoil: str) -> None:
    """The store works in memory, warns once, and raises nothing."""
    directory = tmp_path / "state"
    match spoil:
        case "a file":
            directory.write_text("")
        case "a loop":
            directory.symlink_to(directory)
        case _:
            directory = tmp_path / "a\0b"
    with closing(Store.open(directory)) as store:
        assert (len(store.warnings), store.durable) == (1, False)
        store.planned(record())
        store.tidy()
        assert [r.id for r in store.living("main")] == ["g1"]


def test_memory_only_on_request() -> None:
    """A store without a disk keeps its warning and what it is told."""
    with closing(Store.in_memory("cannot write anywhere")) as store:
        store.save_pause("x")
        assert (store.warnings, store.durable) == (("cannot write anywhere",), False)
        assert store.load_pause() is not None


@pytest.mark.root
def test_a_full_disk_is_survived_and_left_behind(tiny_disk: Path) -> None:
    """On a full disk everything goes on in memory; with room again it is written after all."""
    warnings: list[str] = []
    store = Store.open(tiny_disk, warnings.append)
    store.planned(record("before"))
    assert store.durable
    ballast = tiny_disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as full:
        while full.write(b"\0" * 4096):
            pass
    for number in range(100):
        store.save_incident(f"i{number}", "x" * 1000, 1.0)
    assert not store.durable
    assert (len(warnings), "in memory" in warnings[0]) == (1, True)
    assert (len(store.incidents()), len(store.living("main"))) == (100, 1)
    store.return_to_disk()
    assert not store.durable
    ballast.unlink()
    for number in range(95):
        store.save_incident(f"i{number}", "", 1.0)
    store.return_to_disk()
    assert (store.durable, warnings[1:]) == (True, ["the store is on disk again"])
    store = reopened(store, tiny_disk)
    assert (len(store.incidents()), len(store.living("main"))) == (100, 1)
    store.close()


@pytest.mark.root
def test_a_disk_that_is_full_at_first_is_used_when_it_has_room(tiny_disk: Path) -> None:
    """What was written meanwhile is on the disk then, and goes on to be."""
    ballast, warnings = tiny_disk / "ballast", list[str]()
    with suppress(OSError), ballast.open("wb", buffering=0) as full:
        while full.write(b"\0" * 4096):
            pass
    store = Store.open(tiny_disk, warnings.append)
    assert (len(store.warnings), store.durable) == (1, False)
    store.planned(record())
    store.tidy()
    ballast.unlink()
    store.tidy()
    assert (store.durable, warnings) == (True, ["the store is on disk again"])
    store.planned(record("g2"))
    store = reopened(store, tiny_disk)
    assert {one.id for one in store.living("main")} == {"g1", "g2"}
    store.close()


@pytest.mark.root
def test_what_could_not_be_read_is_not_overwritten(tiny_disk: Path) -> None:
    """Damaged on a disk that is read-only: moved aside as soon as that can be done, and told."""
    path, warnings = tiny_disk / "store.sqlite3", list[str]()
    path.write_bytes(b"noise" * 999)
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with closing(Store.open(tiny_disk, warnings.append)) as store:
        store.planned(record())
        subprocess.run(["mount", "-o", "remount,rw", str(tiny_disk)], check=True)
        store.tidy()
        assert store.durable
        assert warnings == [
            "the store is on disk again; what was there before is in store.sqlite3.corrupt-1"
        ]
        assert (tiny_disk / "store.sqlite3.corrupt-1").read_bytes() == b"noise" * 999
        assert [one.id for one in store.living("main")] == ["g1"]


@pytest.mark.root
def test_a_read_only_disk_is_still_remembered(tiny_disk: Path) -> None:
    """What lived is known for adoption although nothing can be written any more."""
    with closing(Store.open(tiny_disk)) as store:
        store.planned(record())
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with closing(Store.open(tiny_disk)) as store:
        assert not store.durable
        assert [r.id for r in store.living("main")] == ["g1"]
        store.ended("g1", exit_code=0, signal=None, cause=Cause.OPERATOR)
        assert store.living("main") == ()


def test_nobody_else_can_read_it(store: Store, tmp_path: Path) -> None:
    """File and log are for their owner only: commands can hold what we do not know as secret."""
    store.planned(record())
    for path in (tmp_path / "state").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_texts_that_sqlite_cannot_hold(store: Store) -> None:
    """A path with bytes that are no UTF-8 costs a warning, not the store."""
    store.save_pause(os.fsdecode(b"\xff"))
    assert store.durable
    assert store.load_pause() is None


def test_a_newer_file_is_used_as_it_is(store: Store, tmp_path: Path) -> None:
    """After a downgrade history is kept, and the newer version number too."""
    store.planned(record())
    store.close()
    path = tmp_path / "state" / "store.sqlite3"
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("ALTER TABLE generations ADD COLUMN later TEXT")
        newer.execute("PRAGMA user_version=99")
    with closing(Store.open(tmp_path / "state")) as older:
        older.planned(record("g2"))
        assert [r.id for r in older.living("main")] == ["g2", "g1"]
    with closing(sqlite3.connect(path)) as newer:
        assert newer.execute("PRAGMA user_version").fetchone() == (99,)


def test_after_close_nothing_raises(store: Store) -> None:
    """Late calls of dying threads are harmless."""
    store.close()
    store.planned(record())
    store.tidy()
    store.close()
    assert store.living("main") == ()


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Anchor("a", 150.0, 1050.0), 90.0),
        (Anchor("a", 150.0, 9.0), 90.0),
        (Anchor("b", 30.0, 1060.0), -40.0),
        (Anchor("b", 30.0, 900.0), 20.0),
        (Anchor("", 30.0, 1060.0), -40.0),
        (Anchor("a", 30.0, 1060.0), -40.0),
    ],
)
def test_times_across_a_reboot(now: Anchor, expected: float) -> None:
    """On one boot times stay, whatever the wall clock did; across boots the age is kept.

    A wall clock that went back counts as no time at all, and a monotonic clock that went back
    (a restored container) as another boot.
    """
    assert rebase(90.0, Anchor("a", 100.0, 1000.0), now) == expected


def test_a_store_of_an_older_schema_is_brought_up(tmp_path: Path) -> None:
    """FACT: a file without the later column is used: what it knows stays, what is new is kept."""
    with closing(Store.open(tmp_path / "state")) as store:
        store.planned(record())
    path = tmp_path / "state" / "store.sqlite3"
    with closing(sqlite3.connect(path)) as older:
        older.execute("ALTER TABLE generations DROP COLUMN launched")
        older.execute("PRAGMA user_version=1")
    with closing(Store.open(tmp_path / "state")) as store:
        assert store.warnings == ()
        store.planned(replace(record("g2", "other"), launched="{}"))
        found = [r.launched for name in ("main", "other") for r in store.living(name)]
        assert found == ["", "{}"]
        assert store.engines(boot_id()) == ("main", "other")
        assert store.engines("another") == ()
        store.ended("g2", exit_code=0, signal=None, cause=Cause.OPERATOR)
        assert store.engines(boot_id()) == ("main",)
