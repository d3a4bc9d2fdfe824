"""What a watchdog does with an engine of its own that nothing remembers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import finish, launch, simulated_command
from tests.support.simulated import alive, free_port, until
from tests.support.trees import script
from watchdog.contracts import Endpoint
from watchdog.supervisor.lost import recover
from watchdog.supervisor.memory_ledger import MemoryLedger
from watchdog.supervisor.spawn import Launch

READY = 120.0
LISTEN = (
    "import socket\n"
    "listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "print('ready', flush=True)\n"
    "time.sleep(600)\n"
)
IDLE = "print('ready', flush=True)\ntime.sleep(600)\n"


@contextmanager
def running(command: tuple[str, ...], log: Path, **marks: str) -> Iterator[int]:
    """A process in a session of its own with these marks, which prints into ``log``; its pid."""
    env = {**os.environ, **marks}
    with (
        log.open("wb") as file,
        subprocess.Popen(command, env=env, start_new_session=True, stdout=file) as process,
    ):
        try:
            until(lambda: log.read_bytes() == b"ready\n")
            yield process.pid
        finally:
            process.kill()


def marks(engine: str = "main", generation: str = "0123456789abcdef") -> dict[str, str]:
    """What a watchdog puts into an engine's environment."""
    return {"VLLM_WATCHDOG_ENGINE": engine, "VLLM_WATCHDOG_GENERATION": generation}


def test_a_start_that_the_ledger_lacks_is_noted(tmp_path: Path) -> None:
    """FACT: who bears the engine's mark and listens on its port is noted as it is, once."""
    port, ledger = free_port(), MemoryLedger()
    command = (*script(LISTEN), str(port))
    where = Launch("main", ("other", "words"), tmp_path / "log"), Endpoint("127.0.0.1", port)
    with running(command, tmp_path / "elsewhere", **marks()) as pid:
        (found,) = recover(*where, ledger)
        (kept,) = ledger.living("main")
        assert (kept.id, kept.pid, found.command) == ("0123456789abcdef", pid, command)
        assert recover(*where, ledger) == ()


def test_one_that_has_not_opened_its_port_is_known_by_its_log(tmp_path: Path) -> None:
    """FACT: while it loads nobody listens: then it is known by the file that it writes to."""
    ledger, endpoint = MemoryLedger(), Endpoint("127.0.0.1", free_port())
    command = script(IDLE)
    with running(command, tmp_path / "log", **marks()):
        other = Launch("main", command, tmp_path / "other")
        other.log_path.touch()
        assert recover(other, endpoint, ledger) == ()
        same = Launch("main", command, tmp_path / "log")
        assert len(recover(same, endpoint, ledger)) == 1


@pytest.mark.parametrize("how", ["no mark", "another engine", "a hook", "a socket"])
def test_whoever_may_be_somebody_elses_is_let_be(tmp_path: Path, how: str) -> None:
    """FACT: without this engine's mark, or where no lock keeps others away, nothing is noted."""
    ledger, endpoint = MemoryLedger(), Endpoint("127.0.0.1", free_port())
    worn = {
        "no mark": {},
        "another engine": marks("other"),
        "a hook": {**marks(), "VLLM_WATCHDOG_HOOK": "pre_start"},
        "a socket": marks(),
    }[how]
    if how == "a socket":
        endpoint = Endpoint("127.0.0.1", 0, uds=str(tmp_path / "sock"))
    command = script(IDLE)
    with running(command, tmp_path / "log", **worn):
        assert recover(Launch("main", command, tmp_path / "log"), endpoint, ledger) == ()


def test_a_watchdog_without_its_store_adopts_its_engine(tmp_path: Path) -> None:
    """FACT: the store is gone, the engine is not: it is the same process after as before."""
    port = free_port()
    first = launch(tmp_path / "s", simulated_command(port), port)
    second = None
    try:
        before = first.wait_ready(READY)
        first.send(signal.SIGKILL)
        first.ended()
        for file in (tmp_path / "s").glob("store.sqlite3*"):
            file.unlink()
        second = launch(tmp_path / "s", simulated_command(port), port)
        adopted = second.wait_event("engine.adopted", READY)
        assert adopted["pid"] == before["pid"]
        assert second.wait_ready(READY)["pid"] == before["pid"]
        assert not second.events("engine.started")
        assert adopted["generation"] == before["generation"]
    finally:
        first.ours |= second.ours if second is not None else set()
        for daemon in filter(None, (second, first)):
            finish(daemon)


def test_what_a_dead_leader_left_is_ended_before_a_start(tmp_path: Path) -> None:
    """FACT: without store and leader EngineCore is found by its session: nothing starts on it."""
    port, state = free_port(), tmp_path / "s"
    first = launch(state, simulated_command(port), port)
    second = None
    try:
        before = first.wait_ready(READY)
        assert first.command("pause", "--reason", "x").returncode == 0
        os.kill(before["pid"], signal.SIGKILL)
        first.wait_event("engine.exited", READY)
        first.send(signal.SIGKILL)
        first.ended()
        for file in state.glob("store.sqlite3*"):
            file.unlink()
        assert [pid for pid in before["pids"] if alive(pid)]
        second = launch(state, simulated_command(port), port)
        second.wait_event("engine.started", READY)
        assert not [pid for pid in before["pids"] if alive(pid)]
        assert second.wait_ready(READY)["generation"] != before["generation"]
    finally:
        first.ours |= second.ours if second is not None else set()
        for daemon in filter(None, (second, first)):
            finish(daemon)
