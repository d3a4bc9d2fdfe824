"""The difference is taken against what runs: a restart that is owed is made once it may be."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running
from tests.support.reloads import READY, File, engines, is_locked, post, ready, reload, watched
from tests.support.simulated import alive, until

OBSERVE = '[watchdog]\nmode = "observe"'
ACT = '[watchdog]\nmode = "act"'


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A file with one slow engine, not written yet."""
    file = File(tmp_path / "watchdog.toml")
    slow(file)
    return file


def slow(file: File, port: int = 0) -> int:
    """Configure the engine, on another port; which one."""
    return file.engine("main", port, "--startup-time", "0", "--tokens-per-second", "20")


@contextlib.contextmanager
def asked(daemon: Daemon, port: int, tokens: int) -> Iterator[concurrent.futures.Future[int]]:
    """A request in the engine, which is seen to be busy."""
    body = {"prompt": "a", "max_tokens": tokens}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, port, "/v1/completions", body)
        until(lambda: engines(daemon)["main"]["verdict"] == "busy")
        yield answer


def test_what_was_changed_while_observing_is_made_up_for(file: File) -> None:
    """FACT: observed, the restart is held and said to be; the reload that lets us act makes it."""
    with watched(file) as daemon:
        old, new = file.port, slow(file)
        file.write(OBSERVE)
        answer = reload(daemon)
        assert (answer["restarts"], answer["held"]) == ([], ["main: observe mode"])
        file.write(ACT)
        answer = reload(daemon)
        assert (answer["restarts"], answer["held"]) == (["main"], [])
        until(lambda: daemon.engine()["starts"] == 2 and ready(daemon), READY)
        assert daemon.engine()["port"] == new
        until(lambda: not is_locked(old))
        assert reload(daemon)["restarts"] == []


def test_a_pause_holds_it_and_its_end_makes_it(file: File) -> None:
    """FACT: paused, a changed engine is not restarted; the log says why; resumed, it is, once."""
    with watched(file) as daemon:
        assert daemon.command("pause", "--reason", "test").returncode == 0
        new = slow(file)
        file.write()
        done = daemon.command("reload")
        assert "main does not restart yet: paused" in done.stdout
        assert daemon.wait_event("config.reloaded")["held"] == ["main: paused"]
        assert daemon.command("resume").returncode == 0
        until(lambda: daemon.engine()["starts"] == 2 and ready(daemon), READY)
        assert daemon.engine()["port"] == new
        until(lambda: len(daemon.events("action.finished")) == 2)
        assert {e["result"] for e in daemon.events("action.finished")} == {"ok"}


def test_two_reloads_are_one_restart(file: File) -> None:
    """FACT: the same change asked for again while the engine drains restarts it once."""
    old = file.port
    with watched(file) as daemon, asked(daemon, old, 160) as answer:
        slow(file)
        file.write()
        assert reload(daemon)["restarts"] == ["main"]
        assert reload(daemon)["restarts"] == ["main"]
        assert answer.result() == 200
        until(lambda: daemon.engine()["starts"] == 2 and ready(daemon), READY)
        until(lambda: len(daemon.events("action.finished")) == 2)
        assert reload(daemon)["restarts"] == []
        assert daemon.engine()["starts"] == 2


def test_the_next_watchdog_owes_it_too(file: File) -> None:
    """FACT: killed while the engine drains: the next one finds it at its old port, and restarts it.

    The request finishes, the old port stays locked until then, nothing has failed.
    """
    old = file.port
    with watched(file) as daemon, asked(daemon, old, 300) as answer:
        pids = engines(daemon)["main"]["pids"]
        new = slow(file)
        file.write()
        reload(daemon)
        daemon.send(signal.SIGKILL)
        daemon.ended()
        with running(file.path.parent / "s", (), new, config=file.path) as successor:
            successor.wait_event("engine.adopted")
            until(lambda: successor.engine().get("port") == old)
            assert (is_locked(old), is_locked(new)) == (True, True)
            assert answer.result() == 200
            until(lambda: successor.engine()["port"] == new and ready(successor), READY)
            assert not [pid for pid in pids if alive(pid)]
            until(lambda: not is_locked(old))
            assert not successor.events("incident.opened")
            assert engines(successor)["main"]["starts"] == 2


def test_an_observing_successor_tells_what_it_owes(file: File) -> None:
    """FACT: it looks where the engine is, touches nothing, and the log names the restart."""
    with watched(file) as daemon:
        old, pids = file.port, engines(daemon)["main"]["pids"]
        daemon.send(signal.SIGKILL)
        daemon.ended()
        slow(file)
        file.write(OBSERVE)
        with running(file.path.parent / "s", (), file.port, config=file.path) as successor:
            line = successor.wait_event("engine.restart_owed")
            assert (line["engine"], line["reason"]) == ("main", "observe mode")
            assert successor.wait_ready(READY)["port"] == old
            assert engines(successor)["main"]["pids"] == pids
