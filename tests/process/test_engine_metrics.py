"""The engine_metrics probe: recordings of the real engine, all generations, and noise."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.engine_metrics import PROBE, PageError, Settings, parse
from tests.support.engines import Target, answered, errors, raw_server, requests
from tests.support.simulated import Simulated, free_port, simulated, until
from watchdog.contracts import Endpoint
from watchdog.core.model import Sampled, Unread

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"


@pytest.fixture
def engine() -> Iterator[Simulated]:
    """A serving engine."""
    with simulated() as running:
        yield running.ready()


def read(port: int, seconds: float = 5.0) -> list[Sampled | Unread]:
    """One reading of the engine at the port."""
    probe = PROBE.build(Settings(), Target(Endpoint("127.0.0.1", port)))
    try:
        return list(probe.read(time.monotonic() + seconds))
    finally:
        probe.close()


def by_name(items: list[Sampled | Unread]) -> dict[tuple[str, str], object]:
    """Values by sample and rank."""
    assert not errors(items)
    samples = [item for item in items if isinstance(item, Sampled)]
    return {(s.sample, dict(s.labels).get("rank", "")): s.value for s in samples}


def test_a_recorded_page() -> None:
    """FACT: the real vLLM 0.32 after five requests: 33 tokens, 29 of prompts and 33 steps."""
    sums, sleeping = parse((RECORDINGS / "vllm-0.32-metrics-after.txt").read_bytes())
    assert sums == {
        "progress": {"0": 33 + 29 + 33},
        "running": {"0": 0},
        "waiting": {"0": 0},
        "kv_usage": {"0": 0},
        "requests_success": {"0": 5},
    }
    assert sleeping is False


def test_a_recorded_page_of_an_idle_engine() -> None:
    """FACT: an engine that has done nothing has made no progress, which is a value."""
    sums, _ = parse((RECORDINGS / "vllm-0.32-metrics-idle.txt").read_bytes())
    assert sums["progress"] == {"0": 0}


@pytest.mark.parametrize("generation", ["0.8", "0.10", "0.32"])
def test_all_generations_of_names(generation: str) -> None:
    """FACT: progress, load and cache are read whatever the release calls them."""
    with simulated("--metrics-generation", generation, "--dp", "2") as engine:
        engine.ready()
        assert engine.complete(3) == 200
        until(lambda: engine.metric("generation_tokens_total") >= 3)
        seen = by_name(read(engine.port))
    for name in ("progress", "running", "waiting", "kv_usage", "requests_success"):
        assert {(name, "0"), (name, "1")} <= set(seen)
    assert seen["progress", "0"] >= 3  # type: ignore[operator]
    assert (("sleeping", "") in seen) == (generation == "0.32")


def test_sleep(engine: Simulated) -> None:
    """FACT: an engine that was put to sleep says so."""
    assert by_name(read(engine.port))["sleeping", ""] is False
    engine.fault("sleeping")
    assert by_name(read(engine.port))["sleeping", ""] is True


@pytest.mark.parametrize(
    ("fault", "value", "error"),
    [
        ("bad_metrics", None, "cannot parse /metrics: broken line"),
        ("huge_metrics", 100_000_000, "cannot read /metrics: more than 16 MiB"),
        ("no_answer", None, "cannot read /metrics: no whole answer in time"),
        ("slow_answers", None, "cannot read /metrics: no whole answer in time"),
        ("endless_answers", None, "cannot read /metrics:"),
    ],
)
def test_bad_pages(engine: Simulated, fault: str, value: object, error: str) -> None:
    """FACT: noise, too much, too late are one line each, and no sample."""
    engine.fault(fault, value)
    items = read(engine.port, seconds=2.0)
    assert len(items) == 1
    assert errors(items)[0].startswith(error)


def test_no_engine() -> None:
    """FACT: a refused connection is unread, not an engine that does nothing."""
    assert errors(read(free_port())) == ["cannot read /metrics: connection refused"]


def test_a_status_that_is_no_page() -> None:
    """FACT: an error of HTTP is named by its status."""

    def talk(connection: object) -> None:
        for _ in requests(connection):  # type: ignore[arg-type]
            connection.sendall(answered(503))  # type: ignore[attr-defined]

    with raw_server(talk) as server:
        assert errors(read(server.port)) == ["cannot read /metrics: status 503"]


PAGE = """# TYPE vllm:x counter
vllm:generation_tokens_total{engine="1",model_name="a"} 1.0
vllm:generation_tokens_total{engine="1",model_name="b} \\" 9"} 2e0
vllm:prompt_tokens_total{model_name="a"} 4.0 1796015712924
vllm:num_requests_running 3
vllm:num_requests_waiting{engine="0"} NaN
vllm:request_success_total{engine="0",finished_reason="stop"} 5
vllm:request_success_total{engine="0",finished_reason="abort"} 7
vllm:gpu_cache_usage_perc{engine="0"} 0.25
vllm:engine_sleep_state{sleep_state="awake"} 0.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 9
"""


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_the_corners_of_the_format(end: str) -> None:
    """FACT: missing ranks, several models, quotes, NaN and time stamps are read as meant."""
    sums, sleeping = parse(end.join(PAGE.splitlines()).encode() if end else PAGE[:-1].encode())
    assert sums == {
        "progress": {"1": 3.0, "0": 4.0},
        "running": {"0": 3.0},
        "requests_success": {"0": 5.0},
        "kv_usage": {"0": 0.25},
    }
    assert sleeping is True


def test_a_page_without_our_series() -> None:
    """FACT: an engine that keeps no statistics brings no sample and is no trouble."""
    assert parse(b"# TYPE up gauge\nup 1\n") == ({}, None)
    assert parse(b"") == ({}, None)


@pytest.mark.parametrize(
    "page",
    [
        b"<html><body>hello</body></html>",
        b"# TYPE x gauge\nvllm:num_requests_running{engine=\n",
        b'# TYPE x gauge\nvllm:num_requests_running{engine="0"} one\n',
        b'# TYPE x gauge\nvllm:num_requests_running{engine="0" "1"} 1\n',
        b"# TYPE x gauge\n"
        + b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % n for n in range(2000)),
    ],
)
def test_pages_that_are_none(page: bytes) -> None:
    """FACT: what cannot be understood is refused as a whole, in one line."""
    with pytest.raises(PageError, match=r"^cannot parse /metrics: [^\n]+$"):
        parse(page)
