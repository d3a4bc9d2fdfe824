"""Exits as events: one thread sleeps on the pidfds of all leaders."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from watchdog import procfs
from watchdog.supervisor.identity import gone

_PIDFD_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, struct pidfd_info), Linux 6.13; exit information since 6.15."""
_PIDFD_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended; both None when it could not be had (it was not our child)."""

    exit_code: int | None = None
    signal: int | None = None

    @classmethod
    def of_wait_status(cls, status: int) -> ExitStatus:
        """From the status of wait(2)."""
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(exit_code=os.WEXITSTATUS(status))

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was ended by {signal_name(self.signal)}"
        if self.exit_code is not None:
            return f"exited with status {self.exit_code}"
        return "is gone, with an exit status that nobody could see"


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_status(pidfd: int, pid: int) -> ExitStatus:
    """The status of a process whose pidfd is readable. A child of ours is not reaped by this."""
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return _status_of_stranger(pidfd, pid)
    if result is None:
        return ExitStatus()
    if result.si_code == os.CLD_EXITED:
        return ExitStatus(exit_code=result.si_status)
    return ExitStatus(signal=result.si_status)


def _status_of_stranger(pidfd: int, pid: int) -> ExitStatus:
    """A zombie shows its status in /proc until its parent reaps it, the pidfd from then on."""
    zombie = procfs.exit_status_of_zombie(pid)
    if zombie is not None:
        return ExitStatus.of_wait_status(zombie)
    buffer = bytearray(_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return ExitStatus()
    values = _INFO.unpack(bytes(buffer))
    known = values[0] & _PIDFD_INFO_EXIT
    return ExitStatus.of_wait_status(values[-1]) if known else ExitStatus()


OnExit = Callable[[ExitStatus], None]


@dataclass(frozen=True, slots=True)
class _Watched:
    pid: int
    on_exit: OnExit


class ExitWatch:
    """Calls back, in its own thread, when a watched process is gone with all its threads.

    ``failed`` is told of a call that raised; the others go on.
    """

    def __init__(self, failed: Callable[[Exception], None] = lambda _: None) -> None:
        self._failed = failed
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._watched: dict[int, _Watched] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="exit-watch", daemon=True)
        self._thread.start()

    def watch(self, pidfd: int, pid: int, on_exit: OnExit) -> int:
        """Watch through a duplicate of ``pidfd``; a token for unwatch."""
        token = os.dup(pidfd)
        with self._lock:
            self._watched[token] = _Watched(pid, on_exit)
            self._epoll.register(token, select.EPOLLIN)
        return token

    def unwatch(self, token: int) -> None:
        """Forget; no call comes after this, unless it is under way."""
        self._take(token)

    def close(self) -> None:
        """End the thread and forget all."""
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for token in list(self._watched):
            self._take(token)
        self._epoll.close()
        os.close(self._wake)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._wake:
                    return
                self._report(descriptor)

    def _report(self, token: int) -> None:
        watched = self._watched.get(token)
        if watched is None or not gone(token):  # the number may belong to a newer watch by now
            return
        status = exit_status(token, watched.pid)
        if self._take(token):
            try:
                watched.on_exit(status)
            except Exception as error:  # noqa: BLE001 - the exits of all others are told here too
                self._failed(error)

    def _take(self, token: int) -> bool:
        with self._lock:
            if self._watched.pop(token, None) is None:
                return False
            with contextlib.suppress(OSError):
                self._epoll.unregister(token)
            os.close(token)
        return True
