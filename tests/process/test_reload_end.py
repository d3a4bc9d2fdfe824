"""A stop or an end that comes while an engine is about to become another."""

from __future__ import annotations

import concurrent.futures
import signal
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.daemon import running
from tests.support.reloads import READY, File, engines, fault, post, ready, reload, watched
from tests.support.simulated import alive, until
from tests.support.trees import script, supervision
from watchdog.config import EngineConfig
from watchdog.core.model import Cause
from watchdog.daemon.box import EngineBox
from watchdog.daemon.crew import Crew
from watchdog.daemon.wiring import Engine
from watchdog.supervisor.engine import EngineSettings
from watchdog.supervisor.ladder import StopSettings
from watchdog.supervisor.memory_ledger import MemoryLedger

SLOW = ("--startup-time", "0", "--tokens-per-second", "20")


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A file with one slow engine, not written yet."""
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, *SLOW)
    return file


def test_leaving_a_restart_that_drains_leaves_the_engine(file: File) -> None:
    """FACT: SIGQUIT before anybody was signalled: the request finishes, the same engine lives.

    The next watchdog makes the restart.
    """
    with watched(file) as daemon, concurrent.futures.ThreadPoolExecutor(1) as pool:
        pids = engines(daemon)["main"]["pids"]
        body = {"prompt": "a", "max_tokens": 200}
        answer = pool.submit(post, file.port, "/v1/completions", body)
        until(lambda: engines(daemon)["main"]["verdict"] == "busy")
        file.engines["main"]["env"] = {"A": "b"}
        file.write()
        assert reload(daemon)["restarts"] == ["main"]
        until(lambda: daemon.engine()["state"] == "stopping")
        daemon.send(signal.SIGQUIT)
        assert daemon.ended() == 0
        assert all(alive(pid) for pid in pids)
        assert not daemon.events("incident.opened")
        assert daemon.events("engine.left")
        with running(file.path.parent / "s", (), file.port, config=file.path) as successor:
            assert answer.result() == 200
            until(lambda: successor.engine().get("starts") == 2 and ready(successor), READY)
            assert not [pid for pid in pids if alive(pid)]


def test_leaving_a_restart_that_kills_starts_what_serves(file: File) -> None:
    """FACT: SIGQUIT after the first signal: the new engine is started before we go."""
    file.engines["main"]["stop"] = {"drain_timeout": "0s", "term_timeout": "5s"}
    with watched(file) as daemon:
        pids = engines(daemon)["main"]["pids"]
        fault(file.port, "ignore_term")
        file.engines["main"]["env"] = {"A": "b"}
        file.write()
        assert reload(daemon)["restarts"] == ["main"]
        until(lambda: daemon.engine()["state"] == "stopping")
        daemon.send(signal.SIGQUIT)
        assert daemon.ended() == 0
        assert not [pid for pid in pids if alive(pid)]
        with running(file.path.parent / "s", (), file.port, config=file.path) as successor:
            adopted = successor.wait_event("engine.adopted")
            assert adopted["starts"] == 2
            successor.wait_ready(READY)


def test_a_stop_ends_the_wait_for_a_place(file: File) -> None:
    """FACT: an engine that waits for another's port is stopped at once when that is asked for."""
    with watched(file) as daemon:
        assert daemon.command("pause", "--reason", "test").returncode == 0
        old = file.port
        file.engine("main", 0, *SLOW)
        file.engine("new", old, *SLOW)
        file.write()
        reload(daemon)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            started = pool.submit(daemon.command, "start", "new")
            until(lambda: engines(daemon)["new"]["state"] == "starting")
            assert daemon.command("stop", "new", patience=30).returncode == 0
            started.result()
        assert engines(daemon)["new"]["state"] == "stopped"
        assert ready(daemon) == {"main"}


def test_the_patience_is_that_of_what_runs() -> None:
    """FACT: a limit of the crew counts the ladder of what runs, however short the next one is."""
    command = script("print('ready=1', flush=True)\ntime.sleep(600)\n")
    patient = StopSettings(drain_timeout=1000.0, term_timeout=0.6, kill_timeout=5.0)
    with supervision(command, stop=patient) as supervised:
        none = cast("Any", None)
        crew = Crew(EngineBox({}, MemoryLedger()))
        crew.engines = {"main": Engine(EngineConfig(), supervised.engine, none, none, none)}
        supervised.engine.start(Cause.OPERATOR)
        old = supervised.engine.settings
        for seconds in (1.0, 2.0):
            stop = StopSettings(drain_timeout=seconds)
            supervised.engine.reconfigure(EngineSettings(old.launch, old.endpoint, stop))
            assert crew.patience() > 1000.0
        supervised.engine.stop(drain=False, cause=Cause.OPERATOR)
        assert crew.patience() < 1000.0
