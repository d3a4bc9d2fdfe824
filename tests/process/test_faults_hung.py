"""The engine lives but does not serve: the verdict, and whether it is restarted or left alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running, simulated_command
from tests.support.outages import (
    FAST,
    READY,
    causes,
    clear,
    engine,
    fault,
    member,
    open_completion,
    reads,
    recovered,
    series,
    starts,
    untouched,
)
from tests.support.simulated import alive, free_port, until

HASTY = '[engine.main]\nstop = { drain_timeout = "1s", term_timeout = "3s" }\n'


def test_h2_a_stopped_worker_under_load_is_stalled(tmp_path: Path) -> None:
    """FACT (H2): one of two workers stands still with a request in flight: found, restarted."""
    with engine(tmp_path, "--workers", "2") as daemon:
        before = daemon.engine()
        worker = member(daemon, "VLLM::Worker_TP1")
        with open_completion(daemon, 5000):
            until(lambda: series(daemon, "num_requests_running") == 1)
            os.kill(worker, signal.SIGSTOP)
            found = daemon.wait_event("finding.firing", 60, lambda e: e["rule"] == "engine-stalled")
            assert found["verdict"] == "stalled"
            assert recovered(daemon, before)["cause"] == "stalled"


@pytest.mark.parametrize("name", ["no_answer", "slow_answers"])
def test_h7_an_engine_that_answers_nobody_is_restarted(tmp_path: Path, name: str) -> None:
    """FACT (H7): connections without an answer, or a byte a second, end in a verdict.

    No probe thread stays with the old engine: the new one is found ready by the same probes.
    """
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        fault(daemon, name)
        assert recovered(daemon, before, 90)["cause"] == "stalled"
        assert not daemon.metric("vllm_watchdog_probe_abandoned_total{")


def test_h7_an_endless_body_is_cut_off(tmp_path: Path) -> None:
    """FACT (H7): it cannot serve, so it is not ready; memory stays flat; healed, it serves on."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        fault(daemon, "endless_answers")
        until(lambda: daemon.verdict() not in {"ready", "busy"}, 90)
        memory = resident(daemon)
        reads(daemon, "engine_http", 5)
        reads(daemon, "engine_metrics", 5)
        assert resident(daemon) < memory + (64 << 20)
        assert not daemon.metric("vllm_watchdog_probe_abandoned_total{")
        if untouched(daemon, before):
            clear(daemon, "endless_answers")
        daemon.wait_ready(READY)


def resident(daemon: Daemon) -> int:
    """Bytes of memory of the daemon."""
    pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("name", "value"), [("bad_metrics", None), ("huge_metrics", 1 << 30)])
def test_h7_garbage_metrics_restart_nobody(tmp_path: Path, name: str, value: object) -> None:
    """FACT (H7): noise, or a gigabyte, is no reading; the canary proves that the engine serves."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        until(lambda: daemon.metric("vllm_watchdog_engine_metrics_progress_total{") is not None)
        fault(daemon, name, value)
        until(lambda: daemon.metric("vllm_watchdog_engine_metrics_progress_total{") is None)
        reads(daemon, "engine_http", 8)
        assert daemon.verdict() == "ready"
        assert untouched(daemon, before)
        clear(daemon, name)
        until(lambda: daemon.metric("vllm_watchdog_engine_metrics_progress_total{") is not None)


def test_h8_a_sleeping_engine_is_asked_for_nothing(tmp_path: Path) -> None:
    """FACT (H8): degraded with the reason, no canary, no restart; awake it serves at once."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        fault(daemon, "sleeping")
        until(lambda: daemon.engine()["reasons"] == ["the engine sleeps"])
        until(lambda: waiting(daemon) == 0)
        aborted = series(daemon, "request_success_total", 'finished_reason="abort"')
        reads(daemon, "engine_http", 8)
        assert waiting(daemon) == 0
        assert series(daemon, "request_success_total", 'finished_reason="abort"') == aborted
        assert daemon.get("/healthz")[0] == 503
        assert untouched(daemon, before)
        clear(daemon, "sleeping")
        daemon.wait_ready(READY)
        assert untouched(daemon, before)


def waiting(daemon: Daemon) -> float:
    """Requests that the engine has and does not answer."""
    return series(daemon, "num_requests_running") + series(daemon, "num_requests_waiting")


