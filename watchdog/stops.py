"""Stops that come before anything can obey them: kept for the daemon that is still loading.

The kernel drops signals to PID 1 that nobody handles, and ends any other process by them, without
order. What loads for a third of a second imports this first, which therefore imports nothing.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class Keeper:
    """The handler of ``STOPS`` while a daemon loads. Keeps the first; a second one ends us."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Of impatience: what loads may hang, and has started nothing."""
        if self.kept:
            end(number, None)
        self.kept.append(number)


def end(number: int, _: FrameType | None) -> None:
    """End at once, as any process does that does not handle the signal."""
    os._exit(128 + number)


def keep() -> None:
    """Keep what comes from now on, until ``kept`` is asked."""
    keeper = Keeper()
    for number in STOPS:
        signal.signal(number, keeper)


def kept() -> tuple[int, ...]:
    """The signals that came meanwhile, in their order. Empty where nobody keeps any.

    To be asked while the handlers are still those of ``keep``.
    """
    keeper = signal.getsignal(signal.SIGTERM)
    return tuple(keeper.kept) if isinstance(keeper, Keeper) else ()


def can_be_ended() -> None:
    """Let PID 1 be ended by what ends any other process."""
    for number in STOPS:
        signal.signal(number, end)
