"""The ends of the two logs that tell most: the engine's, and the kernel's."""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

from watchdog.core.model import Seconds
from watchdog.evidence.sight import LogEnd
from watchdog.supervisor.rotation import part

ENGINE_BYTES = 256 << 10
KERNEL_BYTES = 64 << 10
_RECENT: Seconds = 600.0
_RECORD = 1 << 14
_MOST_RECORDS = 200_000
_KERNEL = frozenset(b"%d" % level for level in range(8))
_LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")


def engine_tail(log: LogEnd, more: int, wall: Seconds) -> bytes:
    """The end of what this start has logged; after a rotation, of the part before too.

    ``more`` bytes are read before what is wanted, so that no secret is cut in two.
    """
    wanted = ENGINE_BYTES + more
    start = max(log.start, log.end - wanted)
    told = os.pread(log.descriptor, log.end - start, start)
    if log.start > 0 or log.end >= wanted:
        return told
    return _rotated(part(Path(log.path), 1), wanted - len(told), wall) + told


def _rotated(path: Path, wanted: int, wall: Seconds) -> bytes:
    """The end of the part that was put aside, when that was a short while ago."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = os.fstat(descriptor)
        if wall - found.st_mtime > _RECENT:
            return b""
        return os.pread(descriptor, wanted, max(0, found.st_size - wanted))
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def kernel_tail(path: str, until: Seconds) -> str:
    """The last lines of the kernel's log, each with the seconds since boot and its level.

    What somebody else wrote into it is marked ``user``. Raises OSError when it cannot be read;
    ``until`` (CLOCK_MONOTONIC) ends it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _records(descriptor, until)
    finally:
        os.close(descriptor)


def _records(descriptor: int, until: Seconds) -> str:
    kept: deque[bytes] = deque()
    size = 0
    for _ in range(_MOST_RECORDS):
        try:
            record = os.read(descriptor, _RECORD)
        except BrokenPipeError:
            continue  # overwritten before it was read: the next read goes on behind the gap
        except BlockingIOError:
            break
        if not record or time.monotonic() >= until:
            break
        kept.append(record)
        size += len(record)
        while size > 2 * KERNEL_BYTES:
            size -= len(kept.popleft())
    return "".join(map(_line, kept))


def _line(record: bytes) -> str:
    head, _, text = record.partition(b";")
    fields = head.split(b",")
    number = int(fields[0]) if fields[0].isdigit() else 0
    at = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdigit() else 0.0  # noqa: PLR2004
    level = _LEVELS[number & 7] if fields[0] in _KERNEL else f"user {_LEVELS[number & 7]}"
    told = text.partition(b"\n")[0].decode(errors="backslashreplace")
    return f"[{at:12.6f}] {level}: {told}\n"
