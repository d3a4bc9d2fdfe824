"""The main job on the real vLLM (CPU build, tiny random model)."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, finish, launch, running
from tests.support.simulated import alive, free_port, until

pytestmark = pytest.mark.vllm

START = 240.0
"""Seconds a real engine may take to start on two shared cores (40 to 90 were seen)."""

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def environment(temporary: Path) -> dict[str, str]:
    """What the engine needs, with its temporary files in a place that can be looked at."""
    # The compile cache outlives a start on purpose; here it must not hide a leftover.
    cache = str(temporary.with_name(f"{temporary.name}-compiled"))
    return {**ENVIRONMENT, "TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": cache}


def command(port: int) -> list[str]:
    """The engine's own command line, as a user would write it."""
    return [
        os.environ["VLLM_WATCHDOG_TEST_PYTHON"],
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        os.environ["VLLM_WATCHDOG_TEST_MODEL"],
        "--served-model-name=tiny",
        f"--port={port}",
        *("--host", "127.0.0.1", "--max-model-len", "1024", "--max-num-seqs", "8"),
        *("--enforce-eager", "--dtype", "bfloat16"),
    ]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory whose path leaves room for the names of Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="vt-", dir="/tmp") as folder:
        inner = Path(folder) / "t"
        inner.mkdir()
        yield inner


@pytest.fixture
def daemon(tmp_path: Path, temporary: Path) -> Iterator[Daemon]:
    """A daemon whose real engine is ready."""
    port = free_port()
    with running(
        tmp_path / "state", command(port), port, environment=environment(temporary)
    ) as started:
        started.wait_ready(START)
        yield started


def member(daemon: Daemon, title: str) -> int:
    """The pid of the engine's process with ``title`` in its command line."""
    for pid in daemon.engine()["pids"]:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if title.encode() in line:
            return int(pid)
    raise AssertionError(f"no {title} among {daemon.engine()['pids']}")


def assert_recovered(daemon: Daemon, before: dict[str, object], cause: set[str]) -> None:
    """A new generation serves, nothing of the old one lives, the incident is complete."""
    until(lambda: daemon.is_another(before), 60)
    old = [pid for pid in before["pids"] if alive(pid)]  # type: ignore[attr-defined]
    assert not old
    daemon.wait_ready(START)
    resolved = daemon.wait_event("incident.resolved")
    assert resolved["outcome"] == "recovered"
    assert resolved["cause"] in cause
    assert daemon.metric("vllm_watchdog_engine_starts_total{") == 2


def test_leader_killed(daemon: Daemon) -> None:
    """D1: EngineCore and Worker that outlive a killed API server are gone before the new start."""
    before = daemon.engine()
    os.kill(before["pid"], signal.SIGKILL)
    assert_recovered(daemon, before, {"signal"})


def test_engine_core_killed(daemon: Daemon) -> None:
    """D2: exit 0 after EngineCore's death is a crash with that cause."""
    before = daemon.engine()
    os.kill(member(daemon, "EngineCore"), signal.SIGKILL)
    assert_recovered(daemon, before, {"engine_core_died"})


def test_worker_killed(daemon: Daemon) -> None:
    """D3: a killed worker takes the engine down, and the engine comes back."""
    before = daemon.engine()
    os.kill(member(daemon, "Worker"), signal.SIGKILL)
    assert_recovered(daemon, before, {"engine_core_died", "worker_died"})


def test_engine_core_stopped_while_idle(daemon: Daemon) -> None:
    """H1: a frozen EngineCore behind a 200 of /health is stalled, and restarted."""
    before = daemon.engine()
    os.kill(member(daemon, "EngineCore"), signal.SIGSTOP)
    finding = daemon.wait_event("finding.firing", 60, lambda e: e["rule"] == "engine-stalled")
    assert finding["verdict"] == "stalled"
    assert_recovered(daemon, before, {"stalled"})


def test_worker_stopped_under_load(daemon: Daemon) -> None:
    """H2: a frozen worker with a request in flight is stalled, and restarted."""
    before = daemon.engine()
    client = threading.Thread(target=complete, args=(daemon.engine_port, 900), daemon=True)
    client.start()
    until(lambda: requests_running(daemon.engine_port) > 0, 30)
    os.kill(member(daemon, "Worker"), signal.SIGSTOP)
    assert_recovered(daemon, before, {"stalled"})


def test_term_while_a_request_runs(tmp_path: Path, temporary: Path) -> None:
    """SIGTERM with a client that does not leave ends in zero processes and no leftovers."""
    port = free_port()
    daemon = launch(tmp_path / "s", command(port), port, environment=environment(temporary))
    try:
        daemon.wait_ready(START)
        assert any(temporary.iterdir())
        segments = shared_memory(daemon)
        assert segments
        client = threading.Thread(target=complete, args=(port, 900), daemon=True)
        client.start()
        until(lambda: requests_running(port) > 0, 30)
        daemon.verdict()
        daemon.send(signal.SIGTERM)
        assert daemon.ended(90) == 0
        assert daemon.ours
        assert not daemon.survivors()
        assert list(temporary.iterdir()) == []
        assert not [segment for segment in segments if segment.exists()]
    finally:
        finish(daemon)


def test_killed_watchdog_is_succeeded(tmp_path: Path) -> None:
    """W1: killed while its engine loads, and while it serves: the next one adopts it as it is."""
    port = free_port()
    daemons = [launch(tmp_path / "s", command(port), port, environment=ENVIRONMENT)]
    try:
        until(lambda: len(daemons[0].engine().get("pids", ())) >= 2, START)
        loading = daemons[0].engine()
        before = succeeded(daemons, START)
        assert complete(port, 2)
        after = succeeded(daemons, 60)
        for later in (before, after):
            for what in ("pid", "generation", "starts"):
                assert later[what] == loading[what]
        daemons[-1].send(signal.SIGTERM)
        assert daemons[-1].ended(90) == 0
        assert not [pid for pid in after["pids"] if alive(pid)]
    finally:
        for daemon in daemons:
            finish(daemon)


def succeeded(daemons: list[Daemon], patience: float) -> dict[str, Any]:
    """Kill the last of ``daemons`` and launch the next; its engine, adopted and ready."""
    last = daemons[-1]
    last.verdict()
    last.send(signal.SIGKILL)
    last.ended()
    port = last.engine_port
    daemons.append(launch(last.state_dir, command(port), port, environment=ENVIRONMENT))
    engine = daemons[-1].wait_ready(patience)
    assert daemons[-1].events("engine.adopted")
    assert daemons[-1].metric("vllm_watchdog_engine_starts_total{") in {None, 0}
    return engine


def shared_memory(daemon: Daemon) -> set[Path]:
    """The shared memory segments that the engine's processes have mapped."""
    lines: list[str] = []
    for pid in daemon.engine()["pids"]:
        lines += Path(f"/proc/{pid}/maps").read_text().splitlines()
    mapped = {line.split(maxsplit=5)[-1] for line in lines if " /dev/shm/" in line}
    return {Path(name) for name in mapped if not name.endswith(" (deleted)")}


def complete(port: int, tokens: int) -> bool:
    """Ask the engine itself for a completion; False when it did not come."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bool(json.loads(answer.read())["choices"])
    except OSError:
        return False


def requests_running(port: int) -> float:
    """What the engine's own gauge says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        page = answer.read().decode()
    lines = [x for x in page.splitlines() if x.startswith("vllm:num_requests_running{")]
    time.sleep(0.02)
    return sum(float(line.rpartition(" ")[2]) for line in lines)
