"""The simulated engine behaves like vLLM 0.32: tree, health, metrics, signals, exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from probes.engine_metrics import parse
from tests.support.simulated import ROOT, Simulated, alive, ended, simulated, stat_fields, until

CORE, WORKER = "VLLM::EngineCore", "VLLM::Worker"


@pytest.fixture
def engine() -> Iterator[Simulated]:
    """A serving engine without faults."""
    with simulated("--engine-death-delay", "0.5") as running:
        yield running.ready()


def test_tree_has_vllms_shape(engine: Simulated) -> None:
    """FACT: leader, tracker and EngineCore below it, Worker below EngineCore, one session."""
    core, worker = engine.member(CORE), engine.member(WORKER)
    assert int(stat_fields(core)[1]) == engine.pid
    assert int(stat_fields(worker)[1]) == core
    assert {int(stat_fields(pid)[2]) for pid in (core, worker)} == {engine.pid}
    assert any(
        "multiprocessing.resource_tracker import main" in t for t in engine.members().values()
    )


def test_children_lose_name_and_environment(engine: Simulated) -> None:
    """FACT: the title replaces argv and the environment block, and comm has 15 characters."""
    core = engine.member(CORE)
    assert Path(f"/proc/{core}/comm").read_text() == "VLLM::EngineCor\n"
    assert b"PATH=" not in Path(f"/proc/{core}/environ").read_bytes()
    assert b"PATH=" in Path(f"/proc/{engine.pid}/environ").read_bytes()


def test_core_outlives_a_killed_leader(engine: Simulated) -> None:
    """FACT: SIGKILL of the leader frees the port and leaves EngineCore and Worker alive."""
    core, worker = engine.member(CORE), engine.member(WORKER)
    os.kill(engine.pid, signal.SIGKILL)
    assert engine.wait() == -signal.SIGKILL
    assert engine.status("/health") == 0
    assert alive(core)
    assert alive(worker)
    os.kill(core, signal.SIGTERM)
    until(lambda: not engine.members())


@pytest.mark.parametrize("title", [CORE, WORKER])
def test_a_stopped_engine_looks_healthy(engine: Simulated, title: str) -> None:
    """FACT: under SIGSTOP /health stays 200, counters freeze, gauges read 0, no token comes."""
    assert engine.complete() == 200
    before = engine.metrics()
    pid = engine.member(title)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stat_fields(pid)[0] == "T")
    assert engine.complete(patience=0.5) == 0
    assert engine.status("/health") == 200
    assert engine.metrics() == before
    os.kill(pid, signal.SIGCONT)
    assert engine.complete() == 200


@pytest.mark.parametrize("title", [CORE, WORKER])
def test_a_dead_engine_ends_with_status_0(engine: Simulated, title: str) -> None:
    """FACT: after the death of EngineCore or Worker the leader exits 0 and nothing is left."""
    os.kill(engine.member(title), signal.SIGKILL)
    assert engine.wait() == 0
    until(lambda: not engine.members())


def test_a_dead_core_answers_503_and_500() -> None:
    """FACT: with keep_alive /health is 503 and completions are 500 for as long as one looks."""
    with simulated("--fault", "keep_alive", "--engine-death-delay", "0") as engine:
        engine.ready()
        os.kill(engine.member(CORE), signal.SIGKILL)
        until(lambda: engine.status("/health") == 503)
        assert engine.complete() == 500
        assert engine.status("/metrics") == 200
        assert alive(engine.pid)


def test_term_when_idle_leaves_only_litter(engine: Simulated) -> None:
    """FACT: SIGTERM ends an idle engine with 0; six sockets and a rendezvous file stay."""
    engine.process.terminate()
    assert engine.wait() == 0
    until(lambda: not engine.members())
    left = [path for path in engine.directory.iterdir() if path.name != "log"]
    assert sum(path.is_socket() for path in left) == 6
    assert [path.name[:10] for path in left if not path.is_socket()] == ["vllm_dist_"]


def test_term_waits_for_the_client(engine: Simulated) -> None:
    """FACT: SIGTERM with a request in flight kills the engine and hangs until the client leaves."""
    with engine.open_completion():
        until(lambda: engine.metric("num_requests_running") == 1)
        core = engine.member(CORE)
        engine.process.terminate()
        until(lambda: not alive(core))
        until(lambda: "Waiting for connections to close" in engine.log())
        assert engine.process.poll() is None
    assert engine.wait() == 0


def test_term_drains_when_told() -> None:
    """FACT: with --shutdown-timeout a running request finishes before the engine ends."""
    with simulated("--shutdown-timeout", "600", "--tokens-per-second", "20") as engine:
        engine.ready()
        with engine.open_completion(tokens=60) as client:
            until(lambda: engine.metric("prompt_tokens_total"))
            engine.process.terminate()
            until(lambda: ended(client))
            assert b"200 OK" in client.recv(100)
        assert engine.wait() == 0


def test_a_draining_engine_takes_nothing_new() -> None:
    """FACT: while it drains new requests get 500 and /health 200; it ends with the last request."""
    with simulated("--shutdown-timeout", "600", "--tokens-per-second", "20") as engine:
        engine.ready()
        with engine.open_completion(tokens=100_000):
            until(lambda: engine.metric("num_requests_running") == 1)
            engine.process.terminate()
            until(lambda: "SIGTERM received" in engine.log())
            assert engine.complete() == 500
            assert engine.status("/health") == 200
            assert engine.process.poll() is None
        assert engine.wait() == 0


def test_term_during_the_start_is_swallowed() -> None:
    """FACT: the first SIGTERM breaks the start off without an end, the second ends it."""
    with simulated("--fault", "never_ready") as engine:
        engine.member(WORKER)
        engine.process.terminate()
        until(lambda: "init engine" in engine.log())
        assert engine.process.poll() is None

        def ended_by_more() -> bool:  # signals that come at once count as one
            engine.process.terminate()
            return engine.process.poll() is not None

        until(ended_by_more)
        assert engine.wait() in (-signal.SIGINT, 130)
        until(lambda: not engine.members())


def test_port_in_use_exits_1(engine: Simulated) -> None:
    """FACT: a second engine on the port prints OSError 98 and exits 1."""
    command = [sys.executable, "-m", "watchdog.simulator", "--port", str(engine.port)]
    second = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert second.returncode == 1
    assert "OSError: [Errno 98] Address already in use" in second.stdout


def test_log_lines_come_in_order(engine: Simulated) -> None:
    """FACT: the lines of a start have vLLM's texts, order and prefixes."""
    marks = ("version 0.32.0", "Resolved architecture", "Initializing a V1", "world_size=1")
    later = ("Starting to load", "Loading weights took", "KV cache memory", "init engine")
    last = ("Starting vLLM server on", "Available routes", "Application startup complete.")
    places = [engine.log().index(mark) for mark in (*marks, *later, *last)]
    assert places == sorted(places)
    assert f"(APIServer pid={engine.pid})" in engine.log()


