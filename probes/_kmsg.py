"""Reads the kernel log from its device: new records, in order, and how many were missed.

The record format is the kernel's (Documentation/ABI/testing/dev-kmsg): one read brings one record
``prefix,seq,usec,flags[,…];text``, followed by lines that start with a blank and only annotate it.
The prefix is ``facility * 8 + level``. Anybody who may write to the device can add records, but
never with facility 0: that one is the kernel's own word.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from watchdog.core.model import Seconds

PATH = "/dev/kmsg"
KERNEL = 0
"""The facility of what the kernel itself says."""

_BUFFER = 1 << 14
"""Twice the longest record of any kernel: too small a buffer loses the record."""
_MOST_BYTES = 1 << 20
"""One read takes no more, whatever hands it out."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_PREFIX = re.compile(rb"(\d{1,9}),(\d{1,20}),(\d{1,20})[,;]")
_LOSING = frozenset({errno.EPIPE, errno.EINVAL})
"""Overwritten before it was read, and longer than the buffer. The next read goes on behind it."""


class KernelLogError(OSError):
    """The kernel log cannot be read. One line."""


@dataclass(frozen=True, slots=True)
class Entry:
    r"""One record. ``usec`` are microseconds since boot; ``text`` keeps the kernel's ``\xNN``."""

    seq: int
    usec: int
    level: int
    facility: int
    text: str

    @property
    def at(self) -> Seconds:
        """Seconds since boot: good for distances between records, no clock that others share."""
        return self.usec / 1e6


class KernelLog:
    """Starts behind the newest record. Safe from any thread; what one reads, no other sees.

    ``path`` may be anything of which one read is one record. ``receive`` reads from a descriptor.
    """

    def __init__(
        self,
        path: str = PATH,
        buffer: int = _BUFFER,
        receive: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._path = path
        self._buffer = buffer
        self._receive = receive
        self._descriptor: int | None = None
        self._seq: int | None = None
        self._lost = 0
        self._using = threading.Lock()
        self._closed = False
        with contextlib.suppress(KernelLogError):  # the first read will say it
            self._opened()

    @property
    def lost(self) -> int:
        """Records that were missed since the start: overwritten, or too long. A sum."""
        return self._lost

    def read(self, limit: int) -> list[Entry]:
        """At most ``limit`` new records, broken ones included, of a mebibyte in all.

        None means that there are no more for now, or that all were broken. Raises KernelLogError;
        the next call opens the log anew, and counts what it missed as lost.
        """
        try:
            with self._using:
                return [] if self._closed else self._read(limit)
        finally:
            if self._closed:
                self._let_go()

    def close(self) -> None:
        """Let go of the device, for good; a read in progress does it when it ends."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        """Unless somebody reads: who does looks again whether the log was closed meanwhile."""
        if self._using.acquire(blocking=False):
            self._drop()
            self._using.release()

    def _read(self, limit: int) -> list[Entry]:
        descriptor, losses, size = self._opened(), 0, 0
        found: list[Entry] = []
        for _ in range(limit):
            if size >= _MOST_BYTES or self._closed:
                break
            try:
                record = self._receive(descriptor, self._buffer)
            except BlockingIOError:
                break
            except OSError as error:
                losses += 1
                if error.errno not in _LOSING or losses == limit:
                    self._drop()
                    raise _cannot(error) from error
                self._lost += (
                    self._seq is None and losses == 1
                )  # else the gap before the next record tells
                continue
            if not record:
                break
            size += len(record)
            found += self._numbered(_entry(record))
        return found

    def _drop(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, _FLAGS)
            except OSError as error:
                raise _cannot(error) from error
            with contextlib.suppress(OSError):  # a pipe has no past to skip
                os.lseek(self._descriptor, 0, os.SEEK_END)
        return self._descriptor

    def _numbered(self, entry: Entry | None) -> tuple[Entry, ...]:
        """Nothing for a broken record; else the entry, after a look at what is missing before."""
        if entry is None:
            return ()
        if self._seq is not None:
            self._lost += max(entry.seq - self._seq - 1, 0)
        self._seq = entry.seq
        return (entry,)


def _entry(record: bytes) -> Entry | None:
    """None when it is no record."""
    prefix = _PREFIX.match(record)
    head, semicolon, body = record.partition(b";")
    if prefix is None or not semicolon or prefix.end() > len(head) + 1:
        return None
    text = body.partition(b"\n")[0].decode("utf-8", errors="backslashreplace")
    facility, level = divmod(int(prefix[1]), 8)
    return Entry(int(prefix[2]), int(prefix[3]), level, facility, text)


def _cannot(error: OSError) -> KernelLogError:
    return KernelLogError(f"cannot read the kernel log: {error.strerror or error}")
