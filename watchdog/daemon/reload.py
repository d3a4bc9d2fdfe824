"""Puts another configuration in force: planned beside the loop, switched between two steps."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from watchdog.config import ConfigError
from watchdog.core import facts, reload, rule_set
from watchdog.core.model import (
    Mode,
    Record,
    Tick,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.state import (
    PolicySettings,
    RestartHistory,
    State,
    StoppedBy,
)
from watchdog.daemon.aftercare import Aftercare
from watchdog.daemon.lookout import in_background
from watchdog.daemon.loop import Loop
from watchdog.daemon.plan import Plan, Planner
from watchdog.inbox import Inbox, Task
from watchdog.logs import Journal
from watchdog.metrics import Exporter
from watchdog.rules import RuleError
from watchdog.supervisor.lock import LockHeldError

STOPPING = "the watchdog is stopping"


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of one reload. ``errors`` is empty exactly when the file is in force.

    ``restarts`` are under way; ``held`` are owed, each with the reason why not yet.
    """

    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    errors: tuple[str, ...] = ()
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class _Change:
    """What the loop goes on with."""

    state: State
    records: tuple[Record, ...]
    rules: RuleSet
    settings: PolicySettings
    leaving: dict[str, RestartHistory]


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
    care: Aftercare
    on_switch: Callable[[], None]
    _wishes: deque[Wish] = field(default_factory=deque)
    _current: Wish | None = None

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
        self._current, self.care.busy = wish, True
        in_background(partial(self._plan, wish), "reload")

    def _plan(self, wish: Wish) -> None:
        """In a thread of its own: reading may wait for a disk, and rules take their time."""
        self.care.let_go()
        try:
            plan = self.planner.plan()
        except (ConfigError, RuleError) as error:
            do = partial(self._rejected, wish, tuple(error.lines))
        except LockHeldError as error:
            do = partial(self._rejected, wish, (str(error),))
        except Exception as error:  # noqa: BLE001 - a plug-in's bug must not change anything
            do = partial(self._rejected, wish, (_one_line(error),))
        else:
            do = partial(self._accepted, wish, plan)
        self.inbox.post(Task(do))

    # --- in the loop's thread -----------------------------------------------------------------

    def _rejected(self, wish: Wish, errors: tuple[str, ...]) -> None:
        self.journal.log("error", "config.rejected", errors=errors, owner=wish.owner)
        self.exporter.reloaded(ok=False)
        self._done(wish, Reloaded(errors=errors))
        self.care.tend_soon()

    def _accepted(self, wish: Wish, plan: Plan) -> None:
        if self.loop.state.shutting_down:
            in_background(plan.discard, "reload-discard")
            self._done(wish, Reloaded(errors=(STOPPING,), stopping=True))
            return
        try:
            change = self._changed(plan)
        except Exception as error:  # noqa: BLE001 - a bug: all stays as it was, and it is said
            in_background(plan.discard, "reload-discard")
            self._rejected(wish, (_one_line(error),))
            return
        result = self._switch(plan, change)
        try:
            self._tell(wish, plan, change.records, result)
        finally:
            self._done(wish, result)
        self._order(plan, result.restarts)

    def _tell(self, wish: Wish, plan: Plan, records: tuple[Record, ...], result: Reloaded) -> None:
        self._write(records)
        self.on_switch()
        self.journal.log(
            "info",
            "config.reloaded",
            changed=result.changed,
            needs_restart=result.needs_restart,
            restarts=result.restarts,
            held=[f"{name}: {reason}" for name, reason in result.held],
            sha256=plan.config.sha256,
            owner=wish.owner,
        )
        self.exporter.reloaded(ok=True)

    def _done(self, wish: Wish, result: Reloaded) -> None:
        self._current, self.care.busy = None, False
        wish.answer(result)
        self._next()

    def _changed(self, plan: Plan) -> _Change:
        """All that could fail of the switch; nothing has changed after it."""
        leaving = self._leaving(plan)
        rules = (rule_set.of(self.planner.now.rules), rule_set.of(plan.rules))
        order = reload.NewOrder(
            rules=rules,
            engines=plan.engines,
            comers=plan.states,
            mode=Mode(plan.config.watchdog.mode.value),
            dropped=plan.dropped,
            histories=self._histories(plan),
            reread=plan.reread,
        )
        settings = plan.config.policy.core()
        state, records = reload.reloaded(self.loop.state, time.monotonic(), order)
        for name, engine in plan.muster.comers.items():
            # Facts about who comes are taken in before anything is decided about it.
            for event in (*engine.mailbox.open(), *plan.facts.get(name, ())):
                state, more = facts.took(state, event, settings)
                records = (*records, *more)
        return _Change(state, records, rules[1], settings, leaving)

    def _leaving(self, plan: Plan) -> dict[str, RestartHistory]:
        """Who is to end, with the account from before that."""
        before = self.planner.crew.leaving
        known = {
            name: before.get(name, engine.history)
            for name, engine in self.loop.state.engines.items()
            if name not in plan.config.engine
        }
        return {**known, **plan.accounts}

    def _histories(self, plan: Plan) -> dict[str, RestartHistory]:
        """Who comes back has the account that it had; who is no standby any more is wanted."""
        found = {}
        for name, config in plan.config.engine.items():
            engine = self.loop.state.engines.get(name)
            if engine is None:
                continue
            known = self.planner.crew.leaving.get(name, engine.history)
            history = replace(known, starts=engine.history.starts)
            was = self.planner.crew.engines[name].config
            awaited = was.standby and not config.standby
            if awaited and history.stopped_by is StoppedBy.NOBODY:
                history = replace(history, wanted=True)
            if history != engine.history:
                found[name] = history
        return found

    def _switch(self, plan: Plan, change: _Change) -> Reloaded:
        """Assignments alone: whatever can fail was done before."""
        planner = self.planner
        planner.now.config, planner.now.rules = plan.config, plan.rules
        planner.crew.change(plan.muster, change.leaving)
        planner.memory.leaving = change.leaving
        planner.locks.add(plan.locks)
        planner.lookout.switch(plan.looking)
        self.loop.switch(change.state, change.rules, change.settings)
        in_background(planner.lookout.settle, "reload-settle")
        wanted = [n for n in self._due(plan) if change.state.engines[n].history.wanted]
        held = {name: reason for name in wanted if (reason := self.care.restraint(name))}
        owed = {name: held.get(name, "") for name in wanted}
        self.care.switched({one.name: one for one in plan.engines}, owed)
        restarts = tuple(name for name in wanted if name not in held)
        return Reloaded(plan.changed, plan.needs_restart, restarts, tuple(held.items()))

    def _due(self, plan: Plan) -> tuple[str, ...]:
        """Who is to restart by this file, or was by one before and has not run since."""
        engines = self.planner.crew.engines
        return tuple(
            name
            for name in plan.config.engine
            if name in plan.restarts
            or (self.care.owed.get(name) and engines[name].supervised.present is None)
        )

    def _order(self, plan: Plan, restarts: tuple[str, ...]) -> None:
        """As an operator would: what leaves is drained and ended, what changed starts anew."""
        self.loop.take(Tick(time.monotonic()))
        if plan.config.watchdog.mode.value == Mode.ACT.value:
            for name in self.planner.crew.leaving:
                self.care.stop(name)
            for name in restarts:
                self.care.restart(name)
        self.care.tend_soon()

    def _write(self, records: tuple[Record, ...]) -> None:
        for record in records:
            self.journal.write(record)

    def close(self) -> None:
        """Nobody is left waiting when the loop has ended."""
        stopping = Reloaded(errors=(STOPPING,), stopping=True)
        for wish in (*self._wishes, *([self._current] if self._current else ())):
            wish.answer(stopping)


def _one_line(error: Exception) -> str:
    return " ".join(f"cannot reload: {type(error).__name__}: {error}".split())
