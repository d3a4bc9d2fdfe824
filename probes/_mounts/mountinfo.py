"""The mounts that a process sees, from mountinfo alone: no mount is touched to find out."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from watchdog import procfs

TMPFS = "tmpfs"
_FIELDS = 6
"""In front of the optional ones: ids, device, root, mount point, options."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount. ``device`` is the file system's, as ``st_dev`` of its files has it.

    ``point`` is where its reader sees it, ``kind`` the type of file system, ``source`` what is
    mounted, ``options`` those of the mount and those of the file system.
    """

    device: int
    point: str
    kind: str
    source: str
    options: frozenset[str] = field(default=frozenset())

    @property
    def numbers(self) -> str:
        """``254:0``."""
        return f"{os.major(self.device)}:{os.minor(self.device)}"


def mounts(pid: int | str = "self", root: str = procfs.ROOT) -> tuple[Mount, ...]:
    """All of the mount namespace of ``pid`` below its root, in the order of mounting.

    ``root`` is where procfs is. Raises OSError when they cannot be read.
    """
    return _parsed(_text(pid, root))


class Table:
    """``mounts`` that are parsed anew only when they have changed: a host may have thousands."""

    def __init__(self, root: str = procfs.ROOT) -> None:
        self._root = root
        self._known: dict[int | str, tuple[str, tuple[Mount, ...]]] = {}

    def __call__(self, pid: int | str = "self") -> tuple[Mount, ...]:
        """As ``mounts``; raises as it does."""
        text = _text(pid, self._root)
        known = self._known.get(pid)
        if known is not None and known[0] == text:
            return known[1]
        found = _parsed(text)
        self._known[pid] = (text, found)
        return found

    def keep(self, pids: set[int | str]) -> None:
        """Forget the mounts of all others."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}


def mount_of(path: str, table: tuple[Mount, ...]) -> Mount | None:
    """The mount on which ``path`` is when no part of it is a link; the last one mounted there."""
    above = {path, *map(str, PurePosixPath(path).parents)}
    if path.startswith("/"):
        above.add("/")  # also of what begins with two of them
    best: Mount | None = None
    for mount in table:  # of thousands, for every place: so this comes first
        if mount.point in above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def is_below(path: str, top: str) -> bool:
    """Whether ``path`` is ``top`` or below it, by name."""
    return path == top or path.startswith(top if top.endswith("/") else f"{top}/")


def _text(pid: int | str, root: str) -> str:
    """Bytes first: reading it as text takes a carriage return in a name for the end of a line."""
    return Path(root, str(pid), "mountinfo").read_bytes().decode("utf-8", "surrogateescape")


def _parsed(text: str) -> tuple[Mount, ...]:
    found = (_mount(line) for line in text.split("\n"))
    return tuple(mount for mount in found if mount is not None)


def _mount(line: str) -> Mount | None:
    """``25 24 0:23 / /dev/shm rw,relatime shared:3 - tmpfs tmpfs rw,size=64k``."""
    before, _, behind = line.partition(" - ")
    left, right = before.split(" "), behind.split(" ")
    if len(left) < _FIELDS or len(right) < 3:  # noqa: PLR2004 - type, source, options
        return None
    major, _, minor = left[2].partition(":")
    if not (major.isdecimal() and minor.isdecimal()):
        return None
    options = frozenset((*left[5].split(","), *right[2].split(",")))
    device = os.makedev(int(major), int(minor))
    return Mount(device, _unescaped(left[4]), right[0], _unescaped(right[1]), options)


def _unescaped(word: str) -> str:
    """Blanks and the like are written as octal numbers; a file system may write what it likes."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), word)
