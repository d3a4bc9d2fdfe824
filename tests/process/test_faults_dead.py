"""The engine dies: what the real daemon makes of it, with the simulated engine as a process."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, finish, launch, running, simulated_command
from tests.support.outages import (
    FAST,
    READY,
    causes,
    engine,
    fault,
    given_up,
    member,
    recovered,
    starts,
)
from tests.support.simulated import alive, free_port, until


def test_d1_a_killed_leader_leaves_nobody_not_even_behind_its_port(tmp_path: Path) -> None:
    """FACT (D1): API servers that outlive the leader and hold its port are gone before the start.

    With several of them the orphans go on listening: a start on top would fail, or share the port.
    """
    with engine(tmp_path, "--api-server-count", "2") as daemon:
        orphans = [member(daemon, f"VLLM::APIServer_{number}") for number in (0, 1)]
        before = daemon.engine()
        assert set(orphans) < set(before["pids"])
        os.kill(before["pid"], signal.SIGKILL)
        assert recovered(daemon, before)["cause"] == "signal"
        assert causes(daemon) == ["signal"]
        assert starts(daemon) == 2


def test_d2_exit_0_that_nobody_asked_for_is_a_crash(tmp_path: Path) -> None:
    """FACT (D2): the leader leaves with 0 after EngineCore's death: told, explained, restarted."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        fault(daemon, "kill_core_after", 0)
        recovered(daemon, before)
        exited = daemon.wait_event("engine.exited")
        assert exited["cause"] == "engine_core_died"
        assert exited.get("exit_code") == 0 or exited.get("signal")
        assert exited["explanation"]


def test_d3_a_killed_worker_takes_the_engine_down_and_it_comes_back(tmp_path: Path) -> None:
    """FACT (D3): of two workers one is killed; the cause names it, and a new set serves."""
    with engine(tmp_path, "--workers", "2") as daemon:
        before = daemon.engine()
        os.kill(member(daemon, "VLLM::Worker_TP1"), signal.SIGKILL)
        assert recovered(daemon, before)["cause"] in {"worker_died", "engine_core_died"}


def test_d3_a_dead_worker_is_not_waited_for(tmp_path: Path) -> None:
    """FACT (D3): an EngineCore that does not come down by it is ended: a missing worker is enough.

    It stands still here, so that it cannot; that alone would take three completions to be told.
    """
    with engine(tmp_path, "--workers", "2") as daemon:
        before = daemon.engine()
        until(lambda: daemon.metric("vllm_watchdog_engine_process_workers") == 2)
        os.kill(member(daemon, "VLLM::EngineCore"), signal.SIGSTOP)
        os.kill(member(daemon, "VLLM::Worker_TP1"), signal.SIGKILL)
        told = daemon.wait_event("decision.act", wanted=lambda e: e["action"] == "restart_engine")
        assert told["cause"] == "worker_died"
        recovered(daemon, before)


def test_d4_a_leader_that_never_leaves_is_ended(tmp_path: Path) -> None:
    """FACT (D4): EngineCore is gone and the leader stays and swallows TERM: the set is killed."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        fault(daemon, "keep_alive")
        fault(daemon, "ignore_term")
        os.kill(member(daemon, "VLLM::EngineCore"), signal.SIGKILL)
        finding = daemon.wait_event("finding.firing", wanted=lambda e: e["rule"] == "engine-dead")
        assert finding["verdict"] == "dead"
        assert recovered(daemon, before)["cause"] == "engine_core_died"


def test_d6_cuda_oom_twice_in_a_row_is_held(tmp_path: Path) -> None:
    """FACT (D6): the first time may be a chance and is retried; the second is held and told."""
    with engine(tmp_path, "--fault", "cuda_oom", config=FAST, ready=False) as daemon:
        assert given_up(daemon)["breaker_open"] is False
        assert causes(daemon) == ["cuda_oom", "cuda_oom"]
        assert starts(daemon) == 2
        (opened,) = daemon.events("incident.opened")
        assert opened["severity"] == "critical"
        assert daemon.get("/livez")[0] == 503


def test_d6_cuda_oom_of_a_serving_engine_is_retried(tmp_path: Path) -> None:
    """FACT (D6): once, under load, it is a crash with that cause and the engine comes back."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        fault(daemon, "cuda_oom")
        assert recovered(daemon, before)["cause"] == "cuda_oom"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("bad_argument", "bad_arguments"),
        ("model_missing", "model_missing"),
        ("driver_803", "driver_mismatch"),
        ("compat_804", "cuda_compat_unsupported"),
    ],
)
def test_d7_what_no_retry_can_cure_is_not_retried(tmp_path: Path, name: str, cause: str) -> None:
    """FACT (D7): one start, the cause from the log with a sentence, given up, the breaker shut."""
    with engine(tmp_path, "--fault", name, ready=False) as daemon:
        assert given_up(daemon)["breaker_open"] is False
        (exited,) = daemon.events("engine.exited")
        assert exited["cause"] == cause
        assert exited["explanation"]
        assert starts(daemon) == 1
        assert daemon.verdict() == "given_up"