def test_h8_a_503_while_it_scales_is_degraded(tmp_path: Path) -> None:
    """FACT (H8): with a living EngineCore it is out of service for a while, and not dead."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        fault(daemon, "health_503")
        until(lambda: daemon.verdict() == "degraded")
        reads(daemon, "engine_http", 5)
        assert daemon.verdict() == "degraded"
        assert daemon.get("/healthz")[0] == 503
        clear(daemon, "health_503")
        daemon.wait_ready(READY)
        assert untouched(daemon, before)


@pytest.mark.parametrize("name", ["nccl_hang", "silent_start", "never_ready"])
def test_h9_a_start_without_progress_is_ended(tmp_path: Path, name: str) -> None:
    """FACT (H9): nothing moves for as long as configured: killed, with that cause, and retried."""
    config = f'{HASTY}start_timeout = "2s"\n{FAST}'
    with engine(tmp_path, "--fault", name, config=config, ready=False) as daemon:
        until(lambda: daemon.engine().get("pids"))
        daemon.verdict()
        first = daemon.engine()["pids"]
        exited = daemon.wait_event("engine.exited")
        assert exited["cause"] == "start_timeout"
        until(lambda: starts(daemon) >= 2)
        assert not [pid for pid in first if alive(pid)]


def test_h10_a_slow_start_that_moves_is_left_alone(tmp_path: Path) -> None:
    """FACT (H10): it takes four times the limit, and log and memory grow all the while."""
    config = '[engine.main]\nstart_timeout = "3s"\n'
    with engine(tmp_path, "--fault", "slow_start=12", config=config, ready=False) as daemon:
        daemon.wait_ready(60)
        assert starts(daemon) == 1
        assert causes(daemon) == []


@pytest.mark.parametrize(
    "flags",
    [
        ("--api-key", "sk-a", "sk-b"),
        ("--root-path", "/base/path"),
        ("--api-server-count", "2", "--dp", "2"),
        ("--ssl-keyfile", "KEY", "--ssl-certfile", "CERTIFICATE"),
    ],
    ids=["key", "path", "several", "https"],
)
def test_h11_it_is_spoken_to_on_its_own_terms(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """FACT (H11): canary and metrics work, and a stopped EngineCore is a stall as ever."""
    with engine(tmp_path, *certified(tmp_path, flags)) as daemon:
        before = daemon.engine()
        until(lambda: daemon.metric('vllm_watchdog_probe_success{probe="engine_metrics"') == 1)
        assert daemon.metric("vllm_watchdog_canary_latency_seconds_count")
        cores = [member(daemon, "VLLM::EngineCore")]
        if "--dp" in flags:
            cores = [member(daemon, f"VLLM::EngineCore_DP{rank}") for rank in (0, 1)]
        for core in cores:
            os.kill(core, signal.SIGSTOP)
        assert recovered(daemon, before)["cause"] == "stalled"
        assert "sk-" not in daemon.log_path.read_text()


def certified(folder: Path, flags: tuple[str, ...]) -> list[str]:
    """The flags, with a key and a certificate of its own making where they are wanted."""
    places = {"KEY": str(folder / "key.pem"), "CERTIFICATE": str(folder / "certificate.pem")}
    if "KEY" in flags:
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other"]
        make += ["-keyout", places["KEY"], "-out", places["CERTIFICATE"]]
        subprocess.run(make, check=True, capture_output=True)
    return [places.get(flag, flag) for flag in flags]


def test_h11_the_key_may_come_from_the_environment(tmp_path: Path) -> None:
    """FACT (H11): VLLM_API_KEY of the engine's environment opens it to the canary."""
    port = free_port()
    key = {"VLLM_API_KEY": "sk-from-the-environment"}
    with running(tmp_path, simulated_command(port), port, environment=key) as daemon:
        daemon.wait_ready(READY)
        assert daemon.metric("vllm_watchdog_canary_latency_seconds_count")


def test_h11_a_hung_rank_is_seen_although_the_other_serves(tmp_path: Path) -> None:
    """FACT (H11): of two data parallel ranks one stands still with requests: the set is stalled."""
    with engine(tmp_path, "--dp", "2") as daemon:
        before = daemon.engine()
        core = member(daemon, "VLLM::EngineCore_DP1")
        with open_completion(daemon, 100_000), open_completion(daemon, 100_000):
            until(lambda: series(daemon, "num_requests_running") == 2)
            os.kill(core, signal.SIGSTOP)
            assert recovered(daemon, before, 60)["cause"] == "stalled"


def test_h13_who_recovers_before_the_verdict_is_not_killed(tmp_path: Path) -> None:
    """FACT (H13): a completion or two that timed out are forgotten when the next one comes."""
    with engine(tmp_path) as daemon:
        before = daemon.engine()
        fault(daemon, "no_answer")
        until(lambda: "timed out" in " ".join(daemon.engine()["reasons"]), 60)
        clear(daemon, "no_answer")
        daemon.wait_ready(READY)
        assert untouched(daemon, before)


def test_h13_who_recovers_while_its_restart_has_to_wait_is_not_killed(tmp_path: Path) -> None:
    """FACT (H13): stalled and held for its backoff; it moves again, and nothing is done."""
    config = '[policy]\nbackoff = { initial = "40s", max = "40s" }\n'
    with engine(tmp_path, config=config) as daemon:
        first = daemon.engine()
        os.kill(first["pid"], signal.SIGKILL)
        recovered(daemon, first)
        before, acts = daemon.engine(), len(daemon.events("decision.act"))
        core = member(daemon, "VLLM::EngineCore")
        os.kill(core, signal.SIGSTOP)
        daemon.wait_event("decision.hold", 60, lambda e: e["rule"] == "engine-stalled")
        os.kill(core, signal.SIGCONT)
        until(lambda: len(daemon.events("incident.resolved")) == 2, 60)
        daemon.wait_ready(READY)
        assert daemon.engine()["generation"] == before["generation"]
        assert len(daemon.events("decision.act")) == acts


def test_h14_term_swallowed_during_the_start(tmp_path: Path) -> None:
    """FACT (H14): a loading engine takes no note of TERM; the stop ends with nobody alive."""
    config = HASTY
    flags = ("--startup-time", "120", "--fault", "ignore_term")
    with engine(tmp_path, *flags, config=config, ready=False) as daemon:
        member(daemon, "VLLM::Worker")
        pids = daemon.engine()["pids"]
        assert daemon.command("stop").returncode == 0
        assert not [pid for pid in pids if alive(pid)]
        assert daemon.engine()["state"] == "stopped"


def test_h14_term_that_waits_for_a_client_that_stays(tmp_path: Path) -> None:
    """FACT (H14): the leader waits for its clients as long as they stay; the ladder does not."""
    config = HASTY
    with engine(tmp_path, config=config) as daemon:
        pids = daemon.engine()["pids"]
        with open_completion(daemon, 100_000):
            until(lambda: series(daemon, "num_requests_running") == 1)
            assert daemon.command("stop").returncode == 0
            assert not [pid for pid in pids if alive(pid)]
        assert causes(daemon) == ["operator"]
