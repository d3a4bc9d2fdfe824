"""Callers of our port who mean no good. ``dice`` varies them; ``wait`` is true when all is over."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from random import Random

Wait = Callable[[float], bool]
Attack = Callable[[int, float, int, Wait], None]
_CLIENTS = 100
_CROWD = 400
_BIG = 10 << 20


def garbage(port: int, seconds: float, dice: int, wait: Wait) -> None:
    """Noise, half requests, requests in a row, methods and versions that there are not."""
    chance = Random(dice)  # noqa: S311 - to be repeated, not to be secret
    lines = (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(500),
        chance.randbytes(20_000),
        b"GET / HTTP/1.1\r\n\r\n" * 200,
        b"POST /api/v1/status HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"GET /" + b"../" * 3000 + b" HTTP/9.9\r\nHost: \x00\r\n\r\n",
        b"DELETE /metrics HTTP/1.0\r\nContent-Length: -1\r\n\r\n",
    )
    for _ in range(int(seconds * 5)):
        with _clients(port, 1) as (client,):
            _send(client, lines[chance.randrange(len(lines))])
        if wait(0.2):
            return


def slow_loris(port: int, seconds: float, dice: int, wait: Wait) -> None:
    """Many who send a byte now and then and never end."""
    with _clients(port, _CLIENTS) as clients:
        for client in clients:
            _send(client, b"GET /metrics HTTP/1.1\r\nX: ")
        for _ in range(int(seconds)):
            for client in clients:
                _send(client, b"%d" % (dice % 10))
            if wait(1.0):
                return


def huge_headers(port: int, seconds: float, dice: int, wait: Wait) -> None:
    """Ten MiB of one header, and ten thousand headers."""
    for turn in range(max(1, int(seconds / 2))):
        with _clients(port, 1) as (client,):
            _send(client, b"GET /metrics HTTP/1.1\r\n")
            piece = b"a" * 65536 if (dice + turn) % 2 else b"X-%d: a\r\n" % dice * 4096
            for _ in range(_BIG // len(piece)):
                if not _send(client, piece):
                    break
        if wait(2.0):
            return


def crowd(port: int, seconds: float, dice: int, wait: Wait) -> None:
    """Many connections of which nothing comes, or whole requests of which no answer is read."""
    with _clients(port, _CROWD) as clients:
        for client in clients[: dice % _CROWD]:
            _send(client, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
        wait(seconds)


def _send(client: socket.socket, data: bytes) -> bool:
    try:
        client.sendall(data)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _clients(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many, connected or not: a watchdog that is just being started refuses them."""
    with contextlib.ExitStack() as held:
        found = []
        for _ in range(count):
            client = held.enter_context(socket.socket())
            client.settimeout(1.0)
            with contextlib.suppress(OSError):
                client.connect(("127.0.0.1", port))
            found.append(client)
        yield found
