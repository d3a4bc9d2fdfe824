"""Starts of ours that nothing remembers: the store was lost, or the disk was full when they were.

The mark in a leader's environment says that a watchdog started it for this engine. That no other
watchdog has it follows from the lock on the engine's port, which we hold, and which is one a
network namespace: so it has to sit in ours, and listen on that port or write the engine's log. Of a
leader that is dead whoever is left in its session bears the mark; then only the log tells.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from watchdog import procfs
from watchdog.contracts import Endpoint, ProcessInfo
from watchdog.ledger import GenerationRecord, Ledger
from watchdog.supervisor import tempdirs
from watchdog.supervisor.hooks import HOOK_VARIABLE
from watchdog.supervisor.members import GENERATION_VARIABLE
from watchdog.supervisor.spawn import ENGINE_VARIABLE, Launch, without_secrets


def recover(launch: Launch, endpoint: Endpoint, ledger: Ledger) -> tuple[GenerationRecord, ...]:
    """Note in the ledger every living start of the engine that it lacks; what was noted."""
    if endpoint.uds or not endpoint.port:
        return ()  # no lock keeps another watchdog away from these
    known = {record.id for record in ledger.living(launch.engine)}
    living = {info.pid: info for info in procfs.scan() if procfs.lives(info)}
    found = []
    # Leaders first: of a start whose leader lives nobody else has to stand for it.
    for info in sorted(living.values(), key=lambda one: one.session != one.pid):
        leads = info.session == info.pid
        if not leads and info.session in living:
            continue
        mark = procfs.environ_value(info.pid, GENERATION_VARIABLE)
        if not mark or mark in known or not _bears(info, launch):
            continue
        if _is_of(info, launch, endpoint) if leads else _writes(info.pid, launch.log_path):
            known.add(mark)
            session = [one for one in living.values() if one.session == info.session]
            found.append(_noted(mark, info, session, launch, endpoint, ledger))
    return tuple(found)


def _bears(info: ProcessInfo, launch: Launch) -> bool:
    """Whether it was started for this engine, by a watchdog where we are."""
    if procfs.environ_value(info.pid, ENGINE_VARIABLE) != launch.engine:
        return False
    return procfs.environ_value(info.pid, HOOK_VARIABLE) is None and _is_near(info.pid)


def _is_of(info: ProcessInfo, launch: Launch, endpoint: Endpoint) -> bool:
    owner = procfs.listening_owner(endpoint.port)
    if owner is not None:
        listener = procfs.stat(owner[0])
        return listener is not None and _leads(info, listener)
    return _writes(info.pid, launch.log_path)


def _writes(pid: int, log: Path) -> bool:
    """Whether what it prints goes to the file: two watchdogs never share one."""
    try:
        return log.samefile(f"/proc/{pid}/fd/1")
    except OSError:
        return False


def _leads(info: ProcessInfo, other: ProcessInfo) -> bool:
    above = (one.pid for one in procfs.ancestors(other))
    return info.pid in {other.pid, other.session, *above}


def _is_near(pid: int) -> bool:
    """Whether it is in our network namespace."""
    try:
        return Path(f"/proc/{pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()
    except OSError:
        return False


def _noted(  # noqa: PLR0913, PLR0917 - all that is known of it
    mark: str,
    info: ProcessInfo,
    session: Sequence[ProcessInfo],
    launch: Launch,
    endpoint: Endpoint,
    ledger: Ledger,
) -> GenerationRecord:
    ticks = min(one.start_ticks for one in session)
    now, wall = time.monotonic(), time.time()
    began = min(ticks / os.sysconf("SC_CLK_TCK"), now)
    folder = procfs.environ_value(info.pid, "TMPDIR") or ""
    record = GenerationRecord(
        id=mark,
        engine=launch.engine,
        tempdir=folder if Path(folder).name.startswith(tempdirs.PREFIX) else "",
        log_path=str(launch.log_path),
        log_offset=0,
        port=endpoint.port,
        command=without_secrets(procfs.cmdline(info.pid)),
        boot_id=procfs.boot_id(),
        planned_at=began,
        planned_wall=wall - (now - began),
    )
    # The number of a dead leader is nobody else's as long as somebody is in its session.
    ledger.planned(record)
    ledger.spawned(mark, info.session, ticks, began)
    ledger.members(mark, [(one.pid, one.start_ticks) for one in session])
    return replace(record, pid=info.session, start_ticks=ticks, spawned_at=began)
