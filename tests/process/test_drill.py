"""``drill``: breaks the engine of a real daemon, measures, and tells a miss from a promise kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running
from tests.support.outages import FAST, engine, member
from tests.support.simulated import ROOT, cmdline, free_port, stat_fields, until
from watchdog.drill import Daemon as Asked

READY = 120.0
OBSERVED = '[[rule]]\nname = "engine-dead"\nmode = "observe"\n'
HASTY = """
[[rule]]
name = "hasty"
subject = "engine"
when = 'engine.health == "degraded" && engine_http.health == "status"'
actions = ["restart_engine"]
summary = "it is merely degraded"
"""
DISGUISED = "import sys; from watchdog.simulator.cli import main; sys.exit(main(sys.argv[1:]))"


def drill(daemon: Daemon, *words: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """The exit code, what is printed by the id of the drill, and what is said meanwhile."""
    done = daemon.command("drill", *words, "--json")
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)["drills"] if done.stdout else []
    return done.returncode, {one["id"]: one for one in told}, done.stderr


@contextmanager
def drilling(
    words: Sequence[str], temporary: Path, interrupts: str = "--default-signal=INT"
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A drill that goes on, and the file that has what it says.

    ``env`` says whether it obeys ^C: tests in the background of a script would hand down that not.
    """
    said = temporary / "said"
    folder = temporary / "t"
    folder.mkdir()
    with said.open("w") as file:
        process = subprocess.Popen(
            ["env", interrupts, sys.executable, "-m", "watchdog", "drill", *words],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    try:
        yield process, said
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def named(folder: Path) -> list[int]:
    """Processes with the folder in their command line."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if str(folder) in cmdline(pid)]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory whose path leaves room for the names of Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="vd-", dir="/tmp") as folder:
        yield Path(folder)


def test_a_killed_leader_and_a_503_go_as_promised(tmp_path: Path) -> None:
    """FACT: D1 is one restart, measured from the fault on; H8 is none; exit code 0."""
    with engine(tmp_path, config=FAST) as daemon:
        before = daemon.engine()
        code, told, said = drill(daemon, "d1", "H8")
        assert (code, told["D1"]["reason"], told["H8"]["reason"]) == (0, "", "")
        times = [told["D1"][f"{key}_after_s"] for key in ("detected", "released", "serving")]
        assert None not in times
        assert times == sorted(times)
        assert daemon.events("incident.resolved")[-1]["incident"] == told["D1"]["incident"]
        assert daemon.engine()["starts"] == before["starts"] + 1
        assert "D1: injected: SIGKILL to the leader" in said
        assert "H8: main is degraded" in said


def test_a_stopped_engine_core_is_found_and_restarted(tmp_path: Path) -> None:
    """FACT: H1 ends with another engine; at most it was noticed too late for the table."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        code, told, _ = drill(daemon, "H1")
        late = told["H1"]["reason"].startswith("noticed late")  # this machine may be busy
        assert (code, told["H1"]["verdict"]) == ((1, "missed") if late else (0, "ok"))
        assert told["H1"]["detected_after_s"] > 0
        assert daemon.engine()["generation"] != before["generation"]


def test_who_does_not_act_is_a_miss(tmp_path: Path) -> None:
    """FACT: with its rule switched to observe D1 is a miss, and the dead engine is told loudly."""
    with engine(tmp_path, config=OBSERVED) as daemon:
        code, told, said = drill(daemon, "D1")
        assert (code, told["D1"]["verdict"]) == (1, "missed")
        assert told["D1"]["reason"].startswith(("nobody noticed", "nobody acted"))
        assert told["D1"]["serving_after_s"] is None
        assert "ATTENTION: NOT SERVING: main is dead" in said


def test_who_acts_where_nothing_may_be_done_is_a_miss(tmp_path: Path) -> None:
    """FACT: a rule that restarts what is merely degraded fails the drill that forbids it."""
    with engine(tmp_path, config=HASTY) as daemon:
        code, told, _ = drill(daemon, "H8")
        assert (code, told["H8"]["verdict"]) == (1, "missed")
        assert told["H8"]["reason"]


def test_outside_the_simulator_it_asks_for_yes(tmp_path: Path) -> None:
    """FACT: nothing is touched without --yes, nor while paused; with it the budget is named."""
    port = free_port()
    command = [sys.executable, "-c", DISGUISED, "--port", str(port)]
    with running(tmp_path, command, port) as daemon:
        before = daemon.wait_ready(READY)
        code, told, said = drill(daemon, "D1")
        assert (code, told) == (2, {})
        assert "add --yes" in said
        assert drill(daemon, "H4", "--yes")[0] == 2
        assert daemon.command("pause", "--reason", "test").returncode == 0
        code, told, _ = drill(daemon, "D1", "--yes")
        assert (code, told["D1"]["verdict"]) == (1, "refused")
        assert daemon.command("resume").returncode == 0
        now = daemon.engine()
        assert (now["generation"], now["pid"]) == (before["generation"], before["pid"])
        code, told, said = drill(daemon, "D1", "--yes")
        assert (code, told["D1"]["verdict"]) == (0, "ok")
        assert "1 of the 5 restarts" in said


def test_an_interrupt_leaves_nobody_stopped(tmp_path: Path, temporary: Path) -> None:
    """FACT: after ^C what the drill had stopped runs again, in the very same engine."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        core = member(daemon, "EngineCore")
        words = ("H1", "--state-dir", str(daemon.state_dir))
        with drilling(words, temporary) as (process, said):
            until(lambda: "injected" in said.read_text() and stat_fields(core)[0] == "T")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        assert "interrupted" in said.read_text()
        assert stat_fields(core)[0] != "T"
        daemon.wait_ready(READY)
        assert daemon.engine()["generation"] == before["generation"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_daemon_of_its_own_leaves_nothing(temporary: Path, interrupted: bool) -> None:  # noqa: FBT001
    """FACT: --simulate needs no daemon; afterwards no process and no file is left, also by ^C."""
    words = ("W1", "--simulate", "--json")
    with drilling(words, temporary) as (process, said):
        if interrupted:
            until(lambda: "injected" in said.read_text(), READY)
            process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if interrupted else 0), said.read_text()
    if not interrupted:
        assert [one["verdict"] for one in json.loads(printed)["drills"]] == ["ok"]
    assert not list((temporary / "t").iterdir())
    assert not named(temporary)


def test_a_killed_drill_takes_its_daemon_along(temporary: Path) -> None:
    """FACT: after SIGKILL, which nobody can obey, neither its daemon nor its engine lives on."""
    with drilling(("H8", "--simulate"), temporary) as (process, said):
        until(lambda: "injected" in said.read_text(), READY)
        (socket,) = (temporary / "t").glob("*/state/control.sock")
        asked = Asked(socket)
        engine_pids = asked.engine().pids
        asked.close()
        process.kill()
    until(lambda: not any(map(cmdline, engine_pids)), 60)
    until(lambda: not named(temporary), 60)


def test_in_the_background_it_ignores_what_it_was_told_to_ignore(temporary: Path) -> None:
    """FACT: started with SIGINT ignored, as by ``drill &`` in a script, SIGINT ends nothing."""
    with drilling(("W1", "--simulate"), temporary, "--ignore-signal=INT") as (process, said):
        until(lambda: "injected" in said.read_text(), READY)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert (process.returncode, "interrupted" in said.read_text()) == (0, False)


def test_what_cannot_be_is_one_line(temporary: Path) -> None:
    """FACT: an unknown fault is 2, a named one without a daemon 3; the list needs none."""
    for words, code in ((("D99",), 2), (("D1",), 3), (("--list",), 0)):
        command = [sys.executable, "-m", "watchdog", "drill", *words, "--state-dir", str(temporary)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT
        )
        assert done.returncode == code, done.stderr
        assert len(done.stderr.splitlines()) == (1 if code else 0)
        assert ("stalled by a completion" in done.stdout) == (words == ("--list",))