def test_streaming_ends_with_usage_and_done(engine: Simulated) -> None:
    """FACT: a stream is SSE: one event a token, usage when asked for, then [DONE]."""
    body = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 4, "stream": True}
    body["stream_options"] = {"include_usage": True}
    events = engine.call("/v1/chat/completions", body)[1].decode().split("\n\n")[:-1]
    assert events[-1] == "data: [DONE]"
    frames = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert [len(frame["choices"]) for frame in frames] == [1, 1, 1, 1, 0]
    assert frames[-1]["usage"]["total_tokens"] == 7


def test_completion_counts_its_tokens(engine: Simulated) -> None:
    """FACT: max_tokens is honoured and every token is in the metrics."""
    status, body = engine.call("/v1/completions", {"prompt": "a b", "max_tokens": 5})
    assert status == 200
    assert json.loads(body)["usage"]["completion_tokens"] == 5
    assert engine.metric("generation_tokens_total") == 5
    assert engine.metric("prompt_tokens_total") == 2
    assert engine.metric("iteration_tokens_total_count") == 5


def test_a_wrong_model_is_404(engine: Simulated) -> None:
    """FACT: a model that is not served gets OpenAI's error object."""
    status, body = engine.call("/v1/completions", {"model": "other", "prompt": "a"})
    assert status == 404
    assert json.loads(body)["error"]["type"] == "NotFoundError"


