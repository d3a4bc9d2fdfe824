"""Whose network is looked at: our own, or the other one that an engine lives in.

``thread-self`` and not ``self``: sysctls and netlink show the namespace of the thread that asks,
and the files must be those of the same one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from watchdog.contracts import EngineTarget

_OWN = "thread-self"
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Space:
    """One network namespace: the directory of its files in procfs, and whether it is our own."""

    folder: str
    own: bool


def own(root: str) -> Space:
    """The namespace that we are in. ``root`` is where procfs is."""
    return Space(f"{root}/{_OWN}/net", own=True)


def of_engine(engine: EngineTarget, root: str) -> Space | None:
    """Where its processes are; None without any, or when none of them may be looked at.

    One in another namespace is enough: what stands around it may have stayed in ours.
    """
    ours = _inode(f"{root}/{_OWN}/ns/net")
    found = None
    for process in engine.processes() if ours is not None else ():
        there = _inode(f"{root}/{process.pid}/ns/net")
        if there not in (None, ours):
            return Space(f"{root}/{process.pid}/net", own=False)
        found = own(root) if there is not None else found
    return found


def text(path: str) -> str:
    """A file of procfs, whole. Raises OSError."""
    with open(path, "rb", buffering=0) as source:  # noqa: PTH123 - half of the cost of a Path
        return source.readall().decode("ascii", "replace")


def maybe(path: str) -> str:
    """The same; "" when it cannot be read."""
    try:
        return text(path)
    except OSError:
        return ""


def number(word: str) -> int | None:
    """A decimal number that the kernel wrote; None for anything else."""
    word = word.strip()
    return int(word) if word.isdecimal() and len(word) <= _MOST_DIGITS else None


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - as in text
    except OSError:
        return None
