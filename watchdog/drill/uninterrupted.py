"""Short pieces that ^C may not cut in two: what is started there could not be ended any more."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A signal that comes meanwhile is obeyed at the end. Only for the main thread.

    A handler, and no blocked or ignored signal: those are inherited by what is started.
    """
    came: list[int] = []

    def later(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = [(number, signal.signal(number, later)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