def test_a_client_that_leaves_aborts_its_request(engine: Simulated) -> None:
    """FACT: closing the connection takes the request out of the engine."""
    with engine.open_completion(tokens=100_000):
        until(lambda: engine.metric("num_requests_running") == 1)
    until(lambda: engine.metric("num_requests_running") == 0)


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_the_key_guards_v1_only(how: str) -> None:
    """FACT: without the key /v1 is 401 and everything else answers."""
    flags = ["--api-key", "secret"] if how == "flag" else []
    with simulated(*flags, VLLM_API_KEY="secret") as engine:
        engine.ready()
        assert engine.status("/v1/models") == 401
        assert engine.status("/v1/models", key="secret") == 200
        assert engine.complete() == 401
        assert engine.complete(key="secret") == 200
        assert engine.status("/metrics") == 200


@pytest.mark.parametrize(
    ("generation", "has", "lacks"),
    [
        ("0.8", "gpu_cache_usage_perc", "kv_cache_usage_perc"),
        ("0.10", "gpu_cache_usage_perc", "engine_sleep_state"),
        ("0.32", "kv_cache_usage_perc", "gpu_cache_usage_perc"),
    ],
)
def test_metric_names_follow_the_release(generation: str, has: str, lacks: str) -> None:
    """FACT: each generation of vLLM has its own names for the same numbers."""
    with simulated("--metrics-generation", generation) as engine:
        names = {name.partition("{")[0] for name in engine.ready().metrics()}
        assert f"vllm:{has}" in names
        assert f"vllm:{lacks}" not in names


@pytest.mark.parametrize("name", ["a\nb", 'a"b', "a\\b", "a\\nb", 'a\\",b="c'])
def test_a_hostile_name_breaks_no_page(name: str) -> None:
    """FACT: it stands in the labels as prometheus_client writes it, and the counters are read."""
    with simulated("--served-model-name", name) as engine:
        page = engine.ready().call("/metrics")[1].decode()
        found = [one for family in text_string_to_metric_families(page) for one in family.samples]
        named = {one.labels["model_name"] for one in found if one.name.startswith("vllm:")}
        assert named == {name}
        sums, _ = parse(page.encode())
        assert sums["progress"]["0"] == 0


def test_data_parallel_engines_have_labels() -> None:
    """FACT: --dp starts one EngineCore a rank, and a hung rank is seen by its own counters."""
    with simulated("--dp", "2") as engine:
        engine.ready()
        engine.member(f"{CORE}_DP1")
        assert engine.fault("hang", 1) == 200
        served = sum(engine.complete(patience=0.5) == 200 for _ in range(2))
        assert served == 1
        assert engine.metric("generation_tokens_total", 0) == 1
        assert engine.metric("generation_tokens_total", 1) == 0


def test_the_load_counts_hung_requests() -> None:
    """FACT: with load tracking /load shows what the gauges of a frozen engine hide."""
    with simulated("--enable-server-load-tracking") as engine:
        engine.ready()
        engine.fault("hang")
        with engine.open_completion():
            until(lambda: engine.call("/load")[1] == b'{"server_load": 1}')
            assert engine.metric("num_requests_running") == 0


@pytest.mark.parametrize(
    "flags",
    [["--fault", "nonsense"], ["--fault", "slow_start=soon"], ["--port", "x"], ["--dp", "0"]],
)
def test_bad_input_is_one_line_and_status_2(flags: list[str]) -> None:
    """FACT: an unknown fault or a bad value is one line on standard error and exit 2."""
    command = [sys.executable, "-m", "watchdog.simulator", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"simulate-engine: cannot start: [^\n]+\n", done.stderr)
