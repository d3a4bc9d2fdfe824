"""Whether the wall clock was set, how long the machine slept, and who keeps the clock right."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from watchdog.contracts import ProbeSpec, SampleSpec
from watchdog.core.model import HOST, Sampled, Seconds, SubjectKind, Unread

_KEPT: Seconds = 600.0
"""How long a jump is told."""
_NOISE: Seconds = 0.001
"""Two looks at clocks that nobody sets differ by less. Slewing moves all of them alike."""
_TRIES = 3
_UNSYNCHRONISED = 0x0040
_NANOSECONDS = 0x2000
"""Bits of the kernel's ``timex.status``."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: a clock was set, or it was not."""


class _Timex(ctypes.Structure):
    """What adjtimex(2) fills; the kernel leaves room behind it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


@dataclass(frozen=True, slots=True)
class Discipline:
    """What the kernel knows of who corrects its clock."""

    synchronised: bool
    offset: Seconds


def discipline() -> Discipline | None:
    """Asked of the kernel without changing anything; None where that is not allowed."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    told = _Timex(modes=0)
    if adjtimex(ctypes.byref(told)) < 0:
        return None
    unit = 1e-9 if told.status & _NANOSECONDS else 1e-6
    return Discipline(not told.status & _UNSYNCHRONISED, told.offset * unit)


def _since_boot() -> Seconds:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a machine, each in seconds; ``since_boot`` goes on while it sleeps."""

    wall: Callable[[], Seconds] = time.time
    since_boot: Callable[[], Seconds] = _since_boot
    awake: Callable[[], Seconds] = time.monotonic
    discipline: Callable[[], Discipline | None] = discipline


@dataclass(frozen=True, slots=True)
class _Distance:
    """How far the wall clock is ahead of the time since boot, give or take ``doubt``."""

    seconds: Seconds
    doubt: Seconds
    at: Seconds


class Clock:
    """Compares the wall clock with one that nobody can set, from one look to the next."""

    def __init__(self, clocks: Clocks | None = None) -> None:
        self._clocks = clocks or Clocks()
        self._before: _Distance | None = None
        self._jump = 0.0
        self._jumped_at = 0.0
        self._jumps = 0

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:  # noqa: ARG002 - clocks do not wait
        """A jump is seen from the second look on, ahead as a positive number of seconds."""
        return list(self._told())

    def close(self) -> None:
        """Nothing is held."""

    def _told(self) -> Iterator[Sampled]:
        self._compare()
        slept = self._clocks.since_boot() - self._clocks.awake()
        yield Sampled(HOST, "jump_seconds", self._jump)
        yield Sampled(HOST, "jumps", self._jumps)
        yield Sampled(HOST, "suspended_seconds", max(0.0, slept))
        known = self._clocks.discipline()
        if known is not None:
            yield Sampled(HOST, "synchronised", known.synchronised)
            yield Sampled(HOST, "offset_seconds", known.offset)

    def _compare(self) -> None:
        now = min((self._distance() for _ in range(_TRIES)), key=lambda one: one.doubt)
        before, self._before = self._before, now
        if self._jump and now.at - self._jumped_at > _KEPT:
            self._jump = 0.0
        if before is None:
            return
        change = now.seconds - before.seconds
        if abs(change) > now.doubt + before.doubt + _NOISE:
            self._jump, self._jumped_at = change, now.at
            self._jumps += 1

    def _distance(self) -> _Distance:
        """The wall clock is read between two looks at the other: who is interrupted knows it."""
        first = self._clocks.since_boot()
        wall = self._clocks.wall()
        last = self._clocks.since_boot()
        return _Distance(wall - (first + last) / 2, (last - first) / 2, last)


def _build(_: Settings, __: object) -> Clock:
    return Clock()


PROBE = ProbeSpec(
    name="clock",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        SampleSpec(
            "jump_seconds",
            float,
            "seconds",
            "By how much the wall clock was set in the last ten minutes; negative: back.",
        ),
        SampleSpec("jumps", int, "", "How often the wall clock was set.", counter=True),
        SampleSpec(
            "suspended_seconds", float, "seconds", "How long the machine has slept.", counter=True
        ),
        SampleSpec("synchronised", bool, "", "Whether the kernel's clock is kept right."),
        SampleSpec("offset_seconds", float, "seconds", "What the kernel has still to correct."),
    ),
    build=_build,
    period=1.0,
    timeout=2.0,
)
