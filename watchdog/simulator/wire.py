"""Messages between the processes: one JSON object a line over a Unix socket."""

import contextlib
import json
import socket
import threading
from typing import Any

Message = dict[str, Any]

_CHUNK = 1 << 16


class Channel:
    """One connection; sending is safe from several threads, receiving is for one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, message: Message) -> None:
        """Send, or lose the message when the other end is dead: an orphan goes on alone."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message]:
        """Wait for at least some bytes, return the whole messages; raises EOFError at the end."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
