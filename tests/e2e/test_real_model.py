"""What the real vLLM serves, and whether it may: asleep, another model, one rank of two.

CPU build, tiny random model. The first two tests share one engine: each start takes half a minute.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import signal
import sqlite3
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_real_vllm import START, command, complete, environment, member
from tests.support.daemon import Daemon, running
from tests.support.outages import reads
from tests.support.simulated import alive, free_port, until

pytestmark = pytest.mark.vllm

SCRIPT = (
    "import os, sys\n"
    "words = open(sys.argv[1]).read().split()\n"
    "start = [sys.executable, '-m', 'vllm.entrypoints.openai.api_server', *sys.argv[2:], *words]\n"
    "os.execv(sys.executable, start)\n"
)
"""A script in front of the engine that chooses what it serves, as people have them."""
WEIGHTS = "model.safetensors"
LONG = 300.0
"""Seconds for a stall on two slow processors: what compiles has more patience."""


@dataclass
class Served:
    """A daemon, the folder of the model that its engine loads, and the words of the script."""

    daemon: Daemon
    model: Path
    words: Path

    def restore(self) -> None:
        """The model that was served at first, under its first name, serving."""
        source = Path(os.environ["VLLM_WATCHDOG_TEST_MODEL"])
        shutil.copyfile(source / WEIGHTS, self.model / WEIGHTS)
        self.words.write_text("--served-model-name tiny")
        if self.daemon.engine().get("state") in {"stopped", "given_up"}:
            assert self.daemon.command("start", patience=START).returncode == 0
        self.daemon.wait_ready(START)
        until(lambda: '"served":"tiny"' in self.good(), 90)

    def good(self) -> str:
        """What the daemon keeps of the first good start."""
        file = self.daemon.state_dir / "store.sqlite3"
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as store:
            rows = store.execute("SELECT body FROM saved WHERE name = 'model/main'").fetchall()
        return str(rows[0][0]) if rows else ""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The engine of this module, behind a script, with the doors that put it to sleep."""
    place = tmp_path_factory.mktemp("model")
    model, words, port = place / "m", place / "words", free_port()
    shutil.copytree(os.environ["VLLM_WATCHDOG_TEST_MODEL"], model)
    words.write_text("--served-model-name tiny")
    (place / "engine.py").write_text(SCRIPT)
    python, *given = command(port)
    flags = [word for word in given[2:] if not word.startswith("--served-model-name")]
    flags[flags.index("--model") + 1] = str(model)
    start = [python, str(place / "engine.py"), str(words), *flags]
    file = place / "watchdog.toml"
    file.write_text(
        f'[engine.main]\ncommand = {start}\nmodel_change = "refuse"\n'
        '[probes.engine_model]\nperiod = "1s"\n'
    )
    with tempfile.TemporaryDirectory(prefix="vt-", dir="/tmp") as folder:
        around = {**environment(Path(folder) / "t"), "VLLM_SERVER_DEV_MODE": "1"}
        (Path(folder) / "t").mkdir()
        with running(place / "s", (), port, config=file, environment=around) as daemon:
            yield Served(daemon, model, words)


@pytest.fixture
def served(shared: Served) -> Served:
    """The same, serving what it did at first."""
    shared.restore()
    return shared


def test_h8_a_sleeping_engine_is_asked_for_nothing(served: Served) -> None:
    """H8: /sleep stops its scheduler: degraded, no canary waits in it, no restart; it wakes."""
    daemon = served.daemon
    before, acts = daemon.engine(), len(daemon.events("decision.act"))
    post(daemon, "/sleep?level=1")
    until(lambda: daemon.engine()["reasons"] == ["the engine sleeps"], 30)
    until(lambda: page(daemon, "num_requests_waiting") + page(daemon, "num_requests_running") == 0)
    reads(daemon, "engine_http", 10)
    assert page(daemon, "num_requests_waiting") + page(daemon, "num_requests_running") == 0
    assert daemon.verdict() == "degraded"
    assert daemon.get("/healthz")[0] == 503
    post(daemon, "/wake_up")
    daemon.wait_ready(30)
    assert complete(daemon.engine_port, 2)
    assert daemon.engine()["generation"] == before["generation"]
    assert len(daemon.events("decision.act")) == acts


def test_h12_another_model(served: Served) -> None:
    """H12: other weights are not started; what serves under another name is stopped."""
    daemon = served.daemon
    before = daemon.engine()
    with (served.model / WEIGHTS).open("r+b") as file:
        file.truncate(700_000)
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: daemon.engine()["state"] == "given_up", 60)
    refused = daemon.wait_event("action.finished", 10, lambda e: e["level"] == "error")
    assert refused["verdict"] == "model_changed"
    assert WEIGHTS in refused["explanation"]
    assert daemon.engine()["pids"] == []
    shutil.copyfile(Path(os.environ["VLLM_WATCHDOG_TEST_MODEL"]) / WEIGHTS, served.model / WEIGHTS)
    served.words.write_text("--served-model-name second")
    assert daemon.command("reset-breaker", patience=START).returncode == 0
    found = daemon.wait_event("finding.firing", START, lambda e: e["rule"] == "model-changed")
    assert found["engine_model.changed"] == "serves second, was tiny"
    until(lambda: daemon.engine()["state"] == "stopped", 60)
    assert daemon.engine()["pids"] == []


def test_h11_a_hung_rank_is_seen_although_the_other_serves(tmp_path: Path) -> None:
    """H11: of two data parallel ranks one stands still with requests: stalled, and ended.

    The next start is that of any other test, and not waited for.
    """
    port = free_port()
    words = [*command(port), "--data-parallel-size", "2"]
    with tempfile.TemporaryDirectory(prefix="vt-", dir="/tmp") as folder:
        (Path(folder) / "t").mkdir()
        around = environment(Path(folder) / "t")
        with running(tmp_path / "s", words, port, environment=around) as daemon:
            before = daemon.wait_ready(START)
            with busy(daemon):
                until(lambda: page(daemon, "num_requests_running", 'engine="1"') > 0, 60)
                os.kill(member(daemon, "EngineCore_DP1"), signal.SIGSTOP)
                found = daemon.wait_event("finding.firing", LONG, is_stalled)
                assert found["reason"].startswith("rank 1 has requests and no token for")
                until(
                    lambda: daemon.is_another(before),
                    LONG,
                )
            assert not [pid for pid in before["pids"] if alive(pid)]
            assert daemon.events("engine.exited")[-1]["cause"] == "stalled"


def is_stalled(event: dict[str, Any]) -> bool:
    """Whether it is the finding that leads to the restart."""
    return bool(event["rule"] == "engine-stalled")


@contextlib.contextmanager
def busy(daemon: Daemon) -> Iterator[None]:
    """Eight clients that ask again and again, until the engine does not answer them any more."""
    enough = threading.Event()

    def ask() -> None:
        while not enough.is_set() and complete(daemon.engine_port, 900):
            pass

    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        for _ in range(8):
            clients.submit(ask)
        try:
            yield
        finally:
            enough.set()


def post(daemon: Daemon, path: str) -> None:
    """Ask the engine itself for something that has no body."""
    url = f"http://127.0.0.1:{daemon.engine_port}{path}"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30) as answer:
        assert answer.status == 200


def page(daemon: Daemon, name: str, label: str = "") -> float:
    """The sum of the engine's own series of that name."""
    url = f"http://127.0.0.1:{daemon.engine_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    ours = (line for line in lines if line.startswith(f"vllm:{name}{{") and label in line)
    return sum(float(line.rpartition(" ")[2]) for line in ours)
