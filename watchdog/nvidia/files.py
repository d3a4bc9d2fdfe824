"""Small files of /proc, /sys and /etc, read whole up to a limit.

What cannot be looked at, for whatever reason, counts as absent: nothing here raises.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from pathlib import Path

_LIMIT = 1 << 18


def under(root: str, path: str) -> Path:
    """Where ``path``, absolute or not, is found when the file system begins at ``root``."""
    return Path(root) / path.lstrip("/") if root != "/" else Path(path)


def status(path: Path) -> os.stat_result | None:
    """What lies at the path, links followed; None when that is nothing or cannot be seen."""
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


def is_file(path: Path) -> bool:
    """Whether a regular file lies there; ``Path`` itself raises at closed folders."""
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(path: Path) -> bool:
    """Whether a folder lies there."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def may_run(path: Path) -> bool:
    """Whether this process may execute what lies there."""
    try:
        return os.access(path, os.X_OK)
    except ValueError:
        return False


def link(path: Path) -> Path | None:
    """Where the link leads, one step; None for what is none."""
    try:
        return path.readlink()
    except (OSError, ValueError):
        return None


def real(path: Path) -> Path:
    """The path with all links followed, as far as they can be."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        return path


def head(path: Path, limit: int = _LIMIT) -> bytes:
    """The first ``limit`` bytes of a regular file of /proc, /sys or a disk; empty without one.

    Nothing else is opened: a device would be started up, a writer of a pipe be woken.
    """
    if not is_file(path):
        return b""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
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


def names(folder: Path) -> list[str]:
    """The names of what is in the folder, sorted; empty when it cannot be listed."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - hundreds of paths cost milliseconds
    except (OSError, ValueError):
        return []


def entries(folder: Path) -> tuple[Path, ...]:
    """What is in the folder, by name; empty when it cannot be listed."""
    return tuple(folder / name for name in names(folder))


def matching(folder: Path, pattern: str) -> tuple[Path, ...]:
    """The entries whose names match, as a shell would: what is hidden wants its dot spelt out."""
    return tuple(
        entry
        for entry in entries(folder)
        if fnmatch.fnmatchcase(entry.name, pattern)
        and (pattern.startswith(".") or not entry.name.startswith("."))
    )


def shown(words: str) -> str:
    """The words as text that can be written out: a path need not be UTF-8."""
    return words.encode(errors="replace").decode()
