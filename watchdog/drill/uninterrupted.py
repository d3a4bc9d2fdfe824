"""Short pieces that ^C may not cut in two: what is started there could not be ended any more."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def taken() -> tuple[signal.Signals, ...]:
    """Those that end a drill: what we were started to ignore (``nohup``, ``&``) stays ignored."""
    return tuple(one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A signal that comes meanwhile is obeyed at the end. Only for the main thread.

    A handler, and no blocked or ignored signal: those are inherited by what is started.
    """
    came: list[int] = []

    def later(number: int, _: FrameType | None) -> None:
        came.append(number)

    with _held_back():
        before = [(number, signal.signal(number, later)) for number in taken()]
    try:
        yield
    finally:
        with _held_back():
            for number, handler in before:
                signal.signal(number, handler)
        if came:  # also where the piece itself has failed: whoever catches that would go on
            raise KeyboardInterrupt


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """No signal gets in between: handlers are exchanged all or none."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
