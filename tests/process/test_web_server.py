"""The server on real sockets: hostile clients cost themselves, never the others."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated import until
from tests.support.windows import FakeWindow, serving_window
from watchdog.web.app import App
from watchdog.web.server import ListenError, Server, serve_socket, serve_tcp

PAGE = b"x" * 400_000
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


@contextlib.contextmanager
def served(window: FakeWindow | None = None) -> Iterator[Server]:
    """A TCP server on a free port, stopped afterwards."""
    server = serve_tcp(App(window or serving_window()), "127.0.0.1", 0)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def get(server: Server, path: str = "/healthz") -> tuple[int, bytes]:
    """Ask as a well-behaved client does."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
        return answer.status, answer.read()


def connect(server: Server) -> socket.socket:
    """A raw connection with a small window, as a slow client's."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(10)
    raw.connect(("127.0.0.1", server.port))
    return raw


def drain(raw: socket.socket) -> bytes:
    """Everything until the server ends the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := raw.recv(65536):
            data += chunk
    return data


def local(path: Path, request: bytes) -> bytes:
    """One exchange on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(str(path))
        raw.sendall(request)
        return drain(raw)


def test_a_hundred_unfinished_headers_stall_nobody() -> None:
    """With 100 clients that never finish their header, another is answered."""
    with served() as server, contextlib.ExitStack() as clients:
        for _ in range(100):
            slow = clients.enter_context(connect(server))
            slow.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert get(server)[0] == 200


def test_clients_that_do_not_read_stall_nobody() -> None:
    """Forty clients ask for a large page many times over and read nothing; others are answered."""
    window = serving_window()
    window.page = PAGE
    with served(window) as server, contextlib.ExitStack() as clients:
        for _ in range(40):
            deaf = clients.enter_context(connect(server))
            deaf.sendall(REQUEST * 200)
        for _ in range(5):
            assert get(server, "/metrics") == (200, PAGE)


def test_a_client_that_reads_byte_by_byte_gets_it_all() -> None:
    """A trickle reader is served to the end while others are answered in between."""
    window = serving_window()
    window.page = b"y" * 20_000
    with served(window) as server, connect(server) as slow:
        slow.sendall(REQUEST)
        data = b""
        while len(data) < 2000:
            data += slow.recv(1)
            if len(data) % 500 == 0:
                assert get(server)[0] == 200
        data += drain(slow)
    assert data.partition(b"\r\n\r\n")[2] == window.page


def test_many_requests_on_one_connection_get_one_answer() -> None:
    """Pipelining is not offered: the first request is answered and the connection closed."""
    with served() as server, connect(server) as raw:
        raw.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 50)
        answer = drain(raw)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: wat\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET /%ff%00%0d%0a HTTP/1.1\r\n\r\n",
        b"\r\n" * 3000,
        b"\x00" * 50_000,
    ],
)
def test_junk_is_refused_and_forgotten(junk: bytes) -> None:
    """Bytes that are no request cost one connection; the next client is answered."""
    with served() as server:
        with connect(server) as raw:
            with contextlib.suppress(OSError):  # refused before it was all sent, or even looked at
                raw.sendall(junk)
                raw.shutdown(socket.SHUT_WR)
            assert b" 200 " not in drain(raw).partition(b"\r\n")[0]
        assert get(server)[0] == 200


def test_a_header_of_ten_megabytes_is_cut_off() -> None:
    """The client is told 431 or cut off long before the end; the next one is answered."""
    with served() as server:
        with connect(server) as raw, contextlib.suppress(ConnectionError):
            raw.sendall(b"GET / HTTP/1.1\r\nX: ")
            for _ in range(160):
                raw.sendall(b"a" * 65536)
            assert b" 200 " not in drain(raw).partition(b"\r\n")[0]
        assert get(server)[0] == 200


def test_clients_that_vanish_leave_nothing() -> None:
    """Connections dropped in the middle of the answer do not add up to open descriptors."""
    window = serving_window()
    window.page = PAGE
    with served(window) as server:
        get(server)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as many as there are
        for _ in range(50):
            with connect(server) as raw:
                raw.sendall(REQUEST)
                raw.recv(10)
        until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # noqa: PTH208 - as above


def test_a_taken_port_is_told_in_one_line() -> None:
    """Our listen port in somebody's hands is a ListenError that names the address."""
    with served() as server, pytest.raises(ListenError, match="Address already in use") as caught:
        serve_tcp(App(serving_window()), "127.0.0.1", server.port)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"cannot listen on 127.0.0.1:{server.port}: ")


