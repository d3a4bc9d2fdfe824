"""What an earlier watchdog left behind: alive and ours, half dead, or gone."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from watchdog import procfs
from watchdog.contracts import ProcessInfo
from watchdog.ledger import GenerationRecord, Ledger
from watchdog.supervisor.generation import Generation, leader_pidfd, table_of
from watchdog.supervisor.household import Household
from watchdog.supervisor.members import GENERATION_VARIABLE, Key, MemberTable


@dataclass(frozen=True, slots=True)
class Adoption:
    """``record`` of the generation that was taken over, None when there was none to take.

    ``ended`` are the generations that were found dead or half dead and are over now.
    """

    record: GenerationRecord | None = None
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The generation to adopt, and the remains of others: a table where somebody may live."""

    adopted: Generation | None
    remains: tuple[tuple[GenerationRecord, MemberTable | None], ...]


def look(
    engine: str,
    ledger: Ledger,
    household: Household,
    found: tuple[GenerationRecord, ...] = (),
) -> Found:
    """Judge every recorded generation by identity; nobody is signalled.

    ``found`` are living ones that had no record, whether or not the ledger could take them in.
    """
    adopted: Generation | None = None
    remains = []
    anew = {record.id for record in found}
    recorded = (record for record in ledger.living(engine) if record.id not in anew)
    for noted in (*found, *recorded):
        record = _traced(noted)
        pidfd = leader_pidfd(record) if adopted is None else None
        if pidfd is not None:
            if record is not noted:
                _note_spawn(record, ledger)
            adopted = _taken(record, pidfd, ledger.members_of(record.id), household)
        else:
            remains.append((record, _table(record, ledger, household)))
    return Found(adopted, tuple(remains))


def _taken(
    record: GenerationRecord, pidfd: int, members: tuple[Key, ...], household: Household
) -> Generation:
    """A living generation in our hands. Its leader may be our child: orphans come to us."""
    info = procfs.stat(record.pid or 0)
    ours = info is not None and info.ppid == os.getpid()
    if ours:
        household.register(record.pid or 0)
    table = table_of(record, members, household)
    table.refresh(full=True)
    return Generation(record, table, pidfd, spawned=ours)


def living_members(
    record: GenerationRecord, ledger: Ledger, household: Household
) -> tuple[ProcessInfo, ...]:
    """Who lives of a recorded generation."""
    table = _table(_traced(record), ledger, household)
    return () if table is None else table.refresh(full=True)


def _table(record: GenerationRecord, ledger: Ledger, household: Household) -> MemberTable | None:
    """None for a generation of another boot: nothing of it can live."""
    if record.boot_id != procfs.boot_id():
        return None
    return table_of(record, ledger.members_of(record.id), household)


def _traced(record: GenerationRecord) -> GenerationRecord:
    """A generation whose spawn was never recorded is found by the id in its environment."""
    if record.pid is not None or record.boot_id != procfs.boot_id():
        return record
    for info in procfs.scan():
        is_leader = info.session == info.pid and procfs.lives(info)
        if is_leader and procfs.environ_value(info.pid, GENERATION_VARIABLE) == record.id:
            return replace(
                record, pid=info.pid, start_ticks=info.start_ticks, spawned_at=record.planned_at
            )
    return record


def _note_spawn(record: GenerationRecord, ledger: Ledger) -> None:
    if record.pid is not None and record.start_ticks is not None:
        at = record.spawned_at if record.spawned_at is not None else record.planned_at
        ledger.spawned(record.id, record.pid, record.start_ticks, at)
