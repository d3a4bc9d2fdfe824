"""H12 with the real daemon: other weights in the directory, and another model after a restart."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running
from tests.support.models import folder, shard, weights
from tests.support.simulated import free_port, until

READY = 120.0
OFTEN = '[probes.engine_model]\nperiod = "200ms"\n'
SCRIPT = (
    "import os, sys\n"
    "words = open(sys.argv[1]).read().split()\n"
    "start = [sys.executable, '-m', 'watchdog.simulator', *sys.argv[2:], *words]\n"
    "os.execv(sys.executable, start)\n"
)
"""A script in front of the engine that chooses what it serves."""


class Box:
    """A configuration, a model's folder, and a file with words that nobody sees in the command."""

    def __init__(self, directory: Path, policy: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.words = directory / "words"
        self.words.write_text("--served-model-name first")
        self.model = folder(directory / "m")
        script = directory / "engine.py"
        script.write_text(SCRIPT)
        command = [sys.executable, str(script), str(self.words), "--port", str(self.port)]
        command += ["--startup-time", "0", "--model", str(self.model)]
        self.config = directory / "c.toml"
        self.config.write_text(
            f"[engine.main]\ncommand = {command}\nmodel_change = {policy!r}\n{OFTEN}"
        )

    @contextmanager
    def watched(self) -> Iterator[Daemon]:
        """A daemon whose engine serves."""
        state = self.directory / "s"
        with running(state, (), self.port, config=self.config) as daemon:
            daemon.wait_ready(READY)
            yield daemon


def crash(daemon: Daemon) -> str:
    """End the engine's leader; the generation that it was."""
    engine = daemon.engine()
    daemon.remember(engine["pids"])
    os.kill(engine["pids"][0], signal.SIGKILL)
    return str(engine["generation"])


def learnt(daemon: Daemon, names: str) -> None:
    """Wait until the model is known as the good one."""
    path = daemon.state_dir / "store.sqlite3-wal"
    needle = f'"served":"{names}"'.encode()
    until(lambda: needle in path.read_bytes(), READY)


def serves_again(daemon: Daemon, generation: str) -> dict[str, Any]:
    """The engine of a later start, once it serves."""

    def look() -> dict[str, Any]:
        ready = daemon.verdict() in {"ready", "busy"}
        engine = daemon.engine()
        return engine if ready and engine["generation"] != generation else {}

    return until(look, READY)


def test_other_weights_after_a_crash_are_not_started(tmp_path: Path) -> None:
    """FACT: H12: refused by name until an operator says start, which accepts what is there."""
    box = Box(tmp_path, "refuse")
    with box.watched() as daemon:
        learnt(daemon, "first")
        weights(box.model / shard(2), 4_700_000_000)
        crash(daemon)
        until(lambda: daemon.verdict() == "given_up", READY)
        engine = daemon.engine()
        assert f"{shard(2)} 4.7 GB, was 5.0 GB" in "; ".join(engine["reasons"])
        ended = daemon.wait_event("action.finished", READY, lambda e: e["level"] == "error")
        assert ended["verdict"] == "model_changed"
        assert engine["pids"] == []
        assert daemon.command("start").returncode == 0
        generation = str(daemon.wait_ready(READY)["generation"])
        accepted = daemon.wait_event("model.accepted")
        assert "4.7 GB" in accepted["differs"]
        crash(daemon)
        serves_again(daemon, generation)
    assert not daemon.survivors()


def test_other_weights_while_no_watchdog_ran(tmp_path: Path) -> None:
    """FACT: the first start after a reboot is compared as every other one."""
    box = Box(tmp_path, "refuse")
    with box.watched() as daemon:
        learnt(daemon, "first")
    (box.model / "config.json").write_text("{}")
    with running(tmp_path / "s", (), box.port, config=box.config) as daemon:
        until(lambda: daemon.verdict() == "given_up", READY)
        assert "config.json differs" in str(daemon.engine())


def test_another_model_after_a_crash_is_stopped(tmp_path: Path) -> None:
    """FACT: H12: what serves under another name is stopped, and started by an operator alone."""
    box = Box(tmp_path, "refuse")
    with box.watched() as daemon:
        learnt(daemon, "first")
        box.words.write_text("--served-model-name second --max-model-len 100")
        crash(daemon)
        found = daemon.wait_event("finding.firing", READY, lambda e: e["rule"] == "model-changed")
        assert found["engine_model.changed"] == (
            "serves second, was first; max_model_len 100, was 4096"
        )
        until(lambda: daemon.verdict() == "stopped", READY)
        assert daemon.engine()["pids"] == []
        assert daemon.command("start").returncode == 0
        daemon.wait_ready(READY)
        learnt(daemon, "second")
        daemon.wait_event("finding.resolved", READY, lambda e: e["rule"] == "model-changed")
        assert daemon.verdict() in {"ready", "busy"}
    assert not daemon.survivors()


@pytest.mark.parametrize("policy", ["warn", "accept"])
def test_another_model_goes_on_serving_where_that_is_wanted(tmp_path: Path, policy: str) -> None:
    """FACT: warn tells once and goes on, accept says nothing."""
    box = Box(tmp_path, policy)
    with box.watched() as daemon:
        learnt(daemon, "first")
        box.words.write_text("--served-model-name second")
        (box.model / "config.json").write_text("{}")
        serves_again(daemon, crash(daemon))
        learnt(daemon, "second")
        told = [line["differs"] for line in daemon.events("model.changed")]
        assert told == (["config.json differs"] if policy == "warn" else [])
        assert daemon.verdict() in {"ready", "busy"}
    assert not daemon.survivors()
