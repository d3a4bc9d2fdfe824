"""Reads /proc on its own account, so that the product's reading of it is not what is believed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _SESSION, _START = 0, 1, 3, 19


@dataclass(frozen=True, slots=True)
class Sighting:
    """One process at one moment. ``start`` is in seconds since the boot."""

    pid: int
    state: str
    parent: int
    session: int
    start: float

    @property
    def key(self) -> tuple[int, float]:
        """Who it is: a pid alone comes again."""
        return self.pid, self.start

    @property
    def lives(self) -> bool:
        """Neither a zombie nor gone."""
        return self.state not in "ZX"


def since_boot() -> float:
    """Now, on the clock of ``start``; no jump of the wall clock moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _names(place: str) -> list[str]:
    return [entry.name for entry in Path(place).iterdir()]


def look(pid: int) -> Sighting | None:
    """The process; None when it is gone."""
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    field = told.rpartition(b")")[2].split()
    if len(field) <= _START:
        return None
    start = int(field[_START]) / _TICKS
    return Sighting(pid, field[_STATE].decode(), int(field[_PARENT]), int(field[_SESSION]), start)


def everyone() -> Iterator[Sighting]:
    """All processes there are."""
    for name in _names("/proc"):
        if name.isdigit() and (one := look(int(name))) is not None:
            yield one


def environment(pid: int) -> Mapping[str, str]:
    """Its environment as it was at its start; empty when it is gone or wrote over it."""
    with contextlib.suppress(OSError):
        told = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        pairs = (line.partition("=") for line in told.split("\0"))
        return {name: value for name, equals, value in pairs if equals}
    return {}


def command(pid: int) -> str:
    """Its command line, or the title that replaced it."""
    with contextlib.suppress(OSError):
        told = Path(f"/proc/{pid}/cmdline").read_bytes()
        return told.replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def resident(pid: int) -> int:
    """Bytes of memory; 0 when it is gone."""
    with contextlib.suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def descriptors(pid: int) -> int:
    """How many it has open; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return len(_names(f"/proc/{pid}/fd"))
    return 0
