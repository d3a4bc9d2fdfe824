"""Sockets for httpcore on which a whole exchange has one deadline.

Its own time-outs are for one step each: whoever answers a byte a second never meets them, and of
a name with several addresses each would have the whole of it. The look-up of the name alone takes
what the system's resolver takes.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpcore

from watchdog.core.model import Seconds


class Deadline:
    """A moment on CLOCK_MONOTONIC."""

    def __init__(self, timeout: Seconds) -> None:
        self._at = time.monotonic() + timeout

    def left(self, late: type[Exception]) -> Seconds:
        """Seconds until it; raises ``late`` when it has passed."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise late
        return left


_MOST = 8
"""Addresses of one name that are tried."""


def addresses(host: str, port: int) -> Sequence[str]:
    """Those of a name, in the order of the system. Raises OSError and UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [*dict.fromkeys(str(one[4][0]) for one in found)][:_MOST]


class DeadlineBackend(httpcore.NetworkBackend):
    """Connects, and lends streams, until the deadline. ``resolve`` is as ``addresses``."""

    def __init__(
        self, deadline: Deadline, resolve: Callable[[str, int], Sequence[str]] = addresses
    ) -> None:
        self._deadline = deadline
        self._resolve = resolve
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - one deadline
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """As httpcore's own; raises what that raises. One address that is silent is not all."""
        try:
            found = self._resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError from error
        wrong: Exception = httpcore.ConnectError()
        for untried, address in zip(range(len(found), 0, -1), found, strict=True):
            share = self._deadline.left(httpcore.ConnectTimeout) / untried
            try:
                stream = self._inner.connect_tcp(
                    address, port, share, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                wrong = error
            else:
                return _Stream(stream, self._deadline)
        raise wrong


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - one deadline
        return self._inner.read(max_bytes, self._deadline.left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - one deadline
        """In pieces: each is one step, however slowly it is taken."""
        piece = 1 << 14
        for begin in range(0, len(buffer), piece):
            left = self._deadline.left(httpcore.WriteTimeout)
            self._inner.write(buffer[begin : begin + piece], left)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - one deadline
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as httpcore declares it
        return self._inner.get_extra_info(info)