def test_a_stopped_server_frees_its_port() -> None:
    """After stop nothing answers, and the port can be bound anew at once."""
    with served() as server:
        port = server.port
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5)
    again = serve_tcp(App(serving_window()), "127.0.0.1", port)
    again.stop()


def test_stop_does_not_wait_for_what_is_answered(tmp_path: Path) -> None:
    """A server stops while a command still waits in one of its threads."""
    window = serving_window()
    window.gate.clear()
    path = tmp_path / "control.sock"
    server = serve_socket(App(window, control=True), path)
    server.start()
    request = b"POST /control/stop HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    client = threading.Thread(target=local, args=(path, request))
    client.start()
    try:
        until(lambda: window.asked)
        server.stop()
        assert not path.exists()
    finally:
        window.gate.set()
        client.join(15)
    assert not client.is_alive()


def test_the_control_socket_is_private_and_takes_commands(tmp_path: Path) -> None:
    """The socket has mode 0600, answers what TCP answers, and takes commands."""
    path = tmp_path / "control.sock"
    window = serving_window()
    server = serve_socket(App(window, control=True), path)
    server.start()
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        body = json.dumps({"engine": "main"}).encode()
        head = f"POST /control/stop HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        assert b'"ok": true' in local(path, head.encode() + body)
        assert b"200 OK" in local(path, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    finally:
        server.stop()
    assert window.asked == [("stop", "main", "", "", None)]


def test_a_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """A command of more than 64 KiB is 413 and reaches nobody."""
    path = tmp_path / "control.sock"
    window = serving_window()
    server = serve_socket(App(window, control=True), path)
    server.start()
    try:
        head = b"POST /control/stop HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n"
        assert b" 413 " in local(path, head).partition(b"\r\n")[0]
    finally:
        server.stop()
    assert window.asked == []


@pytest.mark.parametrize("size", [2, 70_000])
def test_a_body_in_chunks_has_the_same_limit(tmp_path: Path, size: int) -> None:
    """A command may come in chunks; more than 64 KiB of them are refused and reach nobody."""
    path = tmp_path / "control.sock"
    window = serving_window()
    server = serve_socket(App(window, control=True), path)
    server.start()
    head = b"POST /control/stop HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"%x\r\n" % size + b"{}".ljust(size) + b"\r\n0\r\n\r\n"
    try:
        answer = local(path, head + body).partition(b"\r\n")[0]
    finally:
        server.stop()
    assert (b" 200 " if size == 2 else b" 413 ") in answer
    assert len(window.asked) == (1 if size == 2 else 0)


def test_a_left_over_socket_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    """What nobody answers on is a leftover; where somebody answers we do not listen."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = serve_socket(App(serving_window(), control=True), path)
    server.start()
    try:
        with pytest.raises(ListenError, match="somebody answers"):
            serve_socket(App(serving_window(), control=True), path)
        assert b"200 OK" in local(path, b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
    finally:
        server.stop()


def test_a_file_in_the_way_is_kept(tmp_path: Path) -> None:
    """A file that is no socket is not ours to remove."""
    path = tmp_path / "control.sock"
    path.write_text("precious")
    with pytest.raises(ListenError, match="no socket"):
        serve_socket(App(serving_window(), control=True), path)
    assert path.read_text() == "precious"


def test_a_path_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    """The kernel's limit of 107 bytes is an error that says what to do."""
    with pytest.raises(ListenError, match="choose a shorter --state-dir"):
        serve_socket(App(serving_window(), control=True), tmp_path / ("x" * 107))
