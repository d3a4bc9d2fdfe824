"""What a command says while nobody reads along: kept in memory, never more than a little of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

_MOST = 1 << 20
"""Bytes that may pile up between two looks before they are thrown away."""
_TAIL = 4096
_SHOWN = 300


class Said:
    """Where a command writes to, and its last line. A full disk does not keep it from running.

    Closed, it takes nothing more: what a command left running may get an error for its output, and
    fills no memory. Raises OSError when there is no memory for it.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("said", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._before = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        os.close(self._file)

    @property
    def path(self) -> Path:
        """What this process opens to write there."""
        return Path(f"/proc/self/fd/{self._file}")

    def trim(self) -> None:
        """Throw away what is too much, but for its end. To be called now and then."""
        if os.fstat(self._file).st_size > _MOST:
            self._before = self._tail()
            os.ftruncate(self._file, 0)

    def last_line(self) -> str:
        """The last line that is not empty, shortened, without what does not print; "" for none."""
        text = (self._before + self._tail()).decode(errors="replace")
        lines = (_printable(line) for line in reversed(text.splitlines()))
        return next((line[:_SHOWN] for line in lines if line), "")

    def _tail(self) -> bytes:
        size = os.fstat(self._file).st_size
        return os.pread(self._file, _TAIL, max(0, size - _TAIL))


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line).strip()
