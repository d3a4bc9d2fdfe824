"""Small files of /proc, /sys and /etc, read whole up to a limit."""

from __future__ import annotations

import os
from pathlib import Path

_LIMIT = 1 << 18


def under(root: str, path: str) -> Path:
    """Where ``path``, absolute or not, is found when the file system begins at ``root``."""
    return Path(root) / path.lstrip("/") if root != "/" else Path(path)


def head(path: Path, limit: int = _LIMIT) -> bytes:
    """The first ``limit`` bytes of a regular file of /proc, /sys or a disk; empty without one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    try:
        return _drained(descriptor, limit)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _drained(descriptor: int, limit: int) -> bytes:
    """Never more than asked for: a longer read of a config space asks the card for more of it."""
    found = b""
    while len(found) < limit and (chunk := os.read(descriptor, limit - len(found))):
        found += chunk
    return found


def text(path: Path, limit: int = _LIMIT) -> str:
    """As ``head``, decoded and without blanks at the ends."""
    return head(path, limit).decode(errors="replace").strip()


def entries(folder: Path) -> tuple[Path, ...]:
    """What is in the folder, by name; empty when it cannot be listed."""
    try:
        return tuple(sorted(folder.iterdir()))
    except OSError:
        return ()
