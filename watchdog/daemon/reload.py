"""Puts another configuration in force: planned beside the loop, switched between two steps."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from watchdog.config import ConfigError
from watchdog.core import facts, reload, rule_set
from watchdog.core.model import (
    Commanded,
    EngineSpawned,
    Event,
    Mode,
    ProcessState,
    Record,
    Tick,
    Verb,
)
from watchdog.core.state import EngineSettings, Step
from watchdog.daemon.lookout import in_background
from watchdog.daemon.loop import Loop
from watchdog.daemon.plan import Plan, Planner
from watchdog.daemon.wiring import outer_limit
from watchdog.inbox import Inbox, Task
from watchdog.logs import Journal
from watchdog.metrics import Exporter
from watchdog.rules import RuleError
from watchdog.supervisor.lock import LockHeldError

OWNER = "reload"
STOPPING = "the watchdog is stopping"
_WHY = "its configuration changed"
_GONE = "it left the configuration"


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of one reload. ``errors`` is empty exactly when the file is in force."""

    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    stopping: bool = False


@dataclass(slots=True)
class Wish:
    """Somebody wants the file read again, and may wait for ``done``."""

    owner: str
    done: threading.Event = field(default_factory=threading.Event)
    result: Reloaded = field(default_factory=Reloaded)

    def answer(self, result: Reloaded) -> None:
        """Let the waiting one go."""
        self.result = result
        self.done.set()


