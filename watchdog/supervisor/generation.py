"""One start of an engine while it lives: its record, its set, its leader's pidfd."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL

from watchdog import procfs
from watchdog.contracts import LogPlace
from watchdog.core.model import Cause
from watchdog.ledger import GenerationRecord, Ledger
from watchdog.supervisor import identity, launched, rotation, sockets, tempdirs
from watchdog.supervisor.cgroup import Cgroup
from watchdog.supervisor.exits import ExitStatus
from watchdog.supervisor.household import Household
from watchdog.supervisor.members import Key, MemberTable
from watchdog.supervisor.oom import OomEvidence, OomLook, OomWatch

_SHELL_SIGNAL = 128
"""A shell in between ends with so much more than the number of the signal."""


@dataclass(slots=True)
class Generation:
    """Mutable: the actor's thread starts and stops it, the exit watch notes the leader's exit.

    ``status`` is None while the leader lives. ``asked`` is the cause of the stop under way.
    ``told`` is set when the exit has been posted. ``oom`` watches for the kernel's OOM killer,
    which had ``counted`` so much at the beginning.
    """

    record: GenerationRecord
    table: MemberTable
    pidfd: int | None
    spawned: bool
    token: int | None = None
    status: ExitStatus | None = None
    cause: Cause = Cause.UNKNOWN
    asked: Cause | None = None
    noted: tuple[Key, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)
    told: threading.Event = field(default_factory=threading.Event)
    oom: OomWatch | None = None
    counted: OomLook = field(default_factory=OomLook)

    @property
    def pid(self) -> int:
        """The leader's pid."""
        return self.record.pid or 0

    def leader_gone(self) -> bool:
        """Whether all threads of the leader are gone."""
        return self.pidfd is None or identity.gone(self.pidfd)

    def log_place(self) -> LogPlace:
        """Its part of the log: from its beginning on when it has been rotated since."""
        record = self.record
        rotated = rotation.rotated_since(Path(record.log_path), record.planned_wall)
        return LogPlace(record.id, record.log_path, 0 if rotated else record.log_offset)

    def log_bytes(self) -> int | None:
        """Bytes that it has logged since the last rotation; None when the log cannot be seen."""
        place = self.log_place()
        try:
            size = Path(place.path).stat().st_size
        except OSError:
            return None
        return size - place.offset if size >= place.offset else size

    def note_exit(self, status: ExitStatus) -> bool:
        """Keep the first report of the exit; whether this was it."""
        with self.lock:
            first = self.status is None
            if first:
                self.status = status
        return first

    def watch_memory(self) -> None:
        """Take note from now on of what the kernel's OOM killer does."""
        with contextlib.suppress(OSError):  # it explains an end, and costs nobody a start
            self.oom = OomWatch(self.pid, self.table.cgroup)
            self.counted = self.oom.look()

    def glance_at_memory(self) -> None:
        """Date what the OOM killer did until now."""
        if self.oom is not None:
            self.oom.look()

    def killed_for_memory(self, status: ExitStatus) -> OomEvidence | None:
        """What the OOM killer did to it, when the leader ended with ``status``."""
        if self.oom is None:
            return None
        killed = SIGKILL in {status.signal, (status.exit_code or 0) - _SHELL_SIGNAL}
        return self.oom.since(
            self.counted, self.table.pids_ever(), killed=killed or bool(self.table.lost)
        )

    def close(self) -> None:
        """Let go of what it holds open."""
        if self.oom is not None:
            self.oom.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def table_of(
    record: GenerationRecord, members: tuple[Key, ...], household: Household
) -> MemberTable:
    """The set of a recorded generation, as far as this boot knows it."""
    leader = None
    if record.pid is not None and record.start_ticks is not None:
        leader = (record.pid, record.start_ticks)
    table = MemberTable(record.id, leader, household, recorded=members, spawned=False)
    table.cgroup = _cgroup(record)
    return table


def _cgroup(record: GenerationRecord) -> Cgroup | None:
    told = launched.read(record)
    return Cgroup.at(told.cgroup, record.id) if told is not None and told.cgroup else None


def leader_pidfd(record: GenerationRecord) -> int | None:
    """A pidfd of the recorded leader; None when it is gone, a stranger, or of another boot."""
    if record.pid is None or record.start_ticks is None or record.boot_id != procfs.boot_id():
        return None
    pidfd = identity.open_pidfd(record.pid, record.start_ticks)
    if pidfd is not None and identity.gone(pidfd):
        os.close(pidfd)
        return None
    return pidfd


def end_record(record: GenerationRecord, ledger: Ledger, status: ExitStatus, cause: Cause) -> None:
    """Note that nothing of it lives.

    The directory goes first: a death in between leaves the record, and the next one cleans up.
    """
    tempdirs.remove(record.tempdir)
    cgroup = _cgroup(record)
    if cgroup is not None:
        cgroup.remove()
    told = launched.read(record)
    if told is not None and told.endpoint.uds:  # vLLM leaves it, and then cannot bind it again
        sockets.remove_stale(told.endpoint.uds, record.planned_wall)
    ledger.ended(record.id, exit_code=status.exit_code, signal=status.signal, cause=cause)
