"""The engine_http probe against a simulated engine, and against servers that mean harm."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from probes._http.answers import Answer, Trouble
from probes._http.client import EngineHttp
from probes.engine_http import PROBE, Settings
from tests.support.engines import Target, answered, black_hole, raw_server, requests, values
from tests.support.simulated import Simulated, free_port, simulated, until
from watchdog.contracts import Endpoint, EngineLook, Probe
from watchdog.core.model import ProcessState, Value

TIMEOUT = 3.0
COMPLETED = json.dumps({"choices": [{"text": "a"}]}).encode()


@pytest.fixture
def engine() -> Iterator[Simulated]:
    """A serving engine."""
    with simulated() as running:
        yield running.ready()


@contextmanager
def probing(target: Target, settings: Settings | None = None) -> Iterator[Probe]:
    """A probe that is closed afterwards."""
    probe = PROBE.build(settings or Settings(), target)
    try:
        yield probe
    finally:
        probe.close()


def read(probe: Probe) -> dict[str, Value]:
    """One reading."""
    return values(probe.read(time.monotonic() + TIMEOUT))


def at(port: int, **more: str) -> Target:
    """A running engine on the port."""
    return Target(Endpoint("127.0.0.1", port, **more))  # type: ignore[arg-type]


def test_a_serving_engine(engine: Simulated) -> None:
    """FACT: health and a token are seen, with the model learned from the engine itself."""
    with probing(at(engine.port)) as probe:
        seen = read(probe)
    assert (seen["health"], seen["health_status"]) == ("ok", 200)
    assert (seen["canary"], seen["canary_status"]) == ("ok", 200)
    assert engine.metric("generation_tokens_total") == 1


def test_no_canary_while_tokens_flow(engine: Simulated) -> None:
    """FACT: an engine that made progress, sleeps or stops is not asked for a token."""
    target = at(engine.port)
    running = target.now
    looks = [
        replace(running, progressed_at=time.monotonic()),
        replace(running, sleeping=True),
        replace(running, state=ProcessState.STOPPING),
    ]
    for look in looks:
        target.now = look
        with probing(target) as probe:
            assert read(probe)["canary"] == "skipped"
    assert engine.metric("generation_tokens_total") == 0


def test_a_canary_that_succeeded_rests_and_one_that_failed_does_not(engine: Simulated) -> None:
    """FACT: the next canary waits only after a success."""
    with probing(at(engine.port), Settings(canary_interval=600)) as probe:
        engine.fault("hang")
        assert read(probe)["canary"] == "timeout"
        assert read(probe)["canary"] == "timeout"
        engine.clear("hang")
        until(lambda: read(probe)["canary"] == "ok")
        assert read(probe)["canary"] == "skipped"


def test_a_new_generation_is_asked_at_once(engine: Simulated) -> None:
    """FACT: what an old start proved is no proof of the new one."""
    target = at(engine.port)
    with probing(target, Settings(canary_interval=600)) as probe:
        assert read(probe)["canary"] == "ok"
        target.now = EngineLook(generation="g2", state=ProcessState.STARTING)
        assert read(probe)["canary"] == "ok"


def test_a_frozen_engine_answers_health_and_no_canary(engine: Simulated) -> None:
    """FACT: health says ok while the token times out, and the request is aborted."""
    engine.fault("hang")
    with probing(at(engine.port)) as probe:
        seen = read(probe)
    assert (seen["health"], seen["canary"]) == ("ok", "timeout")
    assert "canary_seconds" not in seen
    assert "canary_status" not in seen


@pytest.mark.parametrize(
    ("fault", "health", "canary"),
    [
        ("health_503", "status", "skipped"),
        ("no_answer", "timeout", "timeout"),
        ("slow_answers", "timeout", "timeout"),
        ("endless_answers", "error", "failed"),
    ],
)
def test_bad_answers(engine: Simulated, fault: str, health: str, canary: str) -> None:
    """FACT: an answer that is late, endless or an error is told apart, before the deadline."""
    engine.fault(fault)
    with probing(at(engine.port)) as probe:
        seen = read(probe)
    assert (seen["health"], seen["canary"]) == (health, canary)


def test_nobody_listens() -> None:
    """FACT: refused is not timed out, and nobody is asked for a token."""
    with probing(at(free_port())) as probe:
        seen = read(probe)
    assert (seen["health"], seen["canary"]) == ("refused", "skipped")
    assert "health_status" not in seen


def test_the_api_key() -> None:
    """FACT: with the key there is a token, without it the canary says why."""
    with simulated("--api-key", "s3cret") as engine:
        engine.ready()
        for key, outcome in (("", "unauthorized"), ("s3cret", "ok")):
            with probing(at(engine.port, api_key=key)) as probe:
                assert read(probe)["canary"] == outcome


def test_a_key_that_is_no_header_stays_secret() -> None:
    """FACT: a key with a line break fails the canary and is in no text."""
    with raw_server(serve(lambda _: answered(200, COMPLETED))) as server:
        endpoint = replace(server.endpoint, api_key="s3c\nret")
        with probing(Target(endpoint)) as probe:
            seen = read(probe)
    assert seen["canary"] == "failed"
    assert "ret" not in repr(seen).replace("'", "")


def serve(answer: Callable[[bytes], bytes]) -> Callable[[socket.socket], None]:
    """A server of HTTP: ``answer`` is given each request, but /health, which is fine."""

    def talk(connection: socket.socket) -> None:
        for request in requests(connection):
            well = request.startswith(b"GET /health")
            connection.sendall(answered(200) if well else answer(request))

    return talk


@pytest.mark.parametrize(
    ("status", "body", "canary"),
    [
        (200, COMPLETED, "ok"),
        (200, b'{"data": [{"embedding": [0.5]}]}', "ok"),
        (200, b'{"choices": []}', "failed"),
        (200, b"<html>", "failed"),
        (429, b"", "rejected"),
        (503, b"", "rejected"),
        (500, b"", "failed"),
        (403, b"", "unauthorized"),
    ],
)
def test_what_counts_as_a_token(status: int, body: bytes, canary: str) -> None:
    """FACT: only a 200 with a choice or data in it is a proof."""
    with (
        raw_server(serve(lambda _: answered(status, body))) as server,
        probing(Target(server.endpoint)) as probe,
    ):
        seen = read(probe)
    assert (seen["canary"], seen["canary_status"]) == (canary, status)


def test_the_path_that_works_is_found_and_remembered() -> None:
    """FACT: an engine that only embeds is asked to embed, and from then on only that."""
    paths: list[bytes] = []

    def answer(request: bytes) -> bytes:
        paths.append(request.split()[1])
        if paths[-1] == b"/v1/embeddings":
            return answered(200, b'{"data": [{"embedding": [0.5]}]}')
        if paths[-1] == b"/v1/completions":
            return answered(400, b"The model does not support Completions API")
        return answered(404)

    target_settings = Settings(canary_interval=0)
    with (
        raw_server(serve(answer)) as server,
        probing(Target(server.endpoint), target_settings) as probe,
    ):
        assert read(probe)["canary"] == "ok"
        assert read(probe)["canary"] == "ok"
    assert paths == [
        b"/v1/completions",
        b"/v1/chat/completions",
        b"/v1/embeddings",
        b"/v1/embeddings",
    ]


def test_a_served_name_that_is_wrong_is_asked_for(engine: Simulated) -> None:
    """FACT: an engine that serves another name than its command said is still proven."""

    def answer(request: bytes) -> bytes:
        if b"/v1/models" in request:
            return answered(200, b'{"data": [{"id": "other"}]}')
        if b'"other"' in request:
            return answered(200, COMPLETED)
        return answered(404, b'{"error": "The model `m` does not exist."}')

    with raw_server(serve(answer)) as server, probing(Target(server.endpoint)) as probe:
        assert read(probe)["canary"] == "failed"
        assert read(probe)["canary"] == "ok"
    assert engine.status("/health") == 200


# --- the client -------------------------------------------------------------------------------


def ask(endpoint: Endpoint, seconds: float = 1.0, cap: int = 1000) -> Answer | Trouble:
    """One GET with a client of its own."""
    client = EngineHttp(endpoint)
    try:
        return client.get("/x", time.monotonic() + seconds, cap)
    finally:
        client.close()


def endless(line: bytes) -> Callable[[socket.socket], None]:
    """Sends the line again and again, as fast as it can."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(line)

    return talk


