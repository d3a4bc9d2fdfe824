"""Further rows of the conformance table on the real vLLM (CPU build, tiny random model)."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_real_vllm import (
    ENVIRONMENT,
    START,
    assert_recovered,
    command,
    complete,
    environment,
    member,
    requests_running,
)
from tests.support.daemon import running
from tests.support.outages import causes, given_up, reads, starts, untouched
from tests.support.simulated import alive, free_port, until

pytestmark = pytest.mark.vllm


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory whose path leaves room for the names of Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="vt-", dir="/tmp") as folder:
        inner = Path(folder) / "t"
        inner.mkdir()
        yield inner


@pytest.mark.parametrize(
    ("flags", "cause"),
    [(["--no-such-flag"], "bad_arguments"), (["--model", "/no/such/model"], "model_missing")],
    ids=["flag", "model"],
)
def test_d7_what_no_retry_can_cure(tmp_path: Path, flags: list[str], cause: str) -> None:
    """D7: vLLM's own words name the cause; one start, no retry."""
    port = free_port()
    words = [*command(port), *flags]
    with running(tmp_path / "s", words, port, environment=ENVIRONMENT) as daemon:
        given_up(daemon, START)
        assert causes(daemon) == [cause]
        assert starts(daemon) == 1


def test_d4_a_leader_that_is_kept_alive(tmp_path: Path, temporary: Path) -> None:
    """D4: VLLM_KEEP_ALIVE_ON_ENGINE_DEATH keeps the server without its engine: dead, restarted."""
    port = free_port()
    kept = {**environment(temporary), "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}
    with running(tmp_path / "s", command(port), port, environment=kept) as daemon:
        before = daemon.wait_ready(START)
        os.kill(member(daemon, "EngineCore"), signal.SIGKILL)
        assert_recovered(daemon, before, {"engine_core_died"})


def test_h3_more_requests_than_it_can_take(tmp_path: Path, temporary: Path) -> None:
    """H3: 48 clients in front of 8 places for a minute of looks: busy, and left alone."""
    port = free_port()
    with running(tmp_path / "s", command(port), port, environment=environment(temporary)) as daemon:
        before = daemon.wait_ready(START)
        with concurrent.futures.ThreadPoolExecutor(48) as clients:
            waits = [clients.submit(complete, port, 900) for _ in range(48)]
            until(lambda: requests_running(port) == 8, 60)
            reads(daemon, "engine_metrics", 30, 120)
            assert daemon.verdict() in {"busy", "ready"}
            assert untouched(daemon, before)
            concurrent.futures.wait(waits)
        assert untouched(daemon, before)


def test_h11_a_key_https_a_path_and_several_api_servers(tmp_path: Path, temporary: Path) -> None:
    """H11: canary and metrics work behind all of them; a stopped core is found."""
    port = free_port()
    words = [*command(port), "--api-key", "sk-secret", "--api-server-count", "2"]
    words += [*certified(tmp_path), "--root-path", "/base"]
    with running(tmp_path / "s", words, port, environment=environment(temporary)) as daemon:
        before = daemon.wait_ready(START)
        until(lambda: daemon.metric("vllm_watchdog_engine_metrics_progress_total{"), 30)
        os.kill(member(daemon, "EngineCore"), signal.SIGSTOP)
        assert_recovered(daemon, before, {"stalled"})
        assert "sk-secret" not in daemon.log_path.read_text()


def certified(folder: Path) -> list[str]:
    """Flags for HTTPS with a certificate of its own making."""
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return ["--ssl-keyfile", key, "--ssl-certfile", certificate]


def test_h14_term_during_the_start(tmp_path: Path, temporary: Path) -> None:
    """H14: TERM while it loads is swallowed by vLLM; the daemon's stop leaves nobody all the same.

    And nothing is left in its temporary directory.
    """
    port = free_port()
    file = tmp_path / "watchdog.toml"
    file.write_text('[engine.main]\nstop = { drain_timeout = "1s", term_timeout = "10s" }\n')
    with running(
        tmp_path / "s", command(port), port, config=file, environment=environment(temporary)
    ) as daemon:
        until(lambda: len(daemon.engine().get("pids", ())) >= 3, START)
        pids = daemon.engine()["pids"]
        daemon.send(signal.SIGTERM)
        assert daemon.ended(90) == 0
        assert not [pid for pid in pids if alive(pid)]
        assert not daemon.survivors()
    assert list(temporary.iterdir()) == []
