"""Small regular files, read whole up to a limit, and never anything else."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def status(path: Path) -> os.stat_result | None:
    """What lies at the path, links followed; None when that is nothing or cannot be seen."""
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


def small(path: Path, limit: int) -> bytes | None:
    """The bytes of a regular file of at most ``limit`` bytes; None of all else.

    A pipe by that name is not opened for long: without a writer it would never answer.
    """
    found = status(path)
    if found is None or not stat.S_ISREG(found.st_mode) or found.st_size > limit:
        return None
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            read = file.read(limit + 1)
    except (OSError, ValueError):
        return None
    return read if len(read) <= limit else None


def small_text(path: Path, limit: int = 4096) -> str:
    """As ``small``, decoded and without blanks at the ends; "" of all else."""
    return (small(path, limit) or b"").decode(errors="replace").strip()
