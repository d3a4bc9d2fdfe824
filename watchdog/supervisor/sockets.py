"""Unix sockets in the file system: who listens on one, and which are of nobody any more.

vLLM binds the path of ``--uds`` when it begins to start, listens when it is ready, and never
removes the file: a path that is left behind refuses every later start.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from pathlib import Path

from watchdog import procfs
from watchdog.core.model import Seconds

_CREDENTIALS = struct.Struct("3i")
_SLACK: Seconds = 1.0
"""Seconds by which a file system's clock may be behind ours: the kernel's is a tick late."""


def listener(path: str) -> int | None:
    """The pid of who listens at ``path``; 0 when somebody does and cannot be seen; None: nobody.

    A connection is made and closed at once. What cannot be told is nobody.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003 - the name of the method says it
        try:
            probe.connect(path)
            told = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError as error:
            # Its queue is full, or it is of another kind: in both cases it is there.
            there = error.errno in {errno.EAGAIN, errno.EPROTOTYPE}
            return 0 if there or _is_bound(path) else None
        except ValueError:  # no path at all
            return None
        pid, _, _ = _CREDENTIALS.unpack(told)
        return int(pid)


def is_dead(path: str) -> bool:
    """Whether it is certain that no socket of a living process is bound to ``path``.

    The kernel refuses a connection to a bound socket that does not listen yet as it does to a file
    that nobody is bound to: so the table of this network namespace counts too.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003 - as above
        try:
            probe.connect(path)
        except OSError as error:
            return error.errno == errno.ECONNREFUSED and not _is_bound(path)
    return False


def remove_stale(path: str, since: Seconds) -> bool:
    """Remove the socket that an ended start of ours left at ``path``; whether it was removed.

    ``since`` is when that start began, in seconds since the epoch. Proof that it is ours: it is a
    socket of our user, made since then, at a place that only our engine had, and it is dead.
    """
    if not os.path.isabs(path):  # noqa: PTH117 - a Path makes no difference to what it says
        return False
    try:
        found = os.lstat(path)
        ours = stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or found.st_ctime < since - _SLACK or not is_dead(path):
            return False
        Path(path).unlink()
    except (OSError, ValueError):
        return False
    return True


def _is_bound(path: str, root: str = procfs.ROOT) -> bool:
    """Whether the table of this network namespace names the path; True when it cannot be read."""
    try:
        table = Path(f"{root}/net/unix").read_bytes()
    except OSError:
        return True
    return any(line.endswith(b" " + os.fsencode(path)) for line in table.splitlines())
