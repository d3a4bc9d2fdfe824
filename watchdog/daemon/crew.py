"""The engines of the daemon, those that came, and those that are on their way out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from watchdog.config import EngineConfig
from watchdog.contracts import ActionError
from watchdog.core.model import (
    ActionFinished,
    Cause,
    EngineExited,
    EngineSpawned,
    Event,
    Outcome,
    Seconds,
    engine_subject,
)
from watchdog.core.state import EngineState, RestartHistory
from watchdog.daemon.box import EngineBox
from watchdog.daemon.wiring import Engine, cards_of, longest_stop, outer_limit
from watchdog.executor import Actor
from watchdog.ledger import Ledger
from watchdog.procfs import boot_id
from watchdog.supervisor.engine import EngineSettings


@dataclass(frozen=True, slots=True)
class Muster:
    """How the crew changes: who comes, and who is to start as something else the next time."""

    comers: Mapping[str, Engine]
    reconfigured: Mapping[str, tuple[EngineConfig, EngineSettings]]


class Crew:
    """Changed by the loop's thread only; ``engines`` is replaced as a whole, for everybody else.

    ``actors`` are for the loop's thread. ``leaving`` are engines that are not configured any more
    and have not ended yet, and their accounts as they were before anybody stopped them.
    """

    def __init__(self, box: EngineBox) -> None:
        self.engines: Mapping[str, Engine] = {}
        self.leaving: Mapping[str, RestartHistory] = {}
        self.actors: dict[str, Actor] = {}
        self._box = box

    def change(self, muster: Muster, leaving: Mapping[str, RestartHistory]) -> None:
        """Take in who comes, and note who leaves."""
        engines = {**self.engines, **muster.comers}
        for name, (config, settings) in muster.reconfigured.items():
            engines[name].supervised.reconfigure(settings)
            engines[name] = replace(engines[name], config=config)
        self.leaving = dict(leaving)
        self._set(engines)

    def drop(self, name: str) -> Engine:
        """Who has left, for its actor and its pidfd to be closed. It is heard of no more."""
        gone = self.engines[name]
        gone.mailbox.close()
        self.leaving = {one: kept for one, kept in self.leaving.items() if one != name}
        self._set({one: engine for one, engine in self.engines.items() if one != name})
        return gone

    def _set(self, engines: dict[str, Engine]) -> None:
        self.engines = engines
        self._box.targets = {name: engine.target for name, engine in engines.items()}
        self.actors.clear()
        self.actors.update({name: engine.actor for name, engine in engines.items()})

    def ports(self) -> frozenset[int]:
        """The ports of what runs, and of what will."""
        return frozenset(
            settings.endpoint.port
            for engine in self.engines.values()
            for settings in (engine.supervised.settings, engine.supervised.present)
            if settings is not None
        )

    def logs(self) -> tuple[Path, ...]:
        """The files that engines write to now. From any thread."""
        places = (engine.supervised.log_place() for engine in self.engines.values())
        return tuple(Path(place.path) for place in places if place is not None)

    def patience(self) -> Seconds:
        """More seconds than any stop may take, of what runs or will. From any thread."""
        return outer_limit(
            longest_stop(settings.stop, settings.post_stop)
            for engine in self.engines.values()
            for settings in (engine.supervised.settings, engine.supervised.present)
            if settings is not None
        )

    def outdated(self) -> tuple[str, ...]:
        """Who is configured and runs as something else."""
        return tuple(
            name
            for name, engine in self.engines.items()
            if name not in self.leaving and engine.supervised.is_outdated()
        )

    def in_the_way(self, name: str) -> str | None:
        """Another engine that has to leave the port or the cards of ``name``, and has not yet.

        From any thread. Who shares its cards by configuration is not in the way.
        """
        engines, leaving = self.engines, self.leaving
        mine = engines.get(name)
        if mine is None:
            return None
        wanted = mine.supervised.settings
        for other in engines.values():
            present, later = other.supervised.present, other.supervised.settings
            if other is mine or present is None:
                continue
            shared: frozenset[str] = frozenset()
            if other.supervised.name not in leaving:
                shared = _shared(wanted, later)
            if _shared(wanted, present) - shared:
                return other.supervised.name
        return None


def adopted(engine: Engine, ledger: Ledger, *, clean_up: bool) -> tuple[Event, ...]:
    """Take over what an earlier watchdog left; the facts that the engine does not post itself.

    Without ``clean_up`` nothing is signalled. What the engine posts waits in its mailbox.
    """
    name = engine.supervised.name
    recorded = {record.id: record for record in ledger.living(name)}
    try:
        adoption = engine.supervised.adopt(clean_up=clean_up)
    except ActionError as error:
        return (_unkillable(name, error),)
    record = recorded.get(adoption.ended[0]) if adoption.ended else None
    if adoption.record is None and record is not None and record.boot_id == boot_id():
        return _found_dead(name, record.id, record.pid or 0, ready=record.ready_at is not None)
    return ()


def as_it_runs(state: EngineState, engine: Engine) -> EngineState:
    """What the core knows of it, with the cards of what was adopted."""
    present = engine.supervised.present
    if present is None or not engine.supervised.is_outdated():
        return state
    return replace(state, settings=replace(state.settings, gpus=cards_of(present.launch)))


def _found_dead(name: str, generation: str, pid: int, *, ready: bool) -> tuple[Event, ...]:
    """An engine that died while nobody watched has failed, and its restart is accounted."""
    now, cause, why = time.monotonic(), Cause.CRASH, "died while no watchdog ran"
    return (
        EngineSpawned(now, name, generation, pid, Cause.UNKNOWN, adopted=True, ready=ready),
        EngineExited(now, name, generation, None, None, cause, why),
    )


def _unkillable(name: str, error: ActionError) -> ActionFinished:
    outcome = Outcome(
        "stop_engine",
        engine_subject(name),
        ok=False,
        took=0.0,
        explanation=str(error),
        cause=error.cause,
        unkillable=error.unkillable,
        evidence=error.evidence,
    )
    return ActionFinished(time.monotonic(), outcome)


def _shared(one: EngineSettings, other: EngineSettings) -> frozenset[str]:
    """What both would have at the same time: the port (or the socket), cards."""
    here, there = one.endpoint, other.endpoint
    port = (here.uds, here.uds or here.port) == (there.uds, there.uds or there.port)
    mine, theirs = cards_of(one.launch), cards_of(other.launch)
    if () in {mine, theirs}:
        cards = False
    else:
        cards = mine is None or theirs is None or bool(set(mine) & set(theirs))
    return frozenset(("port",) * port + ("cards",) * cards)
