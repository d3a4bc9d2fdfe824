"""Writes a small file so that whoever reads it finds the old text or the new one, whole."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Make ``text`` the content of ``path``; raises OSError, and leaves it as it was.

    What a link points to is replaced, and not the link. The folder is not made.
    """
    path = path.resolve()
    new = path.with_name(f".{path.name}.new")  # what ``include *.conf`` does not match
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """The new name is on disk too, where the file system can say so."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
