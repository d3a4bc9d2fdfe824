"""What this daemon cannot see from where it runs: a container shows less than a machine does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from watchdog import procfs
from watchdog.kernel_log import DEVICE
from watchdog.supervisor import cgroup, holders

_SYS_PTRACE = 1 << 19
_HIDDEN = re.compile(r" /proc .* - proc \S+ \S*hidepid=(?!0|off)")


def blind_spots(proc: str = procfs.ROOT, kernel_log: str = DEVICE) -> tuple[str, ...]:
    """What is lacking and what that costs, a clause each; none on a machine of one's own.

    ``proc`` is where procfs is mounted, ``kernel_log`` the device that tells of Xids and OOM kills.
    """
    return tuple(_spots(proc, kernel_log))


def _spots(proc: str, kernel_log: str) -> Iterator[str]:
    if why := _unread(kernel_log):
        yield f"no kernel log ({kernel_log}: {why}): Xids only from the driver, OOM kills by count"
    if not holders.sees_everybody(proc):
        yield "no processes of other PID namespaces: who else holds a GPU is counted, not named"
    traces = _traces(proc)
    if not traces:
        yield "no CAP_SYS_PTRACE: nothing inside processes of other users"
    if not traces and _HIDDEN.search(_text(f"{proc}/self/mountinfo")):
        yield "no processes of other users at all (hidepid)"
    if why := _ungrouped(proc):
        yield f"no cgroup for an engine ({why}): its processes are known by descent alone"


def _unread(device: str) -> str:
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _traces(proc: str) -> bool:
    """Whether we have CAP_SYS_PTRACE; True when nobody knows."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", _text(f"{proc}/self/status"), re.MULTILINE)
    return found is None or bool(int(found[1], 16) & _SYS_PTRACE)


def _ungrouped(proc: str) -> str:
    """Why no cgroup can be made for an engine, or nothing; nothing is made to know it."""
    place = cgroup.place_of("", proc)
    if place is None:
        return "no cgroup v2 is mounted"
    above = place.parent
    if os.access(above, os.W_OK | os.X_OK):
        return ""
    return f"{above} cannot be written to"


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - of procfs
            return file.read()
    except OSError:
        return ""
