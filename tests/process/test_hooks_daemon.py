"""What the operator configures around the life of an engine, in the real daemon."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running
from tests.support.reloads import READY, File, watched
from tests.support.simulated import alive, until

QUICK = '[policy]\nbackoff = { initial = "200ms", max = "500ms" }\n'
HANG = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    "time.sleep(600)\n"
)
AFTER = (
    "import os, sys\n"
    "pids = open(sys.argv[1]).read().split()\n"
    "alive = [pid for pid in pids if os.path.exists(f'/proc/{pid}/exe')]\n"
    "open(sys.argv[2], 'a').write(f'{alive}\\n')\n"
)


def hook(text: str, *words: object, timeout: str = "60s") -> dict[str, object]:
    """A hook that runs Python."""
    return {"command": [sys.executable, "-c", text, *map(str, words)], "timeout": timeout}


def test_an_engine_starts_once_what_it_needs_is_there(tmp_path: Path) -> None:
    """A hook that fails refuses the start by name; it is tried again, and then the engine serves.

    No process of the engine is started meanwhile.
    """
    mounted = tmp_path / "mounted"
    file = File(tmp_path / "w.toml")
    file.engine(pre_start=[hook("import sys, pathlib; pathlib.Path(sys.argv[1]).stat()", mounted)])
    file.write(QUICK)
    with running(tmp_path / "s", (), file.port, config=file.path) as daemon:
        refused = daemon.wait_event("action.finished", READY, lambda e: e["result"] == "failed")
        assert "cannot start main: pre_start[0]" in refused["explanation"]
        assert daemon.engine()["starts"] == 0
        mounted.touch()
        daemon.wait_ready(READY)
        assert daemon.engine()["starts"] == 1


@pytest.mark.parametrize("how", ["stop", "sigterm"])
def test_a_hook_that_hangs_keeps_nobody_waiting(tmp_path: Path, how: str) -> None:
    """An operator's stop, and the end of the watchdog, end a hook that ignores TERM; no start."""
    note = tmp_path / "pid"
    file = File(tmp_path / "w.toml")
    file.engine(pre_start=[hook(HANG, note, timeout="1h")])
    file.write()
    with running(tmp_path / "s", (), file.port, config=file.path) as daemon:
        until(lambda: note.exists() and note.read_text() != "", READY)
        pid = int(note.read_text())
        if how == "stop":
            assert daemon.command("stop").returncode == 0
            assert daemon.engine()["state"] == "stopped"
        else:
            daemon.send(signal.SIGTERM)
            assert daemon.ended(60) == 0
        assert not alive(pid)
        assert not daemon.events("engine.started")


def test_the_hook_for_afterwards_runs_when_nobody_lives(tmp_path: Path) -> None:
    """After a stop and after a crash that leaves a child: not one process of the engine is left.

    A hook that fails is told of, and the engine goes on.
    """
    pids, seen = tmp_path / "pids", tmp_path / "seen"
    file = File(tmp_path / "w.toml")
    file.engine(post_stop=[hook(AFTER, pids, seen), hook("raise SystemExit(7)")])
    with watched(file) as daemon:
        note_pids(daemon, pids)
        assert daemon.command("restart").returncode == 0
        until(lambda: _lines(seen) == ["[]"], READY)
        warned = daemon.wait_event("watchdog.degraded", READY)
        assert "post_stop[1]" in warned["reason"]
        assert "exited with status 7" in warned["reason"]
        daemon.wait_ready(READY)
        note_pids(daemon, pids)
        leader = daemon.engine()["pid"]
        os.kill(leader, signal.SIGKILL)  # the daemon does not reap it before it has seen it
        until(lambda: _lines(seen) == ["[]", "[]"], READY)
        until(lambda: daemon.engine()["pid"] not in {None, leader}, READY)


def note_pids(daemon: Daemon, path: Path) -> None:
    """Write down who belongs to the engine now."""
    until(lambda: len(daemon.engine().get("pids", ())) > 1, READY)
    engine = daemon.engine()
    daemon.remember(engine["pids"])
    path.write_text(" ".join(str(pid) for pid in engine["pids"]))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
