"""One fault, told by two: counts what the kernel log and NVML both report once.

The kernel's line says more (the process, the text), so an event of NVML waits for it until the
next look. Records of the log are compared by their own stamps, the two sources by arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes._xid.line import XidLine
from watchdog.core.model import Seconds

WINDOW: Seconds = 5.0
"""The same Xid of the same card and process within this time is the same fault."""
_KEPT: Seconds = 60.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """``recorded`` in seconds since boot, None for an event of NVML; ``arrived`` by our clock."""

    line: XidLine
    arrived: Seconds
    recorded: Seconds | None = None


class Once:
    """Keeps what was counted lately."""

    def __init__(self) -> None:
        self._counted: list[_Seen] = []
        self._waiting: list[_Seen] = []

    def kernel(self, line: XidLine, recorded: Seconds, now: Seconds) -> bool:
        """Whether this line of the kernel log is to be counted."""
        seen = _Seen(line, now, recorded)
        if any(_same(seen, other) for other in self._counted):
            return False
        self._waiting = [other for other in self._waiting if not _same(seen, other)]
        self._counted.append(seen)
        return True

    def event(self, line: XidLine, now: Seconds) -> None:
        """Take an event of NVML; ``due`` gives it back unless the kernel log tells of it."""
        seen = _Seen(line, now)
        if not any(_same(seen, other) for other in (*self._counted, *self._waiting)):
            self._waiting.append(seen)

    def due(self, now: Seconds, *, at_once: bool) -> list[XidLine]:
        """The events to be counted now: those of earlier looks, or ``at_once`` all."""
        due = [seen for seen in self._waiting if at_once or seen.arrived < now]
        self._waiting = [seen for seen in self._waiting if seen not in due]
        self._counted += due
        self._counted = [seen for seen in self._counted if now - seen.arrived <= _KEPT]
        return [seen.line for seen in due]


def _same(one: _Seen, other: _Seen) -> bool:
    a, b = one.line, other.line
    if (a.bus_id, a.xid) != (b.bus_id, b.xid):
        return False
    if a.pid is not None and b.pid is not None and a.pid != b.pid:
        return False
    if one.recorded is not None and other.recorded is not None:
        return abs(one.recorded - other.recorded) <= WINDOW
    return abs(one.arrived - other.arrived) <= WINDOW
