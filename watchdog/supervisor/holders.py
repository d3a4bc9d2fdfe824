"""Who holds files on this machine: every open file, mapping and directory of every process.

One look reads all of /proc, so it is for when something is to be removed, not for every start.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field

from watchdog import procfs
from watchdog.core.model import Seconds

INIT_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the first PID namespace, fixed by the kernel (``PROC_PID_INIT_INO``). Who lives in
it sees the processes of all others."""

_MAPPED = re.compile(rb"^\S+ \S+ \S+ \S+ (\d+) +(/.*)$", re.MULTILINE)
_GONE = " (deleted)"
_ROUNDS = 3
"""A process may pass a file on to a child and end before it is looked at: who came is looked at
too, and that so often."""


@dataclass(slots=True)
class Holders:
    """What was found. Mutable while the look goes on.

    ``names`` are the last parts of all paths, since other mount namespaces have other beginnings;
    ``paths`` the whole ones. ``unseen`` says who could not be looked at, "" when everybody could.
    """

    names: set[str] = field(default_factory=set)
    inodes: set[int] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    unseen: str = ""

    def add(self, path: str) -> None:
        """Somebody holds ``path``."""
        path = path.removesuffix(_GONE)
        self.paths.add(path)
        self.names.add(path.rpartition("/")[2])

    def below(self, folder: str) -> bool:
        """Whether somebody holds the folder, or anything in it."""
        return any(path == folder or path.startswith(f"{folder}/") for path in self.paths)


def look(deadline: Seconds, root: str = procfs.ROOT) -> Holders:
    """Look at every process; ``deadline`` is CLOCK_MONOTONIC. Never raises."""
    found = Holders()
    if not sees_everybody(root):
        found.unseen = "processes of other PID namespaces are not visible from here"
    known: set[int] = set()
    for _ in range(_ROUNDS):
        came = _pids(root) - known
        if not came:
            break
        for pid in came:
            if time.monotonic() > deadline:
                found.unseen = "there was no time to look at every process"
                return found
            _take(found, pid, root)
        known |= came
    if 1 not in known:  # hidepid leaves it out, and with it everybody who is not of our user
        found.unseen = found.unseen or "processes of other users are not visible from here"
    return found


def sees_everybody(root: str = procfs.ROOT) -> bool:
    """Whether we are in the first PID namespace, and no process is hidden in another one."""
    try:
        return os.stat(f"{root}/self/ns/pid").st_ino == INIT_PID_NAMESPACE  # noqa: PTH116 - as scan
    except OSError:
        return False


def _pids(root: str) -> set[int]:
    try:
        return {int(name) for name in os.listdir(root) if name.isdigit()}  # noqa: PTH208
    except OSError:
        return set()


def _take(found: Holders, pid: int, root: str) -> None:
    try:
        _take_files(found, f"{root}/{pid}")
        _take_maps(found, f"{root}/{pid}/maps")
        held = True
    except (FileNotFoundError, ProcessLookupError):
        held = True  # it has ended and holds nothing any more
    except OSError:
        held = False
    info = procfs.stat(pid, root)
    if info is None:
        return
    # The files of a leader whose threads outlive it are not shown, and nor are a stranger's.
    if (info.state in "ZX" and info.threads > 0) or (not held and procfs.lives(info)):
        found.unseen = found.unseen or f"process {pid} ({info.comm}) cannot be looked at"


def _take_files(found: Holders, folder: str) -> None:
    for name in ("cwd", "root"):
        try:
            found.add(os.readlink(f"{folder}/{name}"))  # noqa: PTH115 - never follows, never waits
        except FileNotFoundError:
            continue  # a kernel thread, or a zombie, has none
    for name in os.listdir(f"{folder}/fd"):  # noqa: PTH208
        try:
            found.add(os.readlink(f"{folder}/fd/{name}"))  # noqa: PTH115
        except FileNotFoundError:
            continue


def _take_maps(found: Holders, path: str) -> None:
    with open(path, "rb") as maps:  # noqa: PTH123
        text = maps.read()
    for inode, name in set(_MAPPED.findall(text)):
        found.inodes.add(int(inode))
        found.add(os.fsdecode(name))