@pytest.mark.parametrize("line", [b"x: y\r\n", b"x" * 1000, b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_endless_headers_end(line: bytes) -> None:
    """FACT: headers without end are an error or too large, never a hang."""
    with raw_server(endless(line)) as server:
        assert ask(server.endpoint) in {Trouble.ERROR, Trouble.TOO_LARGE, Trouble.TIMEOUT}


def test_a_body_over_the_cap() -> None:
    """FACT: a body longer than allowed is not read to its end."""
    with raw_server(serve(lambda _: answered(200, b"x" * 1001))) as server:
        assert ask(server.endpoint, cap=1000) is Trouble.TOO_LARGE
        answer = ask(server.endpoint, cap=1001)
    assert isinstance(answer, Answer)
    assert len(answer.body) == 1001


def test_a_redirect_is_an_answer() -> None:
    """FACT: nobody is followed anywhere."""
    moved = b"HTTP/1.1 302 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    with raw_server(serve(lambda _: moved)) as server:
        answer = ask(server.endpoint)
    assert isinstance(answer, Answer)
    assert answer.status == 302


def test_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """FACT: the environment cannot send our requests, and the key with them, elsewhere."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_port()}")
    with raw_server(serve(lambda _: answered(200, b"own"))) as server:
        answer = ask(server.endpoint)
    assert isinstance(answer, Answer)
    assert answer.body == b"own"


def test_a_connection_is_kept_and_a_timed_out_one_is_not() -> None:
    """FACT: two answers come over one connection; after a time-out there is a new one."""
    silent = threading.Event()

    def talk(connection: socket.socket) -> None:
        for _ in requests(connection):
            if silent.is_set():
                black_hole(connection)
                return
            connection.sendall(answered(200))

    with raw_server(talk) as server:
        client = EngineHttp(server.endpoint)
        for _ in range(2):
            assert isinstance(client.get("/", time.monotonic() + 5, 10), Answer)
        assert len(server.accepted) == 1
        silent.set()
        assert client.get("/", time.monotonic() + 0.3, 10) is Trouble.TIMEOUT
        silent.clear()
        until(lambda: server.accepted[0].fileno() < 0)
        assert isinstance(client.get("/", time.monotonic() + 5, 10), Answer)
        assert len(server.accepted) == 2
        client.close()


def test_a_connection_that_the_server_closed_is_made_anew() -> None:
    """FACT: a server may end an idle connection without any harm to the next request."""

    def talk(connection: socket.socket) -> None:
        for _ in requests(connection):
            connection.sendall(answered(200))
            return

    with raw_server(talk) as server:
        client = EngineHttp(server.endpoint)
        for _ in range(3):
            assert isinstance(client.get("/", time.monotonic() + 5, 10), Answer)
        assert len(server.accepted) == 3
        client.close()


def test_close_breaks_a_request_under_way() -> None:
    """FACT: a thread that waits for an answer is let go by close."""
    outcomes: list[Answer | Trouble] = []
    with raw_server(black_hole) as server:
        client = EngineHttp(server.endpoint)
        waiting = threading.Thread(
            target=lambda: outcomes.append(client.get("/", time.monotonic() + 600, 10)),
            daemon=True,
        )
        waiting.start()
        until(lambda: server.accepted)
        client.close()
        waiting.join(15)
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], Trouble)


def test_a_unix_socket(tmp_path: Path) -> None:
    """FACT: an engine that serves on a Unix socket is reached there; without one it is refused."""
    path = tmp_path / "engine.sock"
    endpoint = Endpoint("127.0.0.1", free_port(), uds=str(path))
    assert ask(endpoint) is Trouble.REFUSED
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(lambda _: answered(200, b"own"))(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        answer = ask(endpoint, seconds=15)
        thread.join(15)
    assert isinstance(answer, Answer)
    assert answer.body == b"own"


def test_https_with_a_certificate_of_its_own_making(tmp_path: Path) -> None:
    """FACT: the engine's own certificate needs no authority."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other"]
    subprocess.run(
        [*make, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    flags = ("--ssl-keyfile", str(key), "--ssl-certfile", str(certificate))
    with simulated(*flags) as engine:
        endpoint = Endpoint("127.0.0.1", engine.port, tls=True)
        until(lambda: isinstance(ask(endpoint, seconds=15), Answer))
        with probing(Target(endpoint)) as probe:
            seen = read(probe)
    assert (seen["health"], seen["canary"]) == ("ok", "ok")
