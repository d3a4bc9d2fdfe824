"""Who a process is, and signals that can reach nobody else."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from watchdog import procfs
from watchdog.contracts import ProcessInfo


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A pid is reused; a pid with its start time (clock ticks since boot) on one boot is not."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, info: ProcessInfo) -> ProcessIdentity:
        """The identity of a process of this boot."""
        return cls(info.pid, info.start_ticks, procfs.boot_id())


def open_pidfd(pid: int, start_ticks: int) -> int | None:
    """A pidfd of exactly this process of this boot; None when it is gone or the pid is another's.

    The start time is compared *after* opening: before, the pid could change hands in between.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except (
        OSError,
        ValueError,
        OverflowError,
    ):  # no number of a process at all, in a damaged store
        return None
    info = procfs.stat(pid)
    if info is None or info.start_ticks != start_ticks:
        os.close(pidfd)
        return None
    return pidfd


def open_identity(identity: ProcessIdentity) -> int | None:
    """As open_pidfd, for an identity that may be of another boot."""
    if identity.boot_id != procfs.boot_id():
        return None
    return open_pidfd(identity.pid, identity.start_ticks)


def may_signal(pidfd: int) -> bool:
    """Whether nothing forbids us to signal the process; of one that is gone nothing does."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except PermissionError:
        return False
    except OSError:
        pass
    return True


def send(pidfd: int, number: signal.Signals) -> bool:
    """Send a signal through a pidfd; False when the process is gone or not ours to signal."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    return True


def wait_gone(pidfds: Iterable[int], seconds: float) -> set[int]:
    """Wait until one or more of the pidfds are readable, or so long; those that are.

    A pidfd is readable when *all* threads of the process are gone.
    """
    poller = select.poll()
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    return {pidfd for pidfd, _ in poller.poll(max(0.0, seconds) * 1000)}


def gone(pidfd: int) -> bool:
    """Whether every thread of the process is gone."""
    return bool(wait_gone((pidfd,), 0))
