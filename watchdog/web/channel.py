"""One connection of a client that may be slow or hostile."""

from __future__ import annotations

import time
from typing import Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser

_LIFETIME = 30.0
"""Seconds a connection may take to bring its request, and again to take its answer, however
often it moves a byte; a scrape takes milliseconds."""
_SILENCE = 10.0
"""Seconds after which a connection that moves nothing is closed."""


class _Request(HTTPRequestParser):
    """Asks, in the client's name, for the end of the connection after one answer.

    A client that sends many requests at once and reads nothing would otherwise fill the buffers
    and hold a thread for ever.
    """

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        self.headers = {**self.headers, "CONNECTION": "close"}


class Channel(HTTPChannel):
    """One request, one answer, and an end to both."""

    parser_class = _Request

    def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401 - as it is called
        super().__init__(*args, **more)
        self.waits_since = self._moved = time.monotonic()
        """Since when it has not been our turn. Waitress goes by the wall clock, which is set."""

    def readable(self) -> bool:
        """Asked by the server's loop at least once a second: the place to look at the clock."""
        now = time.monotonic()
        if self.requests:  # what is being answered is our own time, not the client's
            self.waits_since = self._moved = now
        elif now - self.waits_since > _LIFETIME or now - self._moved > _SILENCE:
            self.will_close = True
        return bool(super().readable())

    def handle_read(self) -> None:
        """Something came."""
        self._moved = time.monotonic()
        super().handle_read()

    def send(self, data: bytes, do_close: bool = True) -> int:  # noqa: FBT001, FBT002 - as it is
        """How many bytes were taken."""
        taken = int(super().send(data, do_close))
        if taken:
            self._moved = time.monotonic()
        return taken
