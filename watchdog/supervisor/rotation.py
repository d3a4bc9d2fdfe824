"""Keeps an engine's log small while the engine writes to it.

The engine's file descriptor stays where it is, so the file is not renamed: its lines are copied to
``LOG.1`` and taken away from its beginning. Where the file system can cut off a beginning (ext4,
XFS) no line can be lost; elsewhere the file is emptied, as ``logrotate`` with ``copytruncate``
does, and what is written in that very moment goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from watchdog.core.model import Seconds

LIMIT = 64 << 20
"""Bytes above which a log is rotated."""
KEPT = 5
"""Older parts beside it: ``LOG.1`` is the youngest."""

_COLLAPSE_RANGE = 0x08
_PIECE = 1 << 20


def rotate(log: Path, limit: int = LIMIT, kept: int = KEPT) -> bool:
    """Rotate ``log`` when it holds more than ``limit`` bytes; whether it did. Raises OSError.

    Only a regular file of one name is touched, never what a link leads to. What somebody else
    rotates at this moment is left to him.
    """
    with _locked(log) as descriptor:
        size = _size(descriptor) if descriptor is not None else 0
        if descriptor is None or size <= limit:
            return False
        _move(descriptor, size, log, kept)
        return True


def put_aside(log: Path, limit: int = LIMIT, kept: int = KEPT) -> bool:
    """As ``rotate``, of a log that nobody writes to: renamed at once, however large it is."""
    with _locked(log) as descriptor:
        if descriptor is None or _size(descriptor) <= limit:
            return False
        _make_room(log, kept)
        log.rename(part(log, 1))
        return True


def rotated_since(log: Path, wall: Seconds) -> bool:
    """Whether it has been rotated after ``wall``, in seconds since the epoch."""
    try:
        return part(log, 1).stat().st_mtime > wall
    except OSError:
        return False


def part(log: Path, number: int) -> Path:
    """``LOG.1`` and older ones."""
    return log.with_name(f"{log.name}.{number}")


@contextlib.contextmanager
def _locked(log: Path) -> Iterator[int | None]:
    """The log, open and ours to rotate; None when there is none, or somebody is at it."""
    try:
        descriptor = os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor if _is_ours(descriptor, log) else None
    finally:
        os.close(descriptor)


def _is_ours(descriptor: int, log: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), log.stat())  # not put aside meanwhile
    return False


def _size(descriptor: int) -> int:
    """0 for what is no regular file, or has another name too."""
    found = os.fstat(descriptor)
    return found.st_size if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0


def _make_room(log: Path, kept: int) -> None:
    for number in range(kept - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            part(log, number).rename(part(log, number + 1))


def _move(descriptor: int, size: int, log: Path, kept: int) -> None:
    """From the beginning of the log into ``LOG.1``; a failure leaves all as it was.

    So the older parts move only when the copy is there: a full disk would cost one at each try.
    """
    block = os.fstatvfs(descriptor).f_frsize or 1
    whole = (size - 1) // block * block  # a file cannot be cut off to its very end
    unfinished = log.with_name(f"{log.name}.part")
    unfinished.unlink(missing_ok=True)  # of a rotation that did not end
    target = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        _copy(descriptor, target, 0, whole)
        _make_room(log, kept)
        if not _collapsed(descriptor, whole):
            at = whole
            while (end := os.fstat(descriptor).st_size) > at:  # what came meanwhile
                _copy(descriptor, target, at, end)
                at = end
            os.ftruncate(descriptor, 0)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(target)
    unfinished.rename(part(log, 1))


def _copy(source: int, target: int, start: int, end: int) -> None:
    """Bytes ``start`` to ``end``, at most."""
    os.lseek(source, start, os.SEEK_SET)
    left = end - start
    while left > 0 and (piece := os.read(source, min(left, _PIECE))):
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]
        left -= len(piece)


def _collapsed(descriptor: int, size: int) -> bool:
    """Whether the kernel took the first ``size`` bytes out of the file, and nothing else."""
    if not size:
        return False
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(descriptor, _COLLAPSE_RANGE, 0, size) == 0)
