"""Monotonic times that outlive a boot, by way of the wall clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from watchdog.core.model import Seconds

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Anchor:
    """One moment on both clocks. ``wall`` is seconds since the epoch; ``boot_id`` may be empty."""

    boot_id: str
    monotonic: Seconds
    wall: Seconds


def now_anchor() -> Anchor:
    """This moment."""
    return Anchor(boot_id(), time.monotonic(), time.time())


def boot_id() -> str:
    """The kernel's name for this boot; empty where /proc does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def rebase(at: Seconds, saved: Anchor, now: Anchor) -> Seconds:
    """``at``, CLOCK_MONOTONIC of the boot of ``saved``, as a time of the boot of ``now``.

    The same boot changes nothing. After a reboot the wall clock bridges the gap, and the result
    may be negative: before that boot. A wall clock that went backwards counts as no time passed,
    so that a budget is never charged to the future.
    """
    same = saved.boot_id == now.boot_id != ""
    if same and now.monotonic >= saved.monotonic:
        return at
    passed = max(now.wall - saved.wall, 0.0)
    return now.monotonic - passed - (saved.monotonic - at)
