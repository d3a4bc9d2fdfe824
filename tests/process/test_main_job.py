"""The main job on the embedded engine: the real daemon, real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, finish, launch, running, simulated_command
from tests.support.simulated import ROOT, alive, free_port, until

READY = 120.0


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory whose path leaves room for the names of Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="vt-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon whose embedded engine is ready."""
    port = free_port()
    with running(tmp_path, simulated_command(port), port) as started:
        started.wait_ready(READY)
        yield started


def fault(daemon: Daemon, name: str, value: object = None) -> None:
    """Switch a fault of the embedded engine on."""
    body = json.dumps({"name": name, "value": value}).encode()
    url = f"http://127.0.0.1:{daemon.engine_port}/simulator/fault"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=5) as answer:
        assert answer.status == 200


def member(daemon: Daemon, title: str) -> int:
    """The pid of the engine's process whose command line has ``title``."""
    for pid in daemon.engine()["pids"]:
        if title.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise AssertionError(title)


def recovered(daemon: Daemon, before: dict[str, object]) -> dict[str, object]:
    """The closing line of the incident, once a new generation serves and the old one is gone."""
    until(lambda: daemon.is_another(before), READY)
    assert not [pid for pid in before["pids"] if alive(pid)]  # type: ignore[attr-defined]
    daemon.wait_ready(READY)
    return daemon.wait_event("incident.resolved")


def test_killed_leader_is_replaced_and_no_orphan_survives(daemon: Daemon) -> None:
    """D1: the orphans of a killed leader are gone before the new start; the log tells it all."""
    before = daemon.engine()
    os.kill(before["pid"], signal.SIGKILL)
    resolved = recovered(daemon, before)
    assert daemon.metric("vllm_watchdog_engine_starts_total{") == 2
    assert resolved["outcome"] == "recovered"
    assert resolved["actions"] == ["restart_engine"]
    names = [line["event"] for line in daemon.events()]
    story = ["engine.exited", "finding.firing", "incident.opened", "decision.act", "engine.started"]
    places = [names.index(name, names.index("engine.exited")) for name in story]
    assert places == sorted(places)
    assert daemon.get("/healthz")[0] == 200


def test_engine_core_death_with_exit_code_zero_is_a_crash(daemon: Daemon) -> None:
    """D2: exit code 0 that nobody asked for is never clean; the cause names EngineCore."""
    before = daemon.engine()
    os.kill(member(daemon, "EngineCore"), signal.SIGKILL)
    assert recovered(daemon, before)["cause"] == "engine_core_died"


def test_leader_that_outlives_its_core_is_restarted(daemon: Daemon) -> None:
    """D4: a leader that keeps answering after EngineCore's death is dead all the same."""
    before = daemon.engine()
    fault(daemon, "keep_alive")
    os.kill(member(daemon, "EngineCore"), signal.SIGKILL)
    assert recovered(daemon, before)["cause"] == "engine_core_died"


@pytest.mark.parametrize("title", ["EngineCore", "Worker"])
def test_frozen_engine_is_stalled_and_restarted(daemon: Daemon, title: str) -> None:
    """H1, H2: a stopped process behind a 200 of /health is found by the canary."""
    before = daemon.engine()
    os.kill(member(daemon, title), signal.SIGSTOP)
    finding = daemon.wait_event("finding.firing", 45, lambda e: e["rule"] == "engine-stalled")
    assert finding["verdict"] == "stalled"
    assert recovered(daemon, before)["cause"] == "stalled"


def test_stop_is_sticky_and_leaves_nothing(daemon: Daemon) -> None:
    """`stop` returns with no process alive, the engine stays down, `start` brings it back."""
    before = daemon.engine()
    done = daemon.command("stop")
    assert done.returncode == 0, done.stderr
    assert not [pid for pid in before["pids"] if alive(pid)]
    assert daemon.engine()["state"] == "stopped"
    assert daemon.get("/healthz")[0] == 503
    assert daemon.command("start").returncode == 0
    daemon.wait_ready(READY)


def test_pause_holds_a_restart_until_resume(daemon: Daemon) -> None:
    """A paused daemon judges and does not act; after resume the condition must hold anew."""
    before = daemon.engine()
    assert daemon.command("pause", "--reason", "test").returncode == 0
    os.kill(before["pid"], signal.SIGKILL)
    daemon.wait_event("decision.hold", 10, lambda e: e["reason"] == "paused")
    assert daemon.engine()["generation"] == before["generation"]
    assert daemon.command("resume").returncode == 0
    recovered(daemon, before)


def test_term_ends_everything_with_exit_code_zero(tmp_path: Path, temporary: Path) -> None:
    """SIGTERM ends the engine by its ladder: exit 0, zero processes, no temporary files left."""
    port = free_port()
    daemon = launch(
        tmp_path / "s", simulated_command(port), port, environment={"TMPDIR": str(temporary)}
    )
    try:
        daemon.wait_ready(READY)
        assert any(temporary.iterdir())
        daemon.send(signal.SIGTERM)
        assert daemon.ended(60) == 0
        assert daemon.ours
        assert not daemon.survivors()
        assert list(temporary.iterdir()) == []
    finally:
        finish(daemon)


