"""Requests that nobody would send, to the real server: an answer or an end, and nothing breaks."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.budget import mutated, times
from tests.support.windows import FakeWindow, broken_window
from watchdog.web.app import App
from watchdog.web.server import Server, serve_socket, serve_tcp

PATIENCE = 20.0
ANSWER = re.compile(rb"HTTP/1\.[01] (\d{3}) [ -~]+\r\n")
LIVE = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
UNEXPECTED = {500}
"""A bug is answered with it. Nothing that comes over the wire may meet one."""


def post(verb: str, body: bytes, more: bytes = b"") -> bytes:
    """A command as the control socket takes it."""
    head = b"POST /control/%s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%s\r\n"
    return head % (verb.encode(), len(body), more) + body


REQUESTS = (
    LIVE,
    b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text; q=1\r\n\r\n",
    b"HEAD /healthz?engine=main HTTP/1.0\r\n\r\n",
    b"GET /readyz?x=%00&engine=%ff HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
    b"GET /page.json?have=1.2.3 HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n",
    b"GET /page.json?%ff=%00&have HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /incidents/inc-000001 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /runbooks/engine-crashed HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /api/v1/incidents/..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://a/api/v1/status HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
    b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nT: t\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    post("stop", b'{"engine": "main", "reason": "maintenance", "seconds": 60}'),
    post("pause", b'{"owner": "\\ud800", "seconds": 1e308}'),
    post("reload", b"{}", b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n"),
)


@dataclass
class Said:
    """What broke beside the answers: records with a traceback, and threads that ended by one."""

    tracebacks: list[str] = field(default_factory=list)


class _Ear(logging.Handler):
    """Hears what the server's library thinks."""

    def __init__(self, said: Said) -> None:
        super().__init__()
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what has an exception with it."""
        if record.exc_info is not None:
            self._said.tracebacks.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextlib.contextmanager
def listening() -> Iterator[Said]:
    """Everything that is said while it lasts; nobody was asked to say anything."""
    said, logger, before = Said(), logging.getLogger("waitress"), threading.excepthook
    ear = _Ear(said)
    logger.addHandler(ear)
    threading.excepthook = lambda args: said.tracebacks.append(repr(args.exc_value))
    try:
        yield said
    finally:
        threading.excepthook = before
        logger.removeHandler(ear)


@dataclass
class Doors:
    """The server on TCP and the one with commands, in front of an engine that broke."""

    tcp: Server
    path: Path
    window: FakeWindow
    said: Said

    def tell(self, request: bytes, cuts: tuple[int, ...] = (), *, control: bool) -> bytes:
        """Bring it in pieces, say that no more comes, and take what comes until the end."""
        with self._connected(control=control) as raw:
            with contextlib.suppress(OSError):  # the end may come before all is sent
                for begin, end in zip((0, *cuts), (*cuts, len(request)), strict=True):
                    raw.sendall(request[begin:end])
                raw.shutdown(socket.SHUT_WR)
            return drained(raw)

    def _connected(self, *, control: bool) -> socket.socket:
        raw = socket.socket(socket.AF_UNIX if control else socket.AF_INET)
        raw.settimeout(PATIENCE)
        raw.connect(str(self.path) if control else ("127.0.0.1", self.tcp.port))
        return raw


def drained(raw: socket.socket) -> bytes:
    """Everything until the other side ends it. Raises TimeoutError when it never does."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := raw.recv(65536):
            data += chunk
    return data


@pytest.fixture(scope="module", name="doors")
def fixture_doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """Both servers, for all examples."""
    path = tmp_path_factory.mktemp("doors") / "control.sock"
    window = broken_window()
    with listening() as said:
        servers = [serve_tcp(App(window), "127.0.0.1", 0)]
        servers.append(serve_socket(App(window, control=True), path))
        for server in servers:
            server.start()
        try:
            yield Doors(servers[0], path, window, said)
        finally:
            for server in servers:
                server.stop()


def check(doors: Doors, answer: bytes, *, control: bool) -> None:
    """It is one answer, or none; nothing broke; and the next one is answered."""
    if answer:
        found = ANSWER.match(answer)
        assert found, answer[:200]
        assert int(found[1]) not in UNEXPECTED, answer[-300:]
        assert b"Traceback" not in answer
    alive = doors.tell(LIVE, control=control)
    assert alive.startswith(b"HTTP/1.1 200 OK\r\n"), alive[:200]
    assert not doors.said.tracebacks


@st.composite
def cuts_of(draw: st.DrawFn, request: bytes) -> tuple[int, ...]:
    """Where a request is cut into pieces."""
    return tuple(sorted(draw(st.lists(st.integers(0, len(request)), max_size=3))))


@times(250)
@given(request=mutated(REQUESTS) | st.binary(max_size=200), control=st.booleans(), data=st.data())
def test_fuzz_requests(
    doors: Doors,
    request: bytes,
    control: bool,  # noqa: FBT001
    data: st.DataObject,
) -> None:
    """FACT: whatever comes, in whatever pieces: an answer or an end, and /livez is answered."""
    cuts = data.draw(cuts_of(request))
    check(doors, doors.tell(request, cuts, control=control), control=control)


LINES = st.sampled_from(
    (
        b"Content-Length: 5",
        b"Content-Length: 5, 6",
        b"Content-Length: +5",
        b"Content-Length: 99999999999999999999999",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding : chunked",
        b"Host: a\0b",
        b"Host:",
        b" folded",
        b": nameless",
        b"X-\xff: \xfe",
        b"Connection: keep-alive, close",
        b"Expect: 200-maybe",
        b"X: " + b"a" * 17_000,
    )
)
BODIES = st.sampled_from(
    (b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n")
)
TARGETS = st.sampled_from(
    (
        b"/livez",
        b"*",
        b"//",
        b"/%",
        b"/\xff",
        b"/%ff",
        b"/runbooks/%00%e2%80%ae",
        b"/healthz?engine=%ff",
        b"/page.json?%ff=%00&have",
        b"http://[::",
        b"/?" + b"&" * 900,
    )
)


@times(150)
@given(
    method=st.sampled_from((b"GET", b"POST", b"TRACE", b"get", b"G\0T", b"")),
    target=TARGETS,
    lines=st.lists(LINES, max_size=4),
    body=BODIES,
    control=st.booleans(),
)
def test_fuzz_headers(  # noqa: PLR0917 - hypothesis passes them by name
    doors: Doors,
    method: bytes,
    target: bytes,
    lines: list[bytes],
    body: bytes,
    control: bool,  # noqa: FBT001
) -> None:
    """FACT: headers that contradict each other are refused or ignored, never obeyed halfway."""
    request = b"\r\n".join((b"%s %s HTTP/1.1" % (method, target), *lines, b"", body))
    answer = doors.tell(request, control=control)
    assert answer.count(b"HTTP/1.1 200") <= 1
    check(doors, answer, control=control)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
ASKED = JSON | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("engine", "reason", "owner", "seconds"), JSON)
)


@times(150)
@given(asked=ASKED, verb=st.sampled_from(("stop", "pause", "", "../x", "a b")))
def test_fuzz_commands(doors: Doors, asked: Any, verb: str) -> None:  # noqa: ANN401
    """FACT: a command is asked with texts and a bounded time, or it is not asked at all."""
    del doors.window.asked[:]
    answer = doors.tell(post(verb, json.dumps(asked).encode()), control=True)
    check(doors, answer, control=True)
    for _, engine, reason, owner, seconds in doors.window.asked:
        assert all(isinstance(word, str) for word in (engine, reason, owner))
        assert seconds is None or 0 < seconds < float("inf")