@dataclass(slots=True)
class Reloader:
    """Fulfils one wish after the other. All but the planning happens in the loop's thread."""

    planner: Planner
    loop: Loop
    inbox: Inbox
    journal: Journal
    exporter: Exporter
    on_switch: Callable[[], None]
    _wishes: deque[Wish] = field(default_factory=deque)
    _current: Wish | None = None
    _settings: dict[str, EngineSettings] = field(default_factory=dict)

    def ask(self, wish: Wish) -> None:
        """Fulfil ``wish`` when those before it are done."""
        self._wishes.append(wish)
        self._next()

    def hung_up(self) -> None:
        """SIGHUP. Whoever waits reads the file later than now: a flood costs one reading."""
        if not self._wishes:
            self.ask(Wish("SIGHUP"))

    def _next(self) -> None:
        if self._current is not None or not self._wishes:
            return
        wish = self._wishes.popleft()
        if self.loop.state.shutting_down:
            wish.answer(Reloaded(errors=(STOPPING,), stopping=True))
            self._next()
            return
        self._current = wish
        in_background(partial(self._plan, wish), "reload")

    def _plan(self, wish: Wish) -> None:
        """In a thread of its own: reading may wait for a disk, and rules take their time."""
        try:
            plan = self.planner.plan()
        except (ConfigError, RuleError) as error:
            do = partial(self._rejected, wish, tuple(error.lines))
        except LockHeldError as error:
            do = partial(self._rejected, wish, (str(error),))
        except Exception as error:  # noqa: BLE001 - a plug-in's bug must not change anything
            text = " ".join(f"cannot reload: {type(error).__name__}: {error}".split())
            do = partial(self._rejected, wish, (text,))
        else:
            do = partial(self._accepted, wish, plan)
        self.inbox.post(Task(do))

    # --- in the loop's thread -----------------------------------------------------------------

    def _rejected(self, wish: Wish, errors: tuple[str, ...]) -> None:
        self.journal.log("error", "config.rejected", errors=errors, owner=wish.owner)
        self.exporter.reloaded(ok=False)
        self._done(wish, Reloaded(errors=errors))

    def _accepted(self, wish: Wish, plan: Plan) -> None:
        if self.loop.state.shutting_down:
            in_background(plan.discard, "reload-discard")
            self._done(wish, Reloaded(errors=(STOPPING,), stopping=True))
            return
        try:
            restarts = self._switch(plan)
        except Exception:  # a bug, told by the loop: the next reload must not wait for this one
            self._done(wish, Reloaded(errors=("cannot reload: see the log",)))
            raise
        self.journal.log(
            "info",
            "config.reloaded",
            changed=plan.changed,
            needs_restart=plan.needs_restart,
            restarts=restarts,
            sha256=plan.config.sha256,
            owner=wish.owner,
        )
        self.exporter.reloaded(ok=True)
        self._done(wish, Reloaded(plan.changed, plan.needs_restart, restarts))
        self._order(plan, restarts)

    def _done(self, wish: Wish, result: Reloaded) -> None:
        self._current = None
        wish.answer(result)
        self._next()

    def _switch(self, plan: Plan) -> tuple[str, ...]:
        """Nothing here can fail half way: all was made before. The engines that are to restart."""
        before, at = self.planner.now.config, time.monotonic()
        acts = plan.config.watchdog.mode.value == Mode.ACT.value
        restarts = tuple(name for name in plan.restarts if acts and self._wanted(name))
        rules = (rule_set.of(self.planner.now.rules), rule_set.of(plan.rules))
        leaving = {
            name: self.planner.crew.leaving.get(name, engine.history.wanted)
            for name, engine in self.loop.state.engines.items()
            if name not in plan.config.engine
        }
        order = reload.NewOrder(
            rules=rules,
            engines=plan.engines,
            comers=plan.states,
            mode=Mode(plan.config.watchdog.mode.value),
            dropped=plan.dropped,
        )
        self.planner.now.config, self.planner.now.rules = plan.config, plan.rules
        self._settings = {settings.name: settings for settings in plan.engines}
        self.planner.crew.change(plan.muster, leaving)
        self.planner.memory.leaving = leaving
        self.planner.locks.add(plan.locks)
        self.planner.lookout.switch(plan.looking)
        state, records = reload.reloaded(self.loop.state, at, order)
        self.loop.switch(
            state,
            plan.rules,
            plan.config.policy.core(),
            max(outer_limit(before), outer_limit(plan.config)),
        )
        self._write(records)
        self._introduce(plan)
        self.on_switch()
        in_background(self.planner.lookout.settle, "reload-settle")
        return restarts

    def _wanted(self, name: str) -> bool:
        """Whether it is meant to run; what its operator stopped starts as it is then."""
        engine = self.loop.state.engines.get(name)
        if engine is None:
            return False
        return self.planner.crew.leaving.get(name, engine.history.wanted)

    def _introduce(self, plan: Plan) -> None:
        """Facts about who comes are taken in before anything is decided about it."""
        settings = plan.config.policy.core()
        for name, engine in plan.muster.comers.items():
            for event in (*engine.mailbox.open(), *plan.facts.get(name, ())):
                self.loop.state, records = facts.took(self.loop.state, event, settings)
                self._write(records)

    def _order(self, plan: Plan, restarts: tuple[str, ...]) -> None:
        """As an operator would: what leaves is drained and ended, what changed starts anew."""
        self.loop.take(Tick(time.monotonic()))
        if plan.config.watchdog.mode.value == Mode.ACT.value:
            for name in self.planner.crew.leaving:
                self._stop(name)
            for name in restarts:
                self.loop.take(
                    Commanded(time.monotonic(), Verb.RESTART, name, reason=_WHY, owner=OWNER)
                )
        self.inbox.post(Task(self.tend))

    def _stop(self, name: str) -> None:
        self.loop.take(Commanded(time.monotonic(), Verb.STOP, name, reason=_GONE, owner=OWNER))

    # --- afterwards ---------------------------------------------------------------------------

    def watch(self, event: Event, _: Step) -> None:
        """A watcher of the loop: what runs with new settings, and who has left."""
        if isinstance(event, EngineSpawned):
            engine = self.planner.crew.engines.get(event.engine)
            settings = self._settings.get(event.engine)
            fresh = engine is not None and engine.supervised.present is engine.supervised.settings
            if settings is not None and fresh:
                self.loop.state = reload.settled(self.loop.state, settings)
        if self.planner.crew.leaving or isinstance(event, EngineSpawned):
            self.inbox.post(Task(self.tend))

    def tend(self) -> None:
        """Forget who has left, once nothing of it lives, and let go of ports nobody has."""
        if self._current is not None:
            return
        for name in tuple(self.planner.crew.leaving):
            engine = self.loop.state.engines[name]
            rests = not engine.in_flight and engine.pending is None
            observes = self.loop.state.mode is not Mode.ACT
            if observes or (rests and engine.process is ProcessState.STOPPED):
                self._part(name)
            elif rests and engine.history.wanted and not self.loop.state.shutting_down:
                self._stop(name)  # somebody started it again meanwhile
        self.planner.locks.keep(self.planner.crew.ports())

    def _part(self, name: str) -> None:
        gone = self.planner.crew.drop(name)
        self.planner.memory.leaving = self.planner.crew.leaving
        self.planner.lookout.drop(name)
        self.loop.state, records = reload.forgotten(self.loop.state, name, time.monotonic())
        self._write((*records, Record("engine.forgotten", "info", (("engine", name),))))

        def settle() -> None:
            gone.actor.close()
            gone.supervised.leave()
            self.planner.lookout.settle()

        in_background(settle, "reload-settle")

    def _write(self, records: tuple[Record, ...]) -> None:
        for record in records:
            self.journal.write(record)

    def close(self) -> None:
        """Nobody is left waiting when the loop has ended."""
        stopping = Reloaded(errors=(STOPPING,), stopping=True)
        for wish in (*self._wishes, *([self._current] if self._current else ())):
            wish.answer(stopping)
