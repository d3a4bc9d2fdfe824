"""Engines that left the configuration: one pair of hands, an account, and an end, come what may."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running
from tests.support.reloads import READY, File, engines, post, ready, reload, rule, watched
from tests.support.simulated import alive, until

OBSERVE = '[watchdog]\nmode = "observe"'
ACT = '[watchdog]\nmode = "act"'


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A file with one engine, not written yet."""
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, "--startup-time", "0")
    return file


@contextlib.contextmanager
def asked(
    daemon: Daemon, name: str, port: int, tokens: int = 160
) -> Iterator[concurrent.futures.Future[int]]:
    """A request in the engine, which is seen to be busy."""
    body = {"prompt": "a", "max_tokens": tokens}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, port, "/v1/completions", body)
        until(lambda: engines(daemon)[name]["verdict"] == "busy")
        yield answer


def slow(file: File, name: str = "b") -> int:
    """Configure an engine whose requests take seconds; its port."""
    return file.engine(name, 0, "--startup-time", "0", "--tokens-per-second", "20")


def without(file: File, name: str, rest: str = "") -> dict[str, object]:
    """Write the file without that engine; its table."""
    table = file.engines.pop(name)
    file.write(rest)
    return table


def test_who_observes_lets_a_stop_end(file: File) -> None:
    """FACT: a stop that is under way when observe comes goes on; then the engine is forgotten."""
    port = slow(file)
    with watched(file) as daemon:
        pids = engines(daemon)["b"]["pids"]
        with asked(daemon, "b", port) as answer:
            without(file, "b")
            reload(daemon)
            file.write(OBSERVE)
            reload(daemon)
            assert engines(daemon)["b"]["state"] == "stopping"
            assert answer.result() == 200
        until(lambda: set(engines(daemon)) == {"main"})
        assert not [pid for pid in pids if alive(pid)]
        names = [line["event"] for line in daemon.events()]
        assert names.index("engine.stopped") < names.index("engine.forgotten")


def test_who_comes_back_has_one_pair_of_hands(file: File) -> None:
    """FACT: away, observed and back while the stop runs: one stop, one start, no failure."""
    port = slow(file)
    with watched(file) as daemon, asked(daemon, "b", port) as answer:
        table = without(file, "b")
        reload(daemon)
        file.write(OBSERVE)
        reload(daemon)
        file.engines["b"] = table
        file.write(ACT)
        assert reload(daemon)["restarts"] == ["b"]
        assert answer.result() == 200
        until(lambda: ready(daemon) == {"main", "b"}, READY)
        assert engines(daemon)["b"]["starts"] == 2
        results = [(e["result"]) for e in daemon.events("action.finished") if e["engine"] == "b"]
        assert results == ["ok"] * 3
        assert not daemon.events("incident.opened")


def test_who_comes_back_while_observing_is_wanted(file: File) -> None:
    """FACT: its account is the one from before the stop: once we act again, it is started."""
    port = slow(file)
    with watched(file) as daemon, asked(daemon, "b", port, 120):
        table = without(file, "b")
        reload(daemon)
        file.engines["b"] = table
        file.write(OBSERVE)
        assert reload(daemon)["held"] == ["b: observe mode"]
        until(lambda: engines(daemon)["b"]["state"] == "stopped", READY)
        assert engines(daemon)["b"]["wanted"]
        file.write(ACT)
        reload(daemon)
        until(lambda: ready(daemon) == {"main", "b"}, READY)


def test_that_it_left_is_nobodys_stop(file: File) -> None:
    """FACT: a standby that was away may be started by a rule, as before: no operator stopped it."""
    file.engine("idle", 0, "--startup-time", "0", standby=True)
    file.write()
    scale = rule(
        "scale",
        subject="engine",
        summary="it is needed",
        severity="info",
        reason="a test",
        when='engine.process == "stopped" && !engine.wanted',
        actions=["start_engine"],
    )
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        daemon.wait_ready(READY)
        table = without(file, "idle")
        reload(daemon)
        until(lambda: set(engines(daemon)) == {"main"})
        file.engines["idle"] = table
        file.write(scale)
        reload(daemon)
        until(lambda: ready(daemon) == {"main", "idle"}, READY)


def test_a_standby_that_is_none_any_more_is_started(file: File) -> None:
    """FACT: nobody had stopped it, and the file wants it now: at once, and after a new daemon."""
    file.engine("idle", 0, "--startup-time", "0", standby=True)
    file.write()
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        daemon.wait_ready(READY)
        file.engines["idle"]["standby"] = False
        file.write()
        reload(daemon)
        until(lambda: ready(daemon) == {"main", "idle"}, READY)


def test_a_new_daemon_starts_what_is_no_standby_any_more(file: File) -> None:
    """FACT: what was on standby under the last daemon starts under one whose file wants it."""
    file.engine("idle", 0, "--startup-time", "0", standby=True)
    file.write()
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        daemon.wait_ready(READY)
    file.engines["idle"]["standby"] = False
    file.write()
    with running(file.path.parent / "s", (), file.port, config=file.path) as daemon:
        until(lambda: ready(daemon) == {"main", "idle"}, READY)


def test_who_leaves_is_not_started(file: File) -> None:
    """FACT: start and restart of it are refused in one line, and without a name spare it."""
    port = slow(file)
    with watched(file) as daemon, asked(daemon, "b", port):
        without(file, "b")
        reload(daemon)
        for verb in ("start", "restart"):
            done = daemon.command(verb, "b")
            words = f"cannot {verb} b: it is not configured any more and is about to end\n"
            assert (done.returncode, done.stderr) == (1, words)
        assert daemon.command("start").returncode == 0
        until(lambda: set(engines(daemon)) == {"main"}, READY)
        starts = [e for e in daemon.events("decision.act") if e["engine"] == "b"]
        assert [e["action"] for e in starts] == ["start_engine", "stop_engine"]


# --- the next watchdog ----------------------------------------------------------------------------


def test_the_next_watchdog_ends_who_had_left(file: File) -> None:
    """FACT: killed before the stop ended: the next one lets the request finish and ends it."""
    port = slow(file)
    with watched(file) as daemon:
        pids = engines(daemon)["b"]["pids"]
        with asked(daemon, "b", port, 300) as answer:
            without(file, "b")
            reload(daemon)
            daemon.send(signal.SIGKILL)
            daemon.ended()
            with running(file.path.parent / "s", (), file.port, config=file.path) as successor:
                successor.wait_event("engine.adopted", 20, lambda e: e["engine"] == "b")
                assert answer.result() == 200
                until(lambda: set(engines(successor)) == {"main"}, READY)
                assert not [pid for pid in pids if alive(pid)]
                assert ready(successor) == {"main"}


def test_the_next_watchdog_that_observes_says_so(file: File) -> None:
    """FACT: told to observe, it lets who is not configured run, and says which and where.

    Once it may act, that engine is ended.
    """
    slow(file)
    with watched(file) as daemon:
        pids = engines(daemon)["b"]["pids"]
        daemon.send(signal.SIGKILL)
        daemon.ended()
        without(file, "b", OBSERVE)
        with running(file.path.parent / "s", (), file.port, config=file.path) as successor:
            line = successor.wait_event("watchdog.degraded")
            assert line["reason"].startswith("engine b (process ")
            until(lambda: ready(successor) == {"main"}, READY)
            assert all(alive(pid) for pid in pids)
            file.write(ACT)
            reload(successor)
            until(lambda: not [pid for pid in pids if alive(pid)], READY)
            until(lambda: set(engines(successor)) == {"main"})
