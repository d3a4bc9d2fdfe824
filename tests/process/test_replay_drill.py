"""``replay`` of what a real daemon went through: today's rules decide as they did live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running, simulated_command
from tests.support.reloads import fault
from tests.support.simulated import ROOT, free_port, until

READY = 120.0
SOON = """
[policy]
backoff = { initial = "100ms", max = "1s" }
restart_budget = { count = 3, window = "1h" }
"""
LOUD = '\n[[rule]]\nname = "engine-dead"\nmode = "observe"\n'


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Daemon]]:
    """Configuration, state directory and daemon of a drill that is over.

    A killed leader, a frozen engine, a pause with a crash in it, and crashes until the breaker
    opens.
    """
    folder = tmp_path_factory.mktemp("drill")
    config = folder / "watchdog.toml"
    config.write_text(SOON)
    port = free_port()
    command = simulated_command(port, "--startup-time", "0")
    with running(folder, command, port, config=config) as daemon:
        _went_through(daemon)
        daemon.send(signal.SIGTERM)
        assert daemon.ended() == 0
        yield config, folder, daemon


def _went_through(daemon: Daemon) -> None:
    daemon.wait_ready(READY)
    _crash(daemon)
    _again(daemon, 2)
    fault(daemon.engine_port, "hang")
    _again(daemon, 3)
    assert daemon.command("pause", "--reason", "drill", "--for", "3s").returncode == 0
    _crash(daemon)
    _again(daemon, 4)
    _crash(daemon)
    until(lambda: daemon.engine()["state"] == "given_up", READY)


def _crash(daemon: Daemon) -> None:
    os.kill(daemon.engine()["pid"], signal.SIGKILL)


def _again(daemon: Daemon, starts: int) -> None:
    until(lambda: daemon.engine()["starts"] == starts, 60)
    daemon.wait_ready(READY)


def _replayed(state_dir: Path, config: Path) -> dict[str, Any]:
    words = ["replay", "--json", "--findings", "--state-dir", state_dir, "--config", config]
    done = subprocess.run(
        [sys.executable, "-m", "watchdog", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _live(daemon: Daemon) -> list[tuple[str, str, str]]:
    """What the log says was decided by rules: rule, action, why it was held."""
    return [
        (line["rule"], line["action"], line.get("reason", ""))
        for line in daemon.events()
        if line["event"] in {"decision.act", "decision.hold"} and line["rule"] != "operator"
    ]


def test_a_drill_replays_as_it_was_lived(drill: tuple[Path, Path, Daemon]) -> None:
    """FACT: the decisions of the replay are those of the log, in their order, and none differs."""
    config, state_dir, daemon = drill
    told = _replayed(state_dir, config)
    decided = [
        (one["rule"], one["now"]["action"], one["now"]["hold"] or "")
        for one in told["decisions"]
        if one["rule"] != "operator"
    ]
    assert decided == _live(daemon)
    assert (told["differences"], told["errors"], told["lost"]) == (0, 0, 0)
    assert told["acts_now"] == told["acts_then"]
    holds = {hold for _, _, hold in decided}
    assert {"", "paused", "budget"} <= holds


def test_findings_are_those_of_the_log(drill: tuple[Path, Path, Daemon]) -> None:
    """FACT: what fired and what resolved is the same, rule by rule."""
    config, state_dir, daemon = drill
    live = [
        (line["rule"], line["event"] == "finding.resolved")
        for line in daemon.events()
        if line["event"] in {"finding.firing", "finding.resolved"}
    ]
    told = _replayed(state_dir, config)["findings"]
    assert [(one["rule"], one["resolved"]) for one in told] == live


def test_other_rules_show_what_they_would_have_left(drill: tuple[Path, Path, Daemon]) -> None:
    """FACT: with ``engine-dead`` observing only, each restart that it led to is a difference."""
    config, state_dir, daemon = drill
    other = config.with_name("other.toml")
    other.write_text(SOON + LOUD)
    told = _replayed(state_dir, other)
    live = [one for one in _live(daemon) if one[0] == "engine-dead" and not one[2]]
    lost = [
        one
        for one in told["decisions"]
        if one["rule"] == "engine-dead" and one["then"] and not one["then"]["hold"]
    ]
    assert len(lost) == len(live) > 0
    assert not [one for one in lost if one["now"] and not one["now"]["hold"]]
