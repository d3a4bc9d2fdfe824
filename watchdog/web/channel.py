"""One connection of a client that may be slow or hostile."""

from __future__ import annotations

import time

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser

_LIFETIME = 30.0
"""Seconds a connection may take to bring its request, and again to take its answer, however
often it moves a byte; a scrape takes milliseconds."""


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

    def readable(self) -> bool:
        """Asked by the server's loop at least once a second: the place to look at the clock."""
        idle = not self.requests  # what is being answered is our own time, not the client's
        if not idle:
            self.creation_time = time.time()
        elif time.time() - self.creation_time > _LIFETIME:
            self.will_close = True
        return bool(super().readable())