@pytest.mark.parametrize(
    ("name", "cause"), [("memory_short", "gpu_memory_short"), ("port_in_use", "port_in_use")]
)
def test_d7_what_may_pass_has_the_boot_budget(tmp_path: Path, name: str, cause: str) -> None:
    """FACT (D7): memory or a port may become free: three retries, then the breaker opens."""
    with engine(tmp_path, "--fault", name, config=FAST, ready=False) as daemon:
        daemon.wait_event("breaker.opened")
        assert given_up(daemon)["breaker_open"] is True
        assert causes(daemon) == [cause] * 4
        assert starts(daemon) == 4


def test_d7_a_taken_port_starts_nothing_and_names_its_owner(tmp_path: Path) -> None:
    """FACT (D7): while a stranger listens on the engine's port no engine is spawned at all.

    The refusals name the cause and the process, and cost no budget; when it is gone it starts.
    """
    port, file = free_port(), tmp_path / "watchdog.toml"
    file.write_text(FAST)
    with socket.create_server(("127.0.0.1", port)) as stranger:
        command = simulated_command(port)
        with running(tmp_path / "s", command, port, config=file) as daemon:
            failed = daemon.wait_event("action.finished", wanted=lambda e: e["result"] != "ok")
            assert str(os.getpid()) in failed["explanation"]
            until(lambda: len(daemon.events("action.finished")) > 5)
            assert starts(daemon) == 0
            stranger.close()
            daemon.wait_ready(READY)
            assert not daemon.events("breaker.opened")


def test_d8_the_budget_outlives_the_watchdog(tmp_path: Path) -> None:
    """FACT (D8): starts are counted over our own restart too, and an open breaker stays open."""
    port, file = free_port(), tmp_path / "watchdog.toml"
    file.write_text(FAST)
    command = simulated_command(port, "--fault", "crash_after=1.2", "--startup-time", "60")
    first = launch(tmp_path / "s", command, port, config=file)
    others: list[Daemon] = []
    try:
        until(lambda: starts(first) >= 2, READY)
        first.send(signal.SIGKILL)
        first.ended()
        others.append(launch(tmp_path / "s", command, port, config=file))
        others[0].wait_event("breaker.opened")
        given_up(others[0])
        assert starts(first) + starts(others[0]) == 4
        others[0].send(signal.SIGKILL)
        others[0].ended()
        others.append(launch(tmp_path / "s", command, port, config=file))
        assert given_up(others[1])["breaker_open"] is True
        assert starts(others[1]) == 0
    finally:
        for daemon in (first, *others):
            finish(daemon)


def test_d9_an_engine_that_was_ready_long_enough_is_restarted_at_once(tmp_path: Path) -> None:
    """FACT (D9): with twenty minutes of backoff configured four such deaths cost no wait.

    Ready time ends a row of failures; "long enough" is half a second here.
    """
    config = """
[policy]
backoff = { initial = "20m", max = "20m", reset_after_ready = "500ms" }
restart_budget = { count = 100, window = "1000h" }
"""
    with engine(tmp_path, "--fault", "crash_after=4", config=config, ready=False) as daemon:
        until(lambda: starts(daemon) >= 4, 90)
        assert not [e for e in daemon.events("decision.hold") if e["reason"] == "backoff"]
        # Who of a set that ends was seen to go first is the scheduler's to say.
        assert set(causes(daemon)) <= {"crash", "engine_core_died", "worker_died"}


def test_d10_a_detached_descendant_does_not_outlive_its_set(tmp_path: Path) -> None:
    """FACT (D10): double-forked into a session of its own, its environment gone: found, killed."""
    with engine(tmp_path) as daemon:
        fault(daemon, "double_fork")
        stray = member(daemon, "VLLM::Detached")
        before = daemon.engine()
        os.kill(before["pid"], signal.SIGKILL)
        recovered(daemon, before)
        assert not alive(stray)
