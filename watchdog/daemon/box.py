"""The machine as GPU and host probes see it: whose a process is, proven by identity.

A pid alone proves nothing. An engine's own are found by the supervisor; remains of an earlier start
by recorded pid and start ticks, by the recorded session, or by the generation id that only we hand
out. Who cannot be seen from here (another PID namespace, or just gone) is nobody's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from watchdog import procfs
from watchdog.contracts import EngineTarget, Owned, Owner, ProcessInfo
from watchdog.core.model import Seconds
from watchdog.ledger import GenerationRecord, Ledger
from watchdog.supervisor.members import GENERATION_VARIABLE, Key, key

_KEEP: Seconds = 0.2
"""One look at all engines serves a whole list of processes; a new start holds no GPU that soon."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Everything of ours at one moment, for every way in which a process may be recognised."""

    at: Seconds = 0.0
    members: Mapping[Key, Owned] = field(default_factory=dict)
    sessions: Mapping[int, Owned] = field(default_factory=dict)
    generations: Mapping[str, Owned] = field(default_factory=dict)

    def of(self, info: ProcessInfo) -> Owned | None:
        """What its own identity says, without a look at its environment."""
        return self.members.get(key(info)) or self.sessions.get(info.session)


class EngineBox:
    """Implements ``contracts.Box``. Safe from any thread; two at once only look twice.

    ``targets`` by the engine's name may be replaced, as a whole, at any time. ``state_dir`` is ""
    when all is kept in memory.
    """

    def __init__(
        self, targets: Mapping[str, EngineTarget], ledger: Ledger, state_dir: str = ""
    ) -> None:
        self.targets = targets
        self.state_dir = state_dir
        self._ledger = ledger
        self._known = _Known()

    def engines(self) -> tuple[EngineTarget, ...]:
        """Every configured engine, running or not."""
        return tuple(self.targets.values())

    def owner(self, pid: int) -> Owned:
        """Whose the process is now. Never raises.

        Reads one small file of the process, two for a stranger, and one for each of its ancestors.
        """
        info = procfs.stat(pid)
        if info is None:
            return Owned(Owner.UNKNOWN)
        known = self._now()
        found = known.of(info) or _marked(info, known) or _inherited(info, known)
        owned = found or Owned(Owner.FOREIGN)
        return Owned(owned.owner, owned.engine, info.comm)

    def _now(self) -> _Known:
        known = self._known
        if not known.at or time.monotonic() - known.at > _KEEP:
            known = self._known = self._looked()
        return known

    def _looked(self) -> _Known:
        members: dict[Key, Owned] = {}
        sessions: dict[int, Owned] = {}
        generations: dict[str, Owned] = {}
        boot = procfs.boot_id()
        for target in self.engines():
            ours = Owned(Owner.ENGINE, target.name)
            living = target.processes()
            for record in self._ledger.living(target.name):
                if record.boot_id != boot:
                    continue
                recorded = self._recorded(record)
                owned = ours if _is_present(record, target, living) else _orphan(target.name)
                generations[record.id] = owned
                members.update(dict.fromkeys(recorded, owned))
                sessions.update(_session(record, recorded, owned))
            members.update({key(info): ours for info in living})
        return _Known(time.monotonic(), members, sessions, generations)

    def _recorded(self, record: GenerationRecord) -> set[Key]:
        leader = {(record.pid, record.start_ticks)} if record.pid and record.start_ticks else set()
        return {*leader, *self._ledger.members_of(record.id)}


def _orphan(engine: str) -> Owned:
    return Owned(Owner.ORPHAN, engine)


def _is_present(
    record: GenerationRecord, target: EngineTarget, living: tuple[ProcessInfo, ...]
) -> bool:
    """Whether the generation is the one that the engine's supervisor holds now.

    The core learns of a start a moment after the supervisor: so the set counts too.
    """
    leader = (record.pid, record.start_ticks)
    return record.id == target.look().generation or any(key(info) == leader for info in living)


def _session(
    record: GenerationRecord, recorded: set[Key], owned: Owned
) -> Iterator[tuple[int, Owned]]:
    """The leader's session, while it is certainly still the leader's.

    The kernel reuses no pid that names a session with members: one recorded member in it proves it.
    """
    seen = (procfs.stat(pid) for pid, _ in recorded)
    if any(i is not None and key(i) in recorded and i.session == record.pid for i in seen):
        yield record.pid or 0, owned


def _marked(info: ProcessInfo, known: _Known) -> Owned | None:
    """By the generation id in its environment. An engine may have written its title over it."""
    named = procfs.environ_value(info.pid, GENERATION_VARIABLE) if known.generations else None
    return known.generations.get(named) if named else None


def _inherited(info: ProcessInfo, known: _Known) -> Owned | None:
    """By the nearest ancestor of ours: a child is an engine's before anybody has recorded it."""
    found = (known.of(above) for above in procfs.ancestors(info))
    return next(filter(None, found), None)
