"""``replay`` as a person or a script meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.core import Story, engine, serving
from tests.support.simulated import ROOT
from watchdog.core.model import Cause, EngineExited, Event
from watchdog.core.state import State
from watchdog.recorder import Recorder


def cli(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``vllm-watchdog replay WORDS`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "watchdog", "replay", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def tape(state_dir: Path, story: Story, *events: Event) -> None:
    """A recording of ``events`` in a state directory; second 0 was an hour ago."""
    began = time.time() - 3600.0
    recorder = Recorder(state_dir, pytest.fail, clock=lambda: 0.0, wall=lambda: began)
    recorder.begin(story.state, 0.0)
    for event in events:
        recorder.observe(event, story.take(event))
    recorder.close(60.0)


def crash(at: float, name: str = "main") -> EngineExited:
    """An engine that dies."""
    return EngineExited(at, name, "0000000a", 1, None, Cause.CRASH, "it crashed")


def test_a_table_says_what_was_and_is_decided(tmp_path: Path) -> None:
    """The decision of then stands beside that of now, with a time, and a summary below."""
    tape(tmp_path, serving(), crash(10.0))
    done = cli("--state-dir", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    head, row, _, summary = done.stdout.splitlines()
    assert head.split()[:4] == ["TIME", "SUBJECT", "RULE", "NOW"]
    assert row.split()[1:] == [
        "engine/main",
        "engine-dead",
        "restart_engine",
        "=",
        "restart_engine",
    ]
    assert row.split()[0].endswith("Z")
    assert summary.endswith("1 acts now, 1 then, 0 differences")


def test_json_has_the_same_for_machines(tmp_path: Path) -> None:
    """One object; findings on demand."""
    tape(tmp_path, serving(), crash(10.0))
    done = cli(tmp_path / "recording" / "00000001.vwr", "--json", "--findings")
    told = json.loads(done.stdout)
    assert (told["acts_now"], told["acts_then"], told["differences"]) == (1, 1, 0)
    (decision,) = told["decisions"]
    assert decision["same"] is True
    assert decision["now"] == {"action": "restart_engine", "hold": None, "cause": "crash"}
    assert "engine-dead" in {found["rule"] for found in told["findings"]}


def test_a_configuration_brings_its_own_rules(tmp_path: Path) -> None:
    """A rule that only observes today would not have restarted; a difference is marked."""
    tape(tmp_path, serving(), crash(10.0))
    config = tmp_path / "new.toml"
    config.write_text('[[rule]]\nname = "engine-dead"\nmode = "observe"\n')
    done = cli(tmp_path, "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hold observe" in done.stdout
    assert "  !  restart_engine" in done.stdout
    assert "0 acts now, 1 then, 1 differences" in done.stdout


def test_since_leaves_out_what_was_before(tmp_path: Path) -> None:
    """Of an hour ago nothing is left when the last minute is asked for."""
    tape(tmp_path, serving(), crash(10.0))
    assert cli(tmp_path, "--since", "1m").stdout == "no events\n"
    assert "1 events" in cli(tmp_path, "--since", "2h").stdout


def test_hostile_names_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    """Control characters in a recording do not reach the terminal."""
    name = "x\x1b[2J\ny"
    story = Story(State(engines={name: engine(name=name)}))
    tape(tmp_path, story, crash(10.0, name))
    done = cli(tmp_path, "--findings")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert r"engine/x\x1b[2J\ny" in done.stdout


@pytest.mark.parametrize(
    "what", ["nothing", "garbage", "newer", "since", "config", "rule", "fifo", "device", "digit"]
)
def test_bad_input_is_exit_2_in_one_line(what: str, tmp_path: Path) -> None:
    """What cannot be read or understood is named, and nothing is printed."""
    tape(tmp_path, serving(), crash(10.0))
    path = tmp_path / "recording" / "00000001.vwr"
    words: list[str | Path] = [path]
    match what:
        case "nothing":
            words = [tmp_path / "missing"]
        case "garbage":
            path.write_bytes(b"\x00" * 4096)
        case "newer":
            path.write_bytes(path.read_bytes().replace(b"\n\x01\x00", b"\n\x09\x00", 1))
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "device":
            words = ["/dev/zero"]
        case "digit":
            path.rename(path.with_name("².vwr"))
            words = [tmp_path]
        case "since":
            words += ["--since", "3 parsecs"]
        case "config":
            words += ["--config", tmp_path / "missing.toml"]
        case _:
            config = tmp_path / "bad.toml"
            config.write_text('[[rule]]\nname = "engine-dead"\nwhen = "engine.nonsense > 1"\n')
            words += ["--config", config]
    done = cli(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_damage_is_told_and_the_rest_is_replayed(tmp_path: Path) -> None:
    """A torn end is a line on stderr; the exit code is 0."""
    events = [crash(10.0)]
    tape(tmp_path, serving(), *events)
    path = tmp_path / "recording" / "00000001.vwr"
    path.write_bytes(path.read_bytes() + b"\xf5VWS torn")
    done = cli(tmp_path)
    assert done.returncode == 0
    assert "ends within a frame" in done.stderr
    assert "1 acts now, 1 then" in done.stdout
