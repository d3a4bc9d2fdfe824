"""What a file system has and what is left of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Space:
    """Of the file system ``device`` (``st_dev``), asked at ``folder``. Bytes, and inodes.

    Free is what those who are not root may use. Totals are None without a limit: a tmpfs can be
    mounted without, and btrfs and most network file systems count no inodes.
    """

    device: int
    folder: str
    read_only: bool
    total_bytes: int | None = None
    used_bytes: int = 0
    free_bytes: int = 0
    total_inodes: int | None = None
    used_inodes: int = 0
    free_inodes: int = 0

    @property
    def percent(self) -> float | None:
        """Of the bytes that can be used, as ``df`` has it; None without a limit."""
        return _share(self.used_bytes, self.free_bytes) if self.total_bytes is not None else None

    @property
    def inodes_percent(self) -> float | None:
        """Of the inodes that can be used; None without a limit."""
        if self.total_inodes is None:
            return None
        return _share(self.used_inodes, self.free_inodes)


def space(path: str) -> Space | None:
    """Of the file system on which ``path`` is, or would be made; None when it cannot be told.

    Hangs with a mount that hangs: see ``Looks``.
    """
    for folder in (Path(path), *Path(path).parents):
        try:
            info, device = os.statvfs(folder), folder.stat().st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError):
            return None
        return Space(
            device,
            str(folder),
            bool(info.f_flag & os.ST_RDONLY),
            info.f_blocks * info.f_frsize or None,
            (info.f_blocks - info.f_bfree) * info.f_frsize,
            info.f_bavail * info.f_frsize,
            info.f_files or None,
            info.f_files - info.f_ffree,
            info.f_favail,
        )
    return None


def _share(used: int, free: int) -> float:
    """In percent; what has nothing at all is full."""
    return 100.0 * used / (used + free) if used + free > 0 else 100.0
