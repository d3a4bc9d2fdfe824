"""Sockets for httpcore on which a whole exchange has one deadline and one size.

A time-out of httpx is one of a single read: a server that sends a byte a second never meets it.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpcore

from watchdog.core.model import Seconds

_NOBODY = frozenset({errno.ECONNREFUSED, errno.ENOENT, errno.ENOTSOCK})


class RefusedError(httpcore.ConnectError):
    """Nobody listens there."""


class OversizeError(httpcore.ReadError):
    """The answer is longer than allowed, headers and framing included."""


@dataclass(slots=True)
class Allowance:
    """What is left of the exchange under way: until when (CLOCK_MONOTONIC) and how many bytes."""

    deadline: Seconds = 0.0
    unread: int = 0

    def seconds(self, late: type[Exception]) -> Seconds:
        """Time left; raises ``late`` when there is none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise late
        return left

    def spend(self, size: int) -> None:
        """Count bytes received; raises ``OversizeError`` when they are too many."""
        self.unread -= size
        if self.unread < 0:
            raise OversizeError


class BoundedStream(httpcore.NetworkStream):
    """One connection whose every step looks at the allowance first."""

    def __init__(self, connection: socket.socket, allowance: Allowance) -> None:
        self._connection = connection
        self._allowance = allowance

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - one deadline
        """Up to ``max_bytes`` as they come; raises as httpcore's own streams do."""
        self._connection.settimeout(self._allowance.seconds(httpcore.ReadTimeout))
        try:
            data = self._connection.recv(max_bytes)
        except TimeoutError:
            raise httpcore.ReadTimeout from None
        except OSError:
            raise httpcore.ReadError from None
        self._allowance.spend(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - one deadline
        """All of ``buffer``; raises as httpcore's own streams do."""
        rest = memoryview(buffer)
        try:
            while rest:
                self._connection.settimeout(self._allowance.seconds(httpcore.WriteTimeout))
                rest = rest[self._connection.send(rest) :]
        except TimeoutError:
            raise httpcore.WriteTimeout from None
        except OSError:
            raise httpcore.WriteError from None

    def close(self) -> None:
        """Wakes a thread that still waits on the connection, too."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - one deadline
    ) -> httpcore.NetworkStream:
        """The same connection, encrypted."""
        self._connection.settimeout(self._allowance.seconds(httpcore.ConnectTimeout))
        try:
            inner = ssl_context.wrap_socket(self._connection, server_hostname=server_hostname)
        except TimeoutError:
            self.close()
            raise httpcore.ConnectTimeout from None
        except OSError:
            self.close()
            raise httpcore.ConnectError from None
        self._connection = inner
        return self

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as httpcore declares it
        """``is_readable`` of an idle connection means that the server closed it."""
        match info:
            case "is_readable":
                return self._readable()
            case "ssl_object" if isinstance(self._connection, ssl.SSLSocket):
                return self._connection
            case _:
                return None

    def _readable(self) -> bool:
        if self._connection.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(0))


class BoundedBackend(httpcore.NetworkBackend):
    """Connects within the allowance. ``connects`` counts the connections made."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self.connects = 0
        self._last: BoundedStream | None = None

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - one deadline
        local_address: str | None = None,  # noqa: ARG002 - httpcore's signature
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - httpcore's signature
    ) -> httpcore.NetworkStream:
        """The first of the host's addresses that accepts; all of them within one deadline."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            raise httpcore.ConnectError from None
        for family, kind, protocol, _, address in found[:-1]:
            with suppress(RefusedError):
                return self._connect(socket.socket(family, kind, protocol), address)
        family, kind, protocol, _, address = found[-1]
        return self._connect(socket.socket(family, kind, protocol), address)

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ARG002 - one deadline
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - httpcore's signature
    ) -> httpcore.NetworkStream:
        """Connect to a socket in the file system."""
        return self._connect(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)

    def interrupt(self) -> None:
        """Break the connection, from any thread."""
        if self._last is not None:
            self._last.close()

    def _connect(self, connection: socket.socket, address: Any) -> BoundedStream:  # noqa: ANN401 - by family
        self.connects += 1
        try:
            connection.settimeout(self._allowance.seconds(httpcore.ConnectTimeout))
            connection.connect(address)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, httpcore.ConnectTimeout) as error:
            connection.close()
            raise _connect_error(error) from None
        self._last = BoundedStream(connection, self._allowance)
        return self._last


def _connect_error(error: Exception) -> Exception:
    match error:
        # A Unix socket with a full queue says "again" where TCP would wait: it is busy, not gone.
        case TimeoutError() | BlockingIOError():
            return httpcore.ConnectTimeout()
        case OSError() if error.errno in _NOBODY:
            return RefusedError()
        case OSError():
            return httpcore.ConnectError()
        case _:
            return error
