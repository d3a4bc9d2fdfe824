"""The files of a recording: numbered, begun anew when long or old, the oldest deleted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from watchdog.core.model import Seconds

SUFFIX = ".vwr"
_DIGITS = 8
_NAME = re.compile(rf"[0-9]{{1,12}}{re.escape(SUFFIX)}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept: bytes and seconds of one file, bytes and number of all."""

    file_bytes: int = 4 << 20
    file_seconds: Seconds = 86400.0
    total_bytes: int = 64 << 20
    total_files: int = 1000


def listed(directory: Path) -> list[Path]:
    """The files of a recording, oldest first. Raises OSError when it cannot be listed."""
    found = (path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    return sorted(found, key=lambda path: int(path.stem))


class Files:
    """The file that is written to now. Methods raise OSError; the next call may succeed again."""

    def __init__(self, directory: Path, bounds: Bounds) -> None:
        self._directory = directory
        self._bounds = bounds
        self._descriptor: int | None = None
        self._path = directory
        self._began: Seconds = 0.0
        self._size = self._start_size = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a file to append to."""
        return self._descriptor is not None

    def is_full(self, now: Seconds, *, at_ease: bool) -> bool:
        """Whether a new file is due; in trouble one is made to last, up to twice its size."""
        if self._size >= 2 * self._bounds.file_bytes:
            return True
        old = now - self._began >= self._bounds.file_seconds
        return at_ease and (old or self._size >= self._bounds.file_bytes)

    def begin(self, now: Seconds, start: bytes) -> None:
        """Begin a new file with ``start``, after the oldest ones have made room for it."""
        self.close()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        present = listed(self._directory)
        number = int(present[-1].stem) + 1 if present else 1
        self._path = self._directory / f"{number:0{_DIGITS}}{SUFFIX}"
        self._make_room()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_APPEND
        self._descriptor = os.open(self._path, flags, 0o600)
        self._began, self._size, self._start_size = now, 0, len(start)
        self.append(start)

    def append(self, data: bytes) -> None:
        """Write all of ``data``. After an error the file is closed, for its end may be torn.

        A file with nothing but its start is deleted then, or a full disk would fill with them.
        """
        if self._descriptor is None:
            raise OSError("no file")
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self.close()
            if self._size <= self._start_size:
                _quietly(self._path.unlink)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close the file. Never raises."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _quietly(lambda: os.close(descriptor))

    def _make_room(self) -> None:
        """Delete the oldest until one more can grow to its full size within the total."""
        paths = listed(self._directory)
        sizes = [path.lstat().st_size for path in paths]
        total, count = sum(sizes) + 2 * self._bounds.file_bytes, len(paths) + 1
        for path, size in zip(paths, sizes, strict=True):
            if total <= self._bounds.total_bytes and count <= self._bounds.total_files:
                return
            _quietly(path.unlink)
            total, count = total - size, count - 1


def _quietly(act: Callable[[], None]) -> None:
    try:
        act()
    except OSError:
        return
