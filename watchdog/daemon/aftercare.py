"""What follows a reload: who left is seen off, what runs otherwise is restarted when it may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from watchdog.core import cards, reload
from watchdog.core.model import (
    Commanded,
    EngineSpawned,
    Event,
    Mode,
    ProcessState,
    Record,
    Verb,
)
from watchdog.core.state import EngineSettings, State, Step
from watchdog.daemon.lookout import in_background
from watchdog.daemon.loop import Loop
from watchdog.daemon.plan import Planner
from watchdog.daemon.wiring import core_settings
from watchdog.inbox import Inbox, Task
from watchdog.logs import Journal

OWNER = "reload"
_PATIENCE = 10.0
"""Seconds; a probe that hangs must not keep a reload from being made."""
_WHY = "its configuration changed"
_GONE = "it left the configuration"
_STOPPING = "the watchdog is stopping"


@dataclass(slots=True)
class Aftercare:
    """Everything here happens in the loop's thread. ``busy`` while a plan is made: nobody parts.

    ``settings`` are those of all configured engines, ``owed`` engines that are to be another
    process than what runs, each with the reason that was told why not yet, "" when it is made.
    """

    planner: Planner
    loop: Loop
    inbox: Inbox
    journal: Journal
    on_switch: Callable[[], None]
    busy: bool = False
    settings: dict[str, EngineSettings] = field(default_factory=dict)
    owed: dict[str, str] = field(default_factory=dict)
    _restarted: dict[str, str] = field(default_factory=dict)
    _stopping: set[str] = field(default_factory=set)
    _parting: list[threading.Thread] = field(default_factory=list)
    _tending: bool = False

    def begin(self) -> None:
        """Before the loop turns: what an earlier watchdog left is not what is configured."""
        config = self.planner.now.config
        self.settings = {one.name: one for one in core_settings(config, self.planner.state_dir)}
        for name in self.planner.crew.leaving:
            self.stop(name)
        self.owed = dict.fromkeys(self.planner.crew.outdated(), "")
        self.tend_soon()

    def switched(self, settings: dict[str, EngineSettings], owed: dict[str, str]) -> None:
        """Another configuration is in force."""
        self.settings, self.owed = settings, owed
        self._stopping &= self.planner.crew.leaving.keys()

    def let_go(self) -> None:
        """Wait until nobody holds an engine that has left: it may come back. From any thread."""
        for parting in tuple(self._parting):
            parting.join(_PATIENCE)

    def stop(self, name: str) -> None:
        """End ``name``, as an operator would."""
        self._stopping.add(name)
        self.loop.take(Commanded(time.monotonic(), Verb.STOP, name, reason=_GONE, owner=OWNER))

    def restart(self, name: str) -> None:
        """Once for each generation: one that is under way or waits will do."""
        engine = self.loop.state.engines[name]
        if engine.in_flight == "restart_engine" or engine.pending is Verb.RESTART:
            return
        if engine.generation:
            self._restarted[name] = engine.generation
        self.loop.take(Commanded(time.monotonic(), Verb.RESTART, name, reason=_WHY, owner=OWNER))

    def watch(self, event: Event, _: Step) -> None:
        """A watcher of the loop: what runs with new settings, and who has left."""
        if isinstance(event, EngineSpawned):
            self._spawned(event.engine)
        if self.planner.crew.leaving or self.owed or isinstance(event, EngineSpawned):
            self.tend_soon()

    def _spawned(self, name: str) -> None:
        engine, settings = self.planner.crew.engines.get(name), self.settings.get(name)
        if engine is None or settings is None:
            return
        if engine.supervised.is_outdated():  # its start began before the reload did
            self.owed.setdefault(name, "")
        elif engine.supervised.present is engine.supervised.settings:
            self._become(reload.settled(self.loop.state, settings))

    def _become(self, state: State) -> None:
        """No event has led to it: what is recorded begins anew."""
        if state is not self.loop.state:
            self.loop.state = state
            self.on_switch()

    def tend_soon(self) -> None:
        """One time, however much happens until then."""
        if not self._tending:
            self._tending = True
            self.inbox.post(Task(self._tend))

    def _tend(self) -> None:
        """Forget who has left, restart who may be now, and let go of ports nobody has."""
        self._tending = False
        if self.busy:
            return
        for name in tuple(self.planner.crew.leaving):
            self._see_off(name)
        for name in tuple(self.owed):
            self._pay(name)
        self.planner.locks.keep(self.planner.crew.ports())

    def _see_off(self, name: str) -> None:
        engine = self.loop.state.engines[name]
        if engine.in_flight or engine.aside or engine.pending is not None:
            return  # its hands are at it: they are the only ones
        acts = self.loop.state.mode is Mode.ACT
        if not acts or engine.process is ProcessState.STOPPED:
            self._part(name)
        elif self.loop.state.shutting_down:
            return
        elif engine.history.wanted or name not in self._stopping:  # somebody started it meanwhile
            self.stop(name)

    def _pay(self, name: str) -> None:
        """A restart that is owed is made as soon as nothing speaks against it."""
        engine, known = self.planner.crew.engines.get(name), self.loop.state.engines.get(name)
        if engine is None or known is None or name in self.planner.crew.leaving:
            del self.owed[name]
            return
        if known.in_flight or known.pending is not None:
            return
        outdated = engine.supervised.is_outdated()
        if not outdated and (not self.owed[name] or engine.supervised.present is not None):
            del self.owed[name]
            return
        reason = self.restraint(name)
        if not reason:
            self.owed[name] = ""
            if not outdated or self._restarted.get(name) != known.generation:
                self.restart(name)
        elif reason != self.owed[name]:
            self.owed[name] = reason
            self.journal.log("warning", "engine.restart_owed", engine=name, reason=reason)

    def restraint(self, name: str) -> str:
        """Why an engine that is to be another process is left alone for now; "" when it is not."""
        state = self.loop.state
        engine = state.engines[name]
        if state.mode is not Mode.ACT:
            return "observe mode"
        if state.shutting_down:
            return _STOPPING
        if state.pause is not None:
            return "paused"
        if not engine.history.wanted:
            return "it is not wanted"
        if engine.process is ProcessState.UNKILLABLE:
            return "what runs cannot be ended"
        spared = cards.spares(state, engine)
        return "" if spared is None else f"it serves: {spared[1]}"

    def _part(self, name: str) -> None:
        gone = self.planner.crew.drop(name)
        self._stopping.discard(name)
        self.planner.memory.leaving = self.planner.crew.leaving
        self.planner.lookout.drop(name)
        state, records = reload.forgotten(self.loop.state, name, time.monotonic())
        self._write((*records, Record("engine.forgotten", "info", (("engine", name),))))
        self._become(state)

        def settle() -> None:
            gone.actor.close()
            gone.supervised.leave()
            self.planner.lookout.settle()

        self._parting = [one for one in self._parting if one.is_alive()]
        self._parting.append(in_background(settle, "reload-settle"))

    def _write(self, records: tuple[Record, ...]) -> None:
        for record in records:
            self.journal.write(record)
