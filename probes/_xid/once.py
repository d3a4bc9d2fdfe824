"""One fault, told by two: counts what the kernel log and NVML both report once.

The kernel's line says more (the process, the text), so an event of NVML waits for it until the
next look. Records of the log are compared by their own stamps, the two sources by arrival; both
run forward, so that the newest of a kind is all that a new one is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from probes._xid.line import XidLine
from watchdog.core.model import Seconds

WINDOW: Seconds = 5.0
"""The same Xid of the same card and process within this time is the same fault."""
_KEPT: Seconds = 60.0

_Fault = tuple[str, int]
"""Bus id and Xid."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """``recorded`` in seconds since boot, None for an event of NVML; ``arrived`` by our clock."""

    line: XidLine
    arrived: Seconds
    recorded: Seconds | None = None

    @property
    def fault(self) -> _Fault:
        return self.line.bus_id, self.line.xid


@dataclass(slots=True)
class _Counted:
    """The newest that were counted of one fault: by process (None: it named none), and of all."""

    of: dict[int | None, _Seen] = field(default_factory=dict)
    line: _Seen | None = None
    event: _Seen | None = None

    def add(self, seen: _Seen) -> None:
        if seen.recorded is None:
            self.event = seen
        else:
            self.of[seen.line.pid] = self.line = seen

    def has(self, seen: _Seen) -> bool:
        """Whether it is one of those; without a process it may be anybody's."""
        pid = seen.line.pid
        lines = (self.line,) if pid is None else (self.of.get(pid), self.of.get(None))
        return any(one is not None and _near(one, seen) for one in (*lines, self.event))

    def forget(self, before: Seconds) -> bool:
        """Whether anything is left."""
        self.of = {pid: seen for pid, seen in self.of.items() if seen.arrived >= before}
        if self.line is not None and self.line.arrived < before:
            self.line = None
        if self.event is not None and self.event.arrived < before:
            self.event = None
        return bool(self.of) or self.event is not None


class Once:
    """Keeps what was counted lately."""

    def __init__(self) -> None:
        self._counted: dict[_Fault, _Counted] = {}
        self._waiting: dict[_Fault, list[_Seen]] = {}

    def kernel(self, line: XidLine, recorded: Seconds, now: Seconds) -> bool:
        """Whether this line of the kernel log is to be counted."""
        seen = _Seen(line, now, recorded)
        if self._known(seen):
            return False
        waiting = self._waiting.pop(seen.fault, ())
        others = [event for event in waiting if not _near(event, seen)]
        if others:
            self._waiting[seen.fault] = others
        self._add(seen)
        return True

    def event(self, line: XidLine, now: Seconds) -> None:
        """Take an event of NVML; ``due`` gives it back unless the kernel log tells of it."""
        seen = _Seen(line, now)
        waiting = self._waiting.setdefault(seen.fault, [])
        if not self._known(seen) and not any(_near(other, seen) for other in waiting):
            waiting.append(seen)

    def due(self, now: Seconds, *, at_once: bool) -> list[XidLine]:
        """The events to be counted now: those of earlier looks, or ``at_once`` all."""
        waiting = [seen for events in self._waiting.values() for seen in events]
        due = [seen for seen in waiting if at_once or seen.arrived < now]
        self._waiting = {}
        for seen in waiting:
            if not at_once and seen.arrived >= now:
                self._waiting.setdefault(seen.fault, []).append(seen)
        for seen in due:
            self._add(seen)
        before = now - _KEPT
        self._counted = {key: one for key, one in self._counted.items() if one.forget(before)}
        return [seen.line for seen in due]

    def _known(self, seen: _Seen) -> bool:
        counted = self._counted.get(seen.fault)
        return counted is not None and counted.has(seen)

    def _add(self, seen: _Seen) -> None:
        self._counted.setdefault(seen.fault, _Counted()).add(seen)


def _near(one: _Seen, other: _Seen) -> bool:
    if one.recorded is not None and other.recorded is not None:
        return abs(one.recorded - other.recorded) <= WINDOW
    return abs(one.arrived - other.arrived) <= WINDOW
