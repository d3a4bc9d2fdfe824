"""One watchdog a state directory and one a port, for as long as it lives."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("=iII")


class LockHeldError(Exception):
    """Another watchdog is at work. ``pid`` is its process, None when it cannot be seen.

    ``trouble`` says why it cannot even be known, where that is so: nothing is risked then.
    """

    def __init__(self, what: str, pid: int | None, trouble: str = "") -> None:
        who = f" (process {pid})" if pid else ""
        super().__init__(f"cannot lock {what}: {trouble or f'another watchdog holds it{who}'}")
        self.pid = pid


class Lock:
    """A lock that ends with ``release`` or with the process, however that ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let go; once is enough, twice does no harm."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_directory(state_dir: Path) -> Lock:
    """Lock STATE_DIR/lock, whatever is written in it; raises LockHeldError.

    Also when something is there that no file can be: a directory, a pipe, a link to itself.
    """
    path = state_dir / "lock"
    descriptor = -1
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o640)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _tell_pid(descriptor)
    except OSError as error:
        held = isinstance(error, BlockingIOError)
        pid = _pid_in(descriptor) if held else None
        if descriptor >= 0:
            os.close(descriptor)
        trouble = "" if held else str(error.strerror)
        raise LockHeldError(str(path), pid, trouble) from None
    return Lock(descriptor)


def _tell_pid(descriptor: int) -> None:
    """On a full disk the lock holds as well: only who holds it cannot be told."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise


def lock_port(port: int) -> Lock:
    """Lock an engine's port by an abstract Unix socket: no file, one a network namespace.

    Catches a second watchdog with another state directory. Raises LockHeldError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = f"\0vllm-watchdog-port-{port}"
    try:
        listener.bind(name)
        listener.listen(1)
    except OSError:
        listener.close()
        raise LockHeldError(f"port {port}", _pid_behind(name)) from None
    return Lock(listener.detach())


def _pid_in(descriptor: int) -> int | None:
    try:
        text = os.pread(descriptor, 32, 0).strip()
    except OSError:  # a pipe
        return None
    return int(text) if text.isdigit() else None


def _pid_behind(name: str) -> int | None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller:
            caller.connect(name)
            raw = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid or None
