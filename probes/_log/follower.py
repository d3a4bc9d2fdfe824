"""Follows one start's part of a log file, from look to look, through rotations, within bounds.

A log that is rotated becomes shorter: its beginning is then in ``PATH.1``, and the file goes on
where that ends. ``PATH.1`` may appear a moment after the file was cut.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

PIECE = 1 << 18
"""Bytes read at one look: 20 ms of work, 400 where every line is a letter. A start writes 20 kB."""
LONGEST = 4096
"""Bytes of a line that are kept, the prefix of the process included."""
_TAIL = 256
"""Bytes before the place reached, by which the file is known again: times and pids differ."""
_PATIENCE = 3
"""Looks to wait for the other part of a log that was cut, before it counts as lost."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class NotALogError(OSError):
    """What is there is no log of ours. ``strerror`` says what it is."""

    def __init__(self, words: str) -> None:
        super().__init__(0, words)


class Follower:
    """The lines of ``path`` from ``offset`` bytes on. For one thread."""

    def __init__(self, path: str, offset: int) -> None:
        self._path = path
        self._at = offset
        self._tail: bytes | None = None
        self._in_older = False
        self._older: int | None = None
        self._waited = 0
        self._begun = b""
        self._cut = False

    def lines(self) -> list[str]:
        """The lines that ended since the last look, at most ``PIECE`` bytes of them.

        Without colours and NULs, cut at ``LONGEST`` bytes; empty ones are left out. Raises OSError,
        ``NotALogError`` among them.
        """
        log = _opened(self._path)
        try:
            return self._split(self._more(log))
        finally:
            os.close(log)

    def _more(self, log: int) -> bytes:
        if self._tail is None and _size(log) >= self._at:
            start = max(self._at - _TAIL, 0)
            self._tail = os.pread(log, self._at - start, start)
            self._older = self._inode_of_older()
        if not self._in_older and not self._known(log) and not self._found_again(log):
            return b""
        older = self._rest_of_older() if self._in_older else b""
        return older if self._in_older else older + self._take(log, PIECE - len(older))

    def _known(self, log: int) -> bool:
        """Whether the file still has before our place what was read there.

        At the beginning there is nothing before it: then the other part must be the same.
        """
        tail = self._tail
        if tail is None or _size(log) < self._at:
            return False
        if not tail:
            return self._older == self._inode_of_older()
        return os.pread(log, len(tail), self._at - len(tail)) == tail

    def _found_again(self, log: int) -> bool:
        """Find our place in ``PATH.1`` and the file as one stream; False while it cannot be."""
        try:
            older = _opened(f"{self._path}.1")
        except OSError:
            return self._lost()
        try:
            size = _size(older)
            tail = self._tail or b""
            start = self._at - len(tail)
            seen = os.pread(older, len(tail), start) if start < size else b""
            seen += os.pread(log, len(tail) - len(seen), max(start - size, 0))
            if seen != tail or self._at > size + _size(log):
                return self._lost()
        finally:
            os.close(older)
        self._waited = 0
        self._older = self._inode_of_older()
        self._in_older = self._at < size
        if not self._in_older:
            self._at -= size
            tail = tail[-self._at :] if self._at else b""
        self._tail = tail
        return True

    def _lost(self) -> bool:
        """Begin at the beginning once it is plain that our place is nowhere any more."""
        self._waited += 1
        if self._waited < _PATIENCE:
            return False
        self._at, self._tail, self._waited = 0, b"", 0
        self._older = self._inode_of_older()
        self._begun, self._cut = b"", False
        return True

    def _inode_of_older(self) -> int | None:
        try:
            return Path(f"{self._path}.1").stat().st_ino
        except OSError:
            return None

    def _rest_of_older(self) -> bytes:
        """What ``PATH.1`` has beyond our place; at its end the file goes on at its beginning."""
        try:
            older = _opened(f"{self._path}.1")
        except OSError:
            data, ended = b"", True
        else:
            try:
                known = self._known(older)
                data = self._take(older, PIECE) if known else b""
                ended = not known or self._at >= _size(older)
            finally:
                os.close(older)
        if ended:
            self._in_older, self._at, self._tail = False, 0, b""
        return data

    def _take(self, file: int, most: int) -> bytes:
        data = os.pread(file, most, self._at)
        self._at += len(data)
        self._tail = ((self._tail or b"") + data)[-_TAIL:]
        return data

    def _split(self, data: bytes) -> list[str]:
        """A progress bar ends its lines with a carriage return."""
        data = self._begun + data.translate(None, b"\0").replace(b"\r", b"\n")
        *lines, self._begun = data.split(b"\n")
        if self._cut and lines:
            del lines[0]
            self._cut = False
        if self._cut:
            self._begun = b""
        elif len(self._begun) > LONGEST:
            lines.append(self._begun)
            self._begun, self._cut = b"", True
        texts = (_COLOUR.sub("", line[:LONGEST].decode(errors="replace")) for line in lines)
        return [text for text in texts if text]


def _opened(path: str) -> int:
    """A regular file that is ours or root's; nothing is waited for, and no FIFO's writer woken."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_uid in {os.geteuid(), 0}:
        return file
    os.close(file)
    if not stat.S_ISREG(found.st_mode):
        raise NotALogError("it is no regular file")
    raise NotALogError(f"it belongs to the user {found.st_uid}")


def _size(file: int) -> int:
    return os.fstat(file).st_size
