"""Which directory of a tmpfs has most of its inodes, without listing what is large.

A tmpfs gives a directory 20 bytes for each entry and for itself and its parent, and a link for each
directory in it: so the number of entries is known without reading them. That is no promise of the
kernel, so it is held against every directory that is listed; when one differs, none is believed.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import islice

_ENTRY = 20
_OWN = 2
"""Entries for the directory itself and its parent, and its links without directories in it."""
_PROOF = 64
"""Entries that are listed only to see whether the kernel counts as expected."""
_LISTED = 1024
"""Entries of a directory that are listed: about a microsecond each."""
_FOLDERS = 96
"""Directories that are looked at in a step: five microseconds each."""
_LISTINGS = 24
"""Directories that are listed in a step: fifteen microseconds each, without their entries."""
_MOST_STEPS = 64
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Eater:
    """The directory with most entries of its own."""

    path: str
    entries: int


@dataclass(frozen=True, slots=True)
class _Folder:
    path: str
    depth: int
    device: int
    entries: int
    has_folders: bool


class Search:
    """For the eater of the tmpfs that is mounted at ``top``, in steps that cost a millisecond.

    Largest first, so that the work goes where the entries are. Bounded in steps, depth and number:
    of very many directories it is one that has most of those that were seen.
    """

    def __init__(self, top: str) -> None:
        self.done = False
        self._believed = True
        self._steps = 0
        first = _folder(top, 0, None)
        self._device = None if first is None else first.device
        self._largest = first
        self._listed = False
        self._unlisted = [] if first is None else [first]
        self._unseen: list[tuple[str, int]] = []

    @property
    def found(self) -> Eater | None:
        """The largest so far; None when all are empty, or the kernel counts in another way."""
        largest = self._largest
        if largest is None or not self._believed or not largest.entries:
            return None
        return Eater(largest.path, largest.entries)

    def step(self, used: int) -> None:
        """Go on a little, where ``used`` inodes are taken in all, until ``done``."""
        self._steps += 1
        entries, listings, folders = _LISTED, _LISTINGS, _FOLDERS
        while not self._is_over(used) and min(entries, listings, folders) > 0:
            if self._unseen:
                self._see(*self._unseen.pop())
                folders -= 1
            else:
                self._unlisted.sort(key=lambda one: one.entries)
                entries -= self._list(self._unlisted.pop(), used)
                listings -= 1
        self.done = self._steps >= _MOST_STEPS or self._is_over(used)

    def _is_over(self, used: int) -> bool:
        """Whether nothing is left to do, or no other directory can have more.

        An entry costs an inode: a directory that has more entries is counted wrongly.
        """
        largest = self._largest
        if largest is not None and largest.entries > used:
            self._believed = False
        nothing = not self._unlisted and not self._unseen
        most = self._listed and largest is not None and largest.entries * 2 > used
        return nothing or most or not self._believed

    def _see(self, path: str, depth: int) -> None:
        found = _folder(path, depth, self._device)
        if found is None or self._largest is None:
            return
        if found.entries > self._largest.entries:
            self._largest = found
        if found.has_folders and depth < _DEEPEST:
            self._unlisted.append(found)

    def _list(self, folder: _Folder, used: int) -> int:
        """Note the directories in it, as far as it is listed; how many entries those are."""
        limit = _PROOF if folder.entries * 2 > used else _LISTED
        count, self._listed = 0, True
        try:
            with os.scandir(folder.path) as entries:
                for entry in islice(entries, limit):
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        self._unseen.append((entry.path, folder.depth + 1))
        except OSError:
            return count  # not ours to read, or gone
        after = _folder(folder.path, folder.depth, self._device)
        if after is not None and not _fits(count, limit, folder.entries, after.entries):
            self._believed = False
        return count


def _fits(count: int, limit: int, before: int, after: int) -> bool:
    """Whether ``count`` entries, listed up to ``limit``, are as many as the sizes have told."""
    least, most = min(before, after), max(before, after)
    return least <= count <= most if count < limit else most >= count


def _folder(path: str, depth: int, device: int | None) -> _Folder | None:
    """None for what is gone, no directory, or on another file system than ``device``."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISDIR(info.st_mode) or device not in (None, info.st_dev):
        return None
    entries = info.st_size // _ENTRY - _OWN
    return _Folder(path, depth, info.st_dev, max(entries, 0), info.st_nlink > _OWN)
