"""The body of an HTTP answer onto the socket: normally, slowly, without an end, or never."""

import http.client
import json
import select
import socket
import time
from collections.abc import Callable

_LOOK_PERIOD = 0.05
_ENDLESS_PAUSE = 0.01
_ENDLESS_PIECE = b"# endless\n" * 6554


class ClientGoneError(Exception):
    """The client closed its connection before the answer was complete."""


class Answer:
    """Writes to one connection; raises ClientGoneError when nobody is there."""

    def __init__(self, connection: socket.socket, slow: Callable[[], bool]) -> None:
        self._socket, self._slow = connection, slow

    def whole(self, status: int, body: bytes, kind: str) -> None:
        """Status, headers and body in one piece."""
        self.write(_head(status, kind, f"content-length: {len(body)}") + body)

    def json(self, status: int, value: object) -> None:
        """A JSON body."""
        self.whole(status, json.dumps(value).encode(), "application/json")

    def begin_chunked(self, kind: str) -> None:
        """The headers of a body whose length is not known."""
        self.write(_head(200, kind, "transfer-encoding: chunked"))

    def chunk(self, data: bytes) -> None:
        """A piece of it; an empty one is the end."""
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def begin_sized(self, size: int, kind: str) -> None:
        """The headers of a body that is written in pieces."""
        self.write(_head(200, kind, f"content-length: {size}"))

    def endless(self) -> None:
        """A body that ends only with the client."""
        self.write(_head(200, "text/plain", "connection: close"))
        while True:
            self.write(_ENDLESS_PIECE)
            time.sleep(_ENDLESS_PAUSE)

    def hold(self, active: Callable[[], bool]) -> None:
        """Answer nothing while the condition is true."""
        while active():
            self.check_client(_LOOK_PERIOD)

    def check_client(self, seconds: float = 0.0) -> None:
        """Wait so long for the client to leave."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        if poll.poll(seconds * 1000):
            raise ClientGoneError

    def write(self, data: bytes) -> None:
        """Bytes as they are, one a second when slow."""
        try:
            while data and self._slow():
                self._socket.sendall(data[:1])
                data = data[1:]
                self.check_client(1.0)
            self._socket.sendall(data)
        except OSError as error:
            raise ClientGoneError from error


def _head(status: int, kind: str, more: str) -> bytes:
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    phrase = http.client.responses.get(status, "Unknown")
    return (
        f"HTTP/1.1 {status} {phrase}\r\ndate: {date}\r\nserver: uvicorn\r\n"
        f"content-type: {kind}\r\n{more}\r\n\r\n"
    ).encode()
