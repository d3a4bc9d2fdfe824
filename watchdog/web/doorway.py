"""Lets connections in: a crowd of them keeps neither others out nor us from opening files."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Any

from waitress import wasyncore
from waitress.server import BaseWSGIServer

Caller = tuple[Any, Any]
"""A connected socket, and where it comes from."""
_SPENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_FREE_PLACES = 4
"""Kept free, so that whoever comes next is let in at once."""
_PAUSE = 0.02
"""Seconds. Who cannot be let in stays ready, and the loop would turn as fast as it can."""


class Doorway:
    """In front of one listener. Used in the thread of its server alone."""

    def __init__(self, listener: BaseWSGIServer) -> None:
        self._listener: Any = listener
        self._spare: int | None = None
        self._keep_spare()

    def accept(self) -> Caller | None:
        """The next connection and its address; None when there is none, or no descriptor for it."""
        self._keep_spare()
        try:
            found: Caller | None = wasyncore.dispatcher.accept(self._listener)
        except OSError as error:
            if error.errno not in _SPENT:
                raise
            self._send_away()
            return self._accept_with_spare()
        if self._is_crowded():
            self._send_away()
        return found

    def close(self) -> None:
        """Give the spare descriptor back."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _keep_spare(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _accept_with_spare(self) -> Caller | None:
        """One caller at a time is answered with the descriptor that was kept for that."""
        self.close()
        try:
            found: Caller | None = wasyncore.dispatcher.accept(self._listener)
        except OSError:
            time.sleep(_PAUSE)
            return None
        return found

    def _is_crowded(self) -> bool:
        taken = len(self._listener._map)  # noqa: SLF001 - the server itself counts so
        return taken > int(self._listener.adj.connection_limit) - _FREE_PLACES

    def _send_away(self) -> None:
        """End the connection that has waited longest, of those that nobody works for.

        First of those that have not brought a request, then of those that do not take the answer.
        """
        idle = [
            (bool(one.total_outbufs_len), one.waits_since, number)
            for number, one in self._listener.active_channels.items()
            if not one.requests and not one.will_close
        ]
        if idle:
            self._listener.active_channels[min(idle)[2]].will_close = True


__all__ = ["Doorway"]
