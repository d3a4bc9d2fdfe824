"""Files without a name that still take room: a process has them open, or mapped."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from probes._mounts.mountinfo import is_below
from watchdog import procfs
from watchdog.contracts import ProcessInfo
from watchdog.core.model import Seconds

_MARK = " (deleted)"
_MOST = 4096
"""Descriptors that are looked at in all."""
_TIME: Seconds = 0.02
_BLOCK = 512
_STUCK = "D"
_GONE = re.compile(rb"^0*([0-9a-f]+)-0*([0-9a-f]+) .* \(deleted\)$", re.MULTILINE)
"""A mapping of a file without a name. Line feeds in names are written as numbers, others are not.

The kernel names the links to them without leading zeros.
"""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What they hold in all, in bytes, and the largest in words; "" when there is none."""

    size: int
    words: str


def deleted(
    processes: Iterable[ProcessInfo],
    points: Iterable[str],
    devices: frozenset[int],
    root: str = procfs.ROOT,
) -> Deleted | None:
    """Of these processes below the mount ``points`` on ``devices``; None when none can be seen.

    Each file counts once, however many have it. Bounded in time and number: at least so much.
    """
    tops = tuple(points)
    found: dict[tuple[int, int], tuple[int, str, ProcessInfo]] = {}
    seen = False
    left, deadline = _MOST, time.monotonic() + _TIME
    for process in processes:
        for link in _links(process, root):
            seen = True
            left -= 1
            if left < 0 or time.monotonic() > deadline:
                break
            name = _target(link)
            if name is None or not any(is_below(name, top) for top in tops):
                continue
            info = _info(link)
            if info is not None and info.st_dev in devices and not info.st_nlink:
                held = (info.st_blocks * _BLOCK, name, process)
                found.setdefault((info.st_dev, info.st_ino), held)
    return _summed(tuple(found.values())) if seen else None


def _summed(found: tuple[tuple[int, str, ProcessInfo], ...]) -> Deleted:
    if not found:
        return Deleted(0, "")
    size, name, process = max(found, key=lambda one: one[0])
    words = f"{name}, {size} bytes, held by {process.comm} ({process.pid})"
    others = len(found) - 1
    if others:
        words = f"{words}, and {others} more"
    return Deleted(sum(one[0] for one in found), words)


def _links(process: ProcessInfo, root: str) -> Iterator[str]:
    """Links to what it has open, and to what it has mapped without: only root may follow those.

    Mappings are not read of a process in uninterruptible sleep, which may hold the lock for them.
    """
    yield from _listed(f"{root}/{process.pid}/fd")
    if process.state != _STUCK:
        yield from _mapped(process.pid, root)


def _mapped(pid: int, root: str) -> Iterator[str]:
    try:
        text = Path(root, str(pid), "maps").read_bytes()
    except OSError:
        return
    for low, high in _GONE.findall(text):
        yield f"{root}/{pid}/map_files/{low.decode()}-{high.decode()}"


def _listed(folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]  # noqa: PTH208 - hundreds
    except OSError:
        return []


def _target(link: str) -> str | None:
    """The name that the file had; None when it still has it."""
    try:
        name = os.readlink(link)  # noqa: PTH115 - as above
    except OSError:
        return None
    return name.removesuffix(_MARK) if name.endswith(_MARK) else None


def _info(link: str) -> os.stat_result | None:
    """A tmpfs answers; what is elsewhere, and might hang, is not asked."""
    try:
        return os.stat(link)  # noqa: PTH116 - as above
    except OSError:
        return None
