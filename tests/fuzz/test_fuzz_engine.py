"""Answers that no engine gives, from a real server, to the probes that ask engines."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import engine_http, engine_metrics
from tests.fuzz.budget import mutated, times
from tests.support.engines import Raw, Target, answered, raw_server
from watchdog.contracts import ProbeSpec
from watchdog.core.model import Event, Reading, ReadingTaken
from watchdog.runner import ProbeRun

TIMEOUT = 5.0
SILENCE = 0.05
"""Seconds until the server ends a connection on which nothing more is asked."""
PAGE = b"""# TYPE vllm:x counter
vllm:generation_tokens_total{engine="0",model_name="a"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="b} \\" 9"} 4.0 1796015712924
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="1"} NaN
vllm:request_success_total{engine="0",finished_reason="stop"} 5
vllm:gpu_cache_usage_perc{engine="0"} 0.25
vllm:engine_sleep_state{sleep_state="awake"} 0.0
"""
COMPLETED = b'{"choices": [{"text": "a"}], "data": [{"embedding": [0.5]}], "id": "x"}'
MODELS = b'{"data": [{"id": "other"}, {"id": null}]}'
UNKNOWN = b'{"error": "The model `m` does not exist."}'
WHOLE = (
    *(answered(200, body) for body in (PAGE, COMPLETED, MODELS, b"")),
    answered(404, UNKNOWN),
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n" + PAGE,
    b"HTTP/1.1 503 \xff\r\nretry-after: never\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + answered(200, COMPLETED),
    b"HTTP/1.1 99999 OK\r\n\r\n",
    b"HTTP/9.9 200 OK\r\n\r\n",
    b"ICY 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=nonsense\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 302 X\r\nlocation: http://[::/\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
)
NUMBERS = st.sampled_from(
    (
        b"1e308",
        b"-1e308",
        b"1.7976931348623157e308",
        b"5e-324",
        b"-0",
        b"-1",
        b"+Inf",
        b"-inf",
        b"NaN",
        b"nan(1)",
        b"1_0",
        b"0x10",
        b"\xd9\xa7",
        b"9" * 5000,
        b"1" + b"0" * 400,
        b"",
        b"1e",
    )
) | st.floats().map(lambda value: repr(value).encode())


@dataclass
class Hostile:
    """A server whose every connection gets ``answers``, one a request, and then its end."""

    server: Raw
    answers: list[bytes] = field(default_factory=list)


@pytest.fixture(scope="module", name="hostile")
def fixture_hostile() -> Iterator[Hostile]:
    """One for all examples."""
    answers: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        connection.settimeout(SILENCE)
        for answer in tuple(answers):
            if not connection.recv(65536):
                return
            connection.sendall(answer)

    with raw_server(talk) as server:
        yield Hostile(server, answers)


def reading(hostile: Hostile, spec: ProbeSpec, answers: list[bytes]) -> Reading:
    """What the runner, which refuses all that is not declared, makes of one look."""
    hostile.answers[:] = answers
    target = Target(hostile.server.endpoint)
    posted: list[Event] = []
    run = ProbeRun(spec, spec.build(spec.settings(), target), None, None, posted.append)
    with contextlib.closing(run):
        run.timeout = TIMEOUT
        run.run()
    hostile.server.accepted.clear()
    (event,) = posted
    assert isinstance(event, ReadingTaken)
    return event.reading


def check(seen: Reading) -> None:
    """It is a reading in time: with values that are numbers, or with one line of what is wrong."""
    assert seen.error is None, seen.error
    for one in seen.samples:
        assert not isinstance(one.value, float) or math.isfinite(one.value), one
    for wrong in seen.unread:
        assert wrong.error.isprintable()
        assert wrong.error.startswith(("cannot read /metrics: ", "cannot parse /metrics: "))
        assert len(wrong.error) <= 300


SPECS = st.sampled_from((engine_http.PROBE, engine_metrics.PROBE))


@times(120)
@given(spec=SPECS, answers=st.lists(mutated(WHOLE) | st.binary(max_size=80), max_size=4))
def test_fuzz_answers(hostile: Hostile, spec: ProbeSpec, answers: list[bytes]) -> None:
    """FACT: whatever an engine answers, a look ends in time, with values or one line of words."""
    check(reading(hostile, spec, answers))


@times(100)
@given(
    lines=st.lists(mutated(PAGE.splitlines(), most=2), max_size=8),
    numbers=st.lists(st.tuples(st.sampled_from(PAGE.splitlines()[1:7]), NUMBERS), max_size=4),
)
def test_fuzz_pages(
    hostile: Hostile, lines: list[bytes], numbers: list[tuple[bytes, bytes]]
) -> None:
    """FACT: a page of metrics with any text and any number is values, or one line of words."""
    odd = [line.rpartition(b"} ")[0] + b"} " + number for line, number in numbers]
    page = b"\n".join((PAGE.splitlines()[0], *lines, *odd, b""))
    check(reading(hostile, engine_metrics.PROBE, [answered(200, page)]))


@times(60)
@given(bodies=st.lists(mutated((COMPLETED, MODELS, UNKNOWN)), min_size=4, max_size=4))
def test_fuzz_tokens(hostile: Hostile, bodies: list[bytes]) -> None:
    """FACT: JSON that is broken proves no token: a canary is told by one of its seven words."""
    answers = [answered(200), *(answered(404 if b"not exist" in b else 200, b) for b in bodies)]
    seen = reading(hostile, engine_http.PROBE, answers)
    check(seen)
    told = {one.sample: one.value for one in seen.samples}
    words = ["ok", "timeout", "refused", "unauthorized", "rejected", "failed", "skipped"]
    assert told["canary"] in words
    if told["canary"] == "ok":
        assert any(b'"choices"' in body or b'"data"' in body for body in bodies)
