"""What an earlier watchdog left is wrong, foreign or broken: named, bounded, nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running, simulated_command
from tests.support.simulated import ROOT, alive, free_port, stat_fields, until

READY = 120.0


@contextlib.contextmanager
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who has nothing to do with any engine, in a session of his own."""
    command = [sys.executable, "-ISc", "import time; time.sleep(600)"]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def on(port: int, directory: Path) -> Iterator[Daemon]:
    """A watchdog with one engine."""
    command = simulated_command(port, "--startup-time", "0")
    with running(directory, command, port) as daemon:
        yield daemon


def killed(daemon: Daemon) -> list[int]:
    """End the watchdog by SIGKILL; the engine's processes, the leader first."""
    pids = list(daemon.wait_ready(READY)["pids"])
    daemon.remember(pids)
    daemon.send(signal.SIGKILL)
    daemon.ended()
    return pids


def written(directory: Path, sql: str, *values: object) -> None:
    """Change the store behind everybody's back."""
    with contextlib.closing(sqlite3.connect(directory / "store.sqlite3")) as store:
        store.execute(sql, values)
        store.commit()


@pytest.mark.parametrize("case", ["another boot", "another start", "no such pid", "not a pid"])
def test_a_record_that_names_a_stranger(tmp_path: Path, case: str) -> None:
    """FACT: nobody is adopted or signalled for a number: the record is closed, the engine started.

    Neither when the stranger's start time is right and the boot is not, nor the other way round.
    """
    port = free_port()
    with stranger() as other:
        with on(port, tmp_path) as first:
            for pid in killed(first):
                os.kill(pid, signal.SIGKILL)
            until(lambda: not first.survivors())
        ticks = int(stat_fields(other.pid)[19])
        number: int = {"no such pid": 1 << 40, "not a pid": -1}.get(case, other.pid)
        ticks += case == "another start"
        sql = "UPDATE generations SET state = 'spawned', pid = ?, start_ticks = ?"
        if case == "another boot":
            sql += ", boot_id = 'another'"
        written(tmp_path, sql, number, ticks)
        written(tmp_path, "INSERT INTO members SELECT id, ?, ? FROM generations", number, ticks + 1)
        with on(port, tmp_path) as second:
            now = second.wait_ready(READY)
            assert other.poll() is None
            assert other.pid not in now["pids"]
            assert now["starts"] == 2
            assert not second.events("watchdog.bug")
        assert other.poll() is None


def spoil(path: Path, how: str) -> None:
    """Damage the store."""
    with contextlib.closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for one in path.parent.glob(f"{path.name}-*"):
        one.unlink()
    match how:
        case "gone":
            path.unlink()
        case "garbage":
            path.write_bytes(b"\xa5" * 9999)
        case "truncated":
            path.write_bytes(path.read_bytes()[:5000])
        case "another schema":
            path.unlink()
            with contextlib.closing(sqlite3.connect(path)) as store:
                store.execute("CREATE TABLE generations (id TEXT, engine TEXT, state TEXT)")
        case _:
            path.unlink()
            path.mkdir()


@pytest.mark.parametrize("how", ["garbage", "truncated", "another schema", "directory", "gone"])
def test_a_store_that_is_lost_loses_no_engine(tmp_path: Path, how: str) -> None:
    """FACT: what served before serves on, is known by its mark, and is not doubled.

    A store that is damaged is named in the log; one that is gone cannot be missed.
    """
    port = free_port()
    with on(port, tmp_path) as first:
        pids = killed(first)
        spoil(tmp_path / "store.sqlite3", how)
        with on(port, tmp_path) as second:
            if how != "gone":
                assert "store" in second.wait_event("watchdog.degraded", READY)["reason"]
            assert second.wait_event("engine.adopted", READY)["pid"] == pids[0]
            until(lambda: second.verdict() in {"ready", "busy"}, READY)
            assert "foreign-manager" not in rules(second)
            assert all(alive(pid) for pid in pids)
            assert not second.events("engine.started")
            assert not second.events("watchdog.bug")


def rules(daemon: Daemon) -> dict[str, str]:
    """What is found now, with the evidence of who is there."""
    return {
        one["rule"]: str(one["evidence"].get("engine_port.foreign", ""))
        for one in daemon.status().get("findings", [])
    }


# --- two watchdogs --------------------------------------------------------------------------------


def second_one(state_dir: Path, port: int, *flags: str) -> subprocess.CompletedProcess[str]:
    """Another watchdog, to its end."""
    words = ["--state-dir", str(state_dir), "--listen", "127.0.0.1:0", *flags]
    command = simulated_command(port, "--startup-time", "0")
    return subprocess.run(
        [sys.executable, "-m", "watchdog", "run", *words, "--", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("mode", [(), ("--mode", "observe")])
@pytest.mark.parametrize("shared", ["state directory", "port"])
def test_the_second_watchdog_is_refused(tmp_path: Path, shared: str, mode: tuple[str, ...]) -> None:
    """FACT: W2: exit 69 and one line that names the first, who is not disturbed."""
    port = free_port()
    with on(port, tmp_path / "a") as first:
        leader = first.wait_ready(READY)["pid"]
        if shared == "port":
            done = second_one(tmp_path / "b", port, *mode)
        else:
            done = second_one(tmp_path / "a", free_port(), *mode)
        assert (done.returncode, done.stdout) == (69, "")
        (text,) = done.stderr.splitlines()
        assert text.startswith("cannot lock ")
        assert text.endswith(f"another watchdog holds it (process {first.process.pid})")
        assert first.wait_ready(READY)["pid"] == leader


@pytest.mark.parametrize("thing", ["directory", "pipe"])
def test_a_lock_that_is_no_file(tmp_path: Path, thing: str) -> None:
    """FACT: without a lock nothing is started: exit 69, one line, and what is there stays."""
    (tmp_path / "lock").mkdir() if thing == "directory" else os.mkfifo(tmp_path / "lock")
    done = second_one(tmp_path, free_port())
    assert done.returncode == 69
    (text,) = done.stderr.splitlines()
    assert text.startswith(f"cannot lock {tmp_path}/lock: ")
