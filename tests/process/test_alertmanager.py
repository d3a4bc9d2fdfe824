"""The direct push to a real Alertmanager: it takes, repeats nothing, and is told of the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.alerting import DEPLOY, Server, alertmanager, hook
from tests.support.daemon import Daemon, running
from tests.support.reloads import READY, File, engines, ready, reload, rule, watched
from tests.support.simulated import free_port, until

EXAMPLE = DEPLOY / "alertmanager" / "alertmanager.yml"
STAYS_DEAD = rule("engine-dead", mode="observe")
"""What dies stays dead until somebody else starts it: its incident is open for as long."""
SECRET = "sk-not-to-be-seen"  # noqa: S105 - made up, to be looked for


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A configuration with one engine."""
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, "--startup-time", "0")
    return file


def example(url: str) -> str:
    """The routing that we ship, which tells ``url`` at once."""
    text = EXAMPLE.read_text().replace("http://127.0.0.1:9095", url)
    text = text.replace("group_wait: 10s", "group_wait: 0s")
    return text.replace("group_interval: 2m", "group_interval: 1s")


def receiver(url: str, **more: str) -> str:
    """``[notify.alertmanager]``."""
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
    return f"{STAYS_DEAD}\n[notify.alertmanager]\nurl = {json.dumps(url)}\n{keys}"


@contextlib.contextmanager
def listening(file: File, listen: str) -> Iterator[Daemon]:
    """A daemon on the file at an address that the next one can have too."""
    file.write()
    state = file.path.parent / "s"
    with running(state, (), file.port, "--listen", listen, config=file.path) as daemon:
        daemon.listen = listen
        yield daemon


def kill(daemon: Daemon) -> None:
    """End the engine, all of it."""
    os.kill(daemon.engine()["pid"], signal.SIGKILL)
    daemon.wait_event("incident.opened")


def alerts(server: Server) -> list[dict[str, Any]]:
    """Those that are active at the Alertmanager."""
    return list(server.get("/api/v2/alerts", active="true") or [])


def route(*labels: str) -> list[str]:
    """Who is told of an alert with these labels."""
    argv = ["amtool", "config", "routes", "test", "--config.file", str(EXAMPLE), *labels]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_example_is_valid_and_routes_by_severity() -> None:
    """FACT: amtool accepts it; critical wakes, warning waits for the morning, info tells nobody."""
    done = subprocess.run(
        ["amtool", "check-config", str(EXAMPLE)], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    found = [route(f"severity={one}") for one in ("critical", "warning", "info")]
    assert found == [["wake"], ["morning"], ["nobody"]]
    assert re.search(r"receiver: morning\n\s+active_time_intervals: \[day\]", EXAMPLE.read_text())


def test_a_death_wakes_somebody_once_and_its_end_is_told(file: File, tmp_path: Path) -> None:
    """FACT: one alert with the incident's labels and texts, one message, and one of its end."""
    with hook() as pager, alertmanager(tmp_path / "am", example(pager.url)) as server:
        file.rest = receiver(f"http://127.0.0.1:{server.port}/")
        with watched(file) as daemon:
            kill(daemon)
            (alert,) = until(lambda: alerts(server), READY)
            labels = alert["labels"]
            assert labels["alertname"] == "VllmWatchdogIncident"
            found = [labels[name] for name in ("rule", "severity", "engine", "subject")]
            assert found == ["engine-dead", "critical", "main", "engine/main"]
            assert labels["instance"].endswith(f":{daemon.listen.rpartition(':')[2]}")
            texts = alert["annotations"]
            assert texts["summary"].startswith("the engine is dead")
            assert texts["runbook"] == "engine-dead"
            assert "SIGKILL" in texts["explanation"]
            assert alert["endsAt"] > alert["startsAt"]
            until(lambda: pager.bodies("/wake"))
            assert daemon.command("start").returncode == 0
            until(lambda: not alerts(server), READY)
            told = until(lambda: [m["status"] for m in pager.bodies("/wake")][1:], READY)
            assert told == ["resolved"]
            assert [m["status"] for m in pager.bodies()] == ["firing", "resolved"]
            sent = 'vllm_watchdog_notifications_total{receiver="alertmanager",result="ok"}'
            until(lambda: daemon.metric(sent) == 2)
            assert daemon.metric("vllm_watchdog_notifications_dropped_total") == 0


def test_a_second_watchdog_says_the_same(file: File, tmp_path: Path) -> None:
    """FACT: what an heir repeats of an open incident is the same alert: nobody is told again."""
    listen = f"127.0.0.1:{free_port()}"
    with hook() as pager, alertmanager(tmp_path / "am", example(pager.url)) as server:
        file.rest = receiver(f"http://127.0.0.1:{server.port}")
        with listening(file, listen) as daemon:
            until(lambda: ready(daemon), READY)
            kill(daemon)
            (before,) = until(lambda: alerts(server), READY)
            daemon.send(signal.SIGQUIT)
            assert daemon.ended() == 0
        assert alerts(server)
        with listening(file, listen) as heir:
            sent = 'vllm_watchdog_notifications_total{receiver="alertmanager",result="ok"}'
            until(lambda: heir.metric(sent), READY)
            (after,) = alerts(server)
            assert after["fingerprint"] == before["fingerprint"]
            assert after["endsAt"] > before["endsAt"]
        assert [m["status"] for m in pager.bodies()] == ["firing"]


def test_an_alertmanager_that_comes_later_is_told(file: File, tmp_path: Path) -> None:
    """FACT: refused at first, it is tried until it is there; log and metrics tell of both."""
    port = free_port()
    file.rest = receiver(f"http://127.0.0.1:{port}")
    with hook() as pager, watched(file) as daemon:
        kill(daemon)
        line = daemon.wait_event("notify.failed")
        assert (line["receiver"], line["reason"]) == ("alertmanager", "refused")
        failed = 'vllm_watchdog_notifications_total{receiver="alertmanager",result="failed"}'
        until(lambda: daemon.metric(failed))
        with alertmanager(tmp_path / "am", example(pager.url), port) as server:
            until(lambda: alerts(server), READY)
            assert daemon.wait_event("notify.recovered")["lost"] == 0
        assert len(daemon.events("notify.failed")) == 1


def test_receivers_change_by_reload(file: File, tmp_path: Path) -> None:
    """FACT: one that comes learns of what is open; one that leaves is told nothing; no restart."""
    with hook() as pager, alertmanager(tmp_path / "am", example(pager.url)) as server:
        file.rest = STAYS_DEAD
        with watched(file) as daemon:
            kill(daemon)
            file.write(receiver(f"http://u:{SECRET}@127.0.0.1:{server.port}/{SECRET}"))
            assert reload(daemon)["changed"] == ["notify.alertmanager: new"]
            daemon.wait_event("notify.failed", wanted=lambda e: e["reason"] == "answered 404")
            file.write(receiver(f"http://u:{SECRET}@127.0.0.1:{server.port}"))
            answer = reload(daemon)
            assert answer["changed"] == ["notify.alertmanager.url"]
            assert answer["needs_restart"] == []
            until(lambda: alerts(server), READY)
            file.write(STAYS_DEAD)
            assert reload(daemon)["changed"] == ["notify.alertmanager: gone"]
            assert daemon.command("start").returncode == 0
            until(lambda: ready(daemon), READY)
            assert alerts(server)
            assert engines(daemon)["main"]["starts"] == 2
            assert SECRET not in daemon.log_path.read_text()
            assert SECRET not in daemon.get("/metrics")[1]
