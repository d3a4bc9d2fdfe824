"""Sockets for httpcore on which a whole exchange has one deadline.

Its own time-outs are for one step each: whoever answers a byte a second never meets them.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
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


class DeadlineBackend(httpcore.NetworkBackend):
    """Connects, and lends streams, until the deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - one deadline
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """As httpcore's own; raises what that raises."""
        left = self._deadline.left(httpcore.ConnectTimeout)
        stream = self._inner.connect_tcp(host, port, left, local_address, socket_options)
        return _Stream(stream, self._deadline)


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
