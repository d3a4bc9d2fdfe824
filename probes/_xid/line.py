"""The grammar of the driver's lines in the kernel log, as far as they tell of an Xid.

Forms, old and new (open kernel modules 595, and lines of drivers since 340)::

    NVRM: Xid (PCI:0000:00:06): 31, pid=1796, name=oob, channel 0x0000000a, intr 00000000. MMU …
    NVRM: Xid (PCI:0000:00:06 GPU-I:05 GPU-CI:01): 43, pid='<unknown>', name=<unknown>, …
    NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.
    NVRM: GPU 0000:00:06.0: GPU has fallen off the bus.
    NVRM: The NVIDIA GPU 0000:00:06.0 (PCI ID: 10de:2335)     <- the loss in three records
    NVRM: installed in this system has
    NVRM: fallen off the bus and is not responding to commands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from probes._kmsg import KERNEL, Entry
from watchdog.core.model import Seconds

OFF_THE_BUS = 79

_ADDRESS = r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2,4}):(?P<device>[0-9a-f]{2})(?:\.\d)?"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}(?: GPU-I:(?P<gi>\d{{1,5}}))?(?: GPU-CI:(?P<ci>\d{{1,5}}))?\)"
    r": (?P<xid>\d{1,5})(?:,\s*|\s+|$)",
    re.IGNORECASE | re.ASCII,
)
_PROCESS = re.compile(r"pid='?(?P<pid>[^,']*)'?(?:, name=(?P<name>[^,]*))?(?:,\s*|$)")
_LOST = re.compile(rf"NVRM: GPU {_ADDRESS}: GPU has fallen off the bus", re.IGNORECASE | re.ASCII)
_LOSS_BEGINS = re.compile(
    rf"NVRM: The NVIDIA GPU {_ADDRESS}(?![0-9a-f:])", re.IGNORECASE | re.ASCII
)
_LOSS_GOES_ON = re.compile(r"NVRM: +(?:\(PCI ID|installed in this system)")
_LOSS_ENDS = re.compile(r"NVRM:.*\bfallen off the bus and is not responding")
_LOSS_SPAN: Seconds = 1.0
"""Three records of one statement are microseconds apart."""
_SEVERITY = re.compile(r"\b(?P<non>non-?)?fatal\b", re.IGNORECASE)
_ACTION = re.compile(
    r"recovery action changed from .{1,60}? to 0x(?P<action>[0-9a-f]{1,8})\b", re.IGNORECASE
)
_PREVIOUS = re.compile(r"caused by previous Xid (?P<xid>\d{1,5})", re.IGNORECASE | re.ASCII)
_CHANNEL = re.compile(r"^(?:channel|Ch) (?:0x)?[0-9a-f]{1,16}, (?:intr [0-9a-f]{1,16}\. )?")
_PID = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class XidLine:
    """One Xid. ``bus_id`` is ``0000:00:06.0``, lower case.

    ``pid`` is a number of the first pid namespace. ``fatal`` is the severity, where the text has
    one; ``action`` the new recovery action of Xid 154; ``previous`` the Xid that caused this one.
    """

    bus_id: str
    xid: int
    pid: int | None = None
    name: str = ""
    message: str = ""
    gi: int | None = None
    ci: int | None = None
    fatal: bool | None = None
    action: int | None = None
    previous: int | None = None

    @property
    def summary(self) -> str:
        """The message without the channel's numbers, which mean nothing to a reader."""
        return _CHANNEL.sub("", self.message, count=1)


class XidLines:
    """Finds Xids among the entries of the kernel log; those of any other facility are not heard."""

    def __init__(self) -> None:
        self._losing: tuple[str, Seconds] | None = None

    def found(self, entry: Entry) -> XidLine | None:
        """The Xid that this entry tells of, or completes. Never raises."""
        if entry.facility != KERNEL or not entry.text.startswith("NVRM:"):
            return None
        return parsed(entry.text) or self._lost(entry)

    def _lost(self, entry: Entry) -> XidLine | None:
        """The loss of a card that is told without an Xid, in one record or three."""
        if begin := _LOSS_BEGINS.match(entry.text):
            self._losing = (_bus_id(begin), entry.at)
        begun = self._losing
        if begun is None or _LOSS_GOES_ON.match(entry.text):
            return None
        if _LOSS_ENDS.match(entry.text):
            self._losing = None
            in_time = entry.at - begun[1] <= _LOSS_SPAN
            return _off_the_bus(begun[0]) if in_time else None
        if not begin:
            self._losing = None
        return None


def parsed(text: str) -> XidLine | None:
    """The Xid of one line of text; None when it tells of none. Never raises."""
    if lost := _LOST.match(text):
        return _off_the_bus(_bus_id(lost))
    head = _XID.match(text)
    if head is None:
        return None
    process = _PROCESS.match(text, head.end())
    message = text[process.end() if process else head.end() :].strip()
    severity, action = _SEVERITY.search(message), _ACTION.search(message)
    previous = _PREVIOUS.search(message)
    return XidLine(
        _bus_id(head),
        int(head["xid"]),
        pid=_pid(process),
        name=_name(process),
        message=message,
        gi=_number(head["gi"]),
        ci=_number(head["ci"]),
        fatal=severity["non"] is None if severity else None,
        action=int(action["action"], 16) if action else None,
        previous=int(previous["xid"]) if previous else None,
    )


def normalized(bus_id: str) -> str:
    """A bus id as this module writes it; unchanged when it is none."""
    found = re.fullmatch(_ADDRESS, bus_id, re.IGNORECASE | re.ASCII)
    return _bus_id(found) if found else bus_id


def _off_the_bus(bus_id: str) -> XidLine:
    return XidLine(bus_id, OFF_THE_BUS, message="GPU has fallen off the bus.")


def _bus_id(found: re.Match[str]) -> str:
    domain, bus, device = (int(found[part] or "0", 16) for part in ("domain", "bus", "device"))
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _pid(process: re.Match[str] | None) -> int | None:
    text = process["pid"] if process else ""
    return int(text) if _PID.fullmatch(text) else None


def _name(process: re.Match[str] | None) -> str:
    name = (process["name"] or "").strip("' ") if process else ""
    return "" if name == "<unknown>" else name


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
