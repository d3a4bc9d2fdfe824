"""From a plan to a living generation, each step noted before the next one is taken."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from watchdog import procfs
from watchdog.contracts import ActionError
from watchdog.core.model import Cause
from watchdog.ledger import GenerationRecord
from watchdog.supervisor import cgroup, identity, launched, rotation
from watchdog.supervisor.cgroup import Cgroup, Limits
from watchdog.supervisor.engine_settings import EngineSettings, Surroundings
from watchdog.supervisor.exits import ExitStatus
from watchdog.supervisor.generation import Generation, end_record
from watchdog.supervisor.members import MemberTable
from watchdog.supervisor.spawn import environment, spawn


def started(settings: EngineSettings, around: Surroundings) -> Generation:
    """A new generation. Raises ActionError, and then nothing of it is left but a note."""
    with contextlib.suppress(OSError):  # a log that cannot be rotated stops no engine
        rotation.put_aside(settings.launch.log_path)  # a copy of a large one would take its time
    name = launched.new_id()
    record = launched.planned(
        settings.launch,
        settings.endpoint,
        settings.stop,
        name=name,
        cgroup=str(cgroup.place_of(name) or ""),
    )
    around.ledger.planned(record)
    around.household.generation_began(record.id)
    made = _cgroup(name, settings, around)
    try:
        pid = _spawned(settings, around, record)
    except (ActionError, OSError) as error:
        around.household.generation_over(record.id)
        end_record(record, around.ledger, ExitStatus(), Cause.BAD_ARGUMENTS)
        if isinstance(error, ActionError):
            raise
        raise ActionError(f"cannot make a temporary directory: {error.strerror}") from error
    return _taken_up(record, pid, settings, around, made)


def _cgroup(name: str, settings: EngineSettings, around: Surroundings) -> Cgroup | None:
    """One of its own, where it can be had; limits that cannot be had are told of."""
    made = cgroup.made(name, settings.limits)
    if made.why and settings.limits != Limits():
        around.warn(f"engine {settings.launch.engine}: {made.why}")
    return made.cgroup


def _spawned(settings: EngineSettings, around: Surroundings, record: GenerationRecord) -> int:
    tempdir = Path(record.tempdir)
    tempdir.mkdir(mode=0o700)
    env = environment(settings.launch, record.id, tempdir)
    process = spawn(settings.launch, env, around.household)
    # From here on the exit watch and the stop wait for it; Popen must not complain or reap.
    process.returncode = 0
    return process.pid


def _taken_up(
    record: GenerationRecord,
    pid: int,
    settings: EngineSettings,
    around: Surroundings,
    own: Cgroup | None,
) -> Generation:
    """Nothing from here on may lose the engine: it lives."""
    if own is not None and not own.take(pid) and settings.limits != Limits() and _lives(pid):
        around.warn(f"engine {record.engine}: it cannot be moved into {own.path}: no limit holds")
    now = time.monotonic()
    info = procfs.stat(pid)  # a zombie at worst: nobody but us reaps it
    ticks = info.start_ticks if info is not None else 0
    pidfd = identity.open_pidfd(pid, ticks)
    around.ledger.spawned(record.id, pid, ticks, now)
    record = replace(record, pid=pid, start_ticks=ticks, spawned_at=now)
    table = MemberTable(record.id, (pid, ticks), around.household)
    table.cgroup = own  # also when the leader is gone already, and has left others in it
    generation = Generation(record, table, pidfd, spawned=True)
    generation.watch_memory()
    return generation


def _lives(pid: int) -> bool:
    info = procfs.stat(pid)
    return info is not None and procfs.lives(info)