def test_killed_watchdog_is_succeeded_without_a_restart(tmp_path: Path) -> None:
    """W1: the engine outlives a SIGKILLed watchdog; its successor adopts it, history and all."""
    port = free_port()
    first = launch(tmp_path, simulated_command(port), port)
    second: Daemon | None = None
    try:
        before = first.wait_ready(READY)
        first.send(signal.SIGKILL)
        first.ended()
        second = launch(tmp_path, simulated_command(port), port)
        after = second.wait_ready(READY)
        assert (after["pid"], after["generation"]) == (before["pid"], before["generation"])
        assert after["starts"] == before["starts"]
        os.kill(after["pid"], signal.SIGKILL)
        recovered(second, after)
    finally:
        finish(first)
        if second is not None:
            finish(second)


def test_second_watchdog_on_the_same_state_directory_exits_69(daemon: Daemon) -> None:
    """W2: the second one leaves with 69 and one line; the engine notices nothing."""
    before = daemon.engine()
    second = launch(daemon.state_dir, simulated_command(free_port()), 0)
    try:
        assert second.ended(20) == 69
        text = second.log_path.read_text()
        assert "Traceback" not in text
    finally:
        finish(second)
    assert daemon.engine()["generation"] == before["generation"]


def test_crash_loop_opens_the_breaker(tmp_path: Path) -> None:
    """D8: an engine that dies at every start uses its budget up; the breaker opens and stays so."""
    port = free_port()
    config = tmp_path / "watchdog.toml"
    config.write_text('[policy]\nbackoff = { initial = "50ms", max = "100ms" }\n')
    command = simulated_command(port, "--fault", "crash_after=0.3", "--startup-time", "60")
    with running(tmp_path / "s", command, port, config=config) as daemon:
        daemon.wait_event("breaker.opened", 30)
        until(lambda: daemon.engine().get("state") == "given_up")
        assert daemon.engine()["breaker_open"] is True
        assert daemon.get("/livez")[0] == 503
        assert len(daemon.events("engine.started")) == 4


def test_saturated_engine_is_left_alone(tmp_path: Path) -> None:
    """H3: two minutes of time-outs while tokens flow: `busy`, and never a restart."""
    port = free_port()
    with running(tmp_path, simulated_command(port), port) as daemon:
        before = daemon.wait_ready(READY)
        fault(daemon, "saturate")
        read = 'vllm_watchdog_probe_last_success_timestamp_seconds{probe="engine_metrics"}'
        first = daemon.metric(read) or 0.0
        assert first > 0
        verdicts: set[str] = set()

        def two_minutes_of_readings() -> bool:
            verdicts.add(daemon.verdict())
            return (daemon.metric(read) or 0.0) - first >= 120

        until(two_minutes_of_readings, 150)
        assert daemon.engine()["generation"] == before["generation"]
        assert not daemon.events("decision.act")[1:]
        assert "busy" in verdicts
        assert verdicts <= {"busy", "ready"}


def test_giving_up_exits_75_where_that_is_asked_for(tmp_path: Path) -> None:
    """`on_give_up = "exit"`: an orchestrator learns from the exit code that retries are over."""
    port = free_port()
    config = tmp_path / "watchdog.toml"
    config.write_text('[policy]\non_give_up = "exit"\n')
    command = ["no-such-program", "--port", str(port)]
    with running(tmp_path / "s", command, port, config=config) as daemon:
        assert daemon.ended(30) == 75


def test_signals_during_an_adoption_cost_no_restart(tmp_path: Path) -> None:
    """A SIGCHLD that comes between the facts of an adoption does not hide them."""
    port = free_port()
    first = launch(tmp_path, simulated_command(port), port)
    second: Daemon | None = None
    try:
        before = first.wait_ready(READY)
        first.send(signal.SIGKILL)
        first.ended()
        second = launch(tmp_path, simulated_command(port), port)
        while not second.engine():
            second.send(signal.SIGCHLD)
        second.wait_ready(READY)
        assert second.engine()["generation"] == before["generation"]
        assert not second.events("decision.act")
    finally:
        finish(first)
        if second is not None:
            finish(second)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-program", "--port", "1"], "no-such-program"),
        (["vllm", "serve", "--port", "8000"], "model"),
        (["vllm", "serve", "m", "--port", "http"], "port"),
    ],
)
def test_bad_command_is_one_clear_line(tmp_path: Path, command: list[str], words: str) -> None:
    """A command that cannot work ends in one line that names it, or a finding; no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "watchdog", "check", "--state-dir", str(tmp_path), "--", *command],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode in {1, 2}
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_missing_binary_is_given_up_with_its_cause(tmp_path: Path) -> None:
    """A binary that does not exist is not retried: given up, /livez 503, and the daemon lives."""
    port = free_port()
    with running(tmp_path, ["no-such-program", "--port", str(port)], port) as daemon:
        until(lambda: daemon.engine().get("state") == "given_up")
        assert daemon.engine()["breaker_open"] is False
        assert daemon.get("/livez")[0] == 503
        assert "Traceback" not in daemon.log_path.read_text()
