"""Engines of an earlier configuration that live on: a watchdog died before it had ended them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from watchdog.core.state import EngineSettings, EngineState, RestartHistory
from watchdog.daemon.memory import Memory
from watchdog.daemon.wiring import Engine, Makings, cards_of
from watchdog.ledger import Ledger
from watchdog.procfs import boot_id
from watchdog.supervisor import adoption
from watchdog.supervisor.household import Household


@dataclass(frozen=True, slots=True)
class Stray:
    """Nobody wants it to run. ``account`` is for the day on which it is configured again."""

    engine: Engine
    state: EngineState
    account: RestartHistory


def strays(makings: Makings, memory: Memory, known: Collection[str]) -> dict[str, Stray]:
    """All that the ledger has of this boot and that are not ``known``; they are not adopted yet."""
    ledger = makings.around.ledger
    found = {}
    for name in ledger.engines(boot_id()):
        record = next(iter(ledger.living(name)), None)
        if name in known or record is None:
            continue
        made = makings.stray(record)
        settings = EngineSettings(name, gpus=cards_of(made.supervised.settings.launch))
        state = memory.recall_engine(settings, standby=False)
        unwanted = replace(state, history=replace(state.history, wanted=False))
        found[name] = Stray(made, unwanted, state.history)
    return found


def ports_left(ledger: Ledger, engines: Collection[str]) -> frozenset[int]:
    """Where these answer, or answered last, as the ledger has it."""
    boot = boot_id()
    return frozenset(
        record.port for name in engines for record in ledger.living(name) if record.boot_id == boot
    )


def living(ledger: Ledger, household: Household, known: Collection[str]) -> dict[str, int]:
    """Who would be a stray and lives: the first of its processes."""
    found = {}
    for name in ledger.engines(boot_id()):
        records = ledger.living(name) if name not in known else ()
        pids = [
            info.pid
            for record in records
            for info in adoption.living_members(record, ledger, household)
        ]
        if pids:
            found[name] = pids[0]
    return found
