"""The main loop. Nothing is decided here: events go in, what the core says is carried out.

The loop's thread is the only writer of state. What others read is the last published snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from watchdog.core import cards, commands, rule_set
from watchdog.core.engine import step
from watchdog.core.model import (
    Commanded,
    Decision,
    Event,
    Mode,
    ProcessState,
    Seconds,
    SubjectKind,
    Tick,
    Verb,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import Rule
from watchdog.core.state import PolicySettings, State, Step
from watchdog.executor import Actor, Beside
from watchdog.inbox import Inbox, Item, Request, Signalled, Task

_HEARTBEAT: Seconds = 1.0
"""Time itself is told at least this often, however much else is: durations end by it."""


class Loop:
    """Takes items from the inbox, one at a time, and hands on what each leads to.

    ``remember`` sees every step before its decisions are handed to the actors: an act that a death
    of ours would take off the account must not be done. ``watchers`` see it afterwards: journal,
    metrics and snapshot are not on the path from an exit to the next start. A shutdown that is not
    complete after ``outer_limit`` seconds is given up; it is asked when one begins.
    """

    def __init__(  # noqa: PLR0913 - everything that the loop touches is handed in
        self,
        *,
        state: State,
        rules: Sequence[Rule],
        settings: PolicySettings,
        inbox: Inbox,
        actors: Mapping[str, Actor],
        beside: Beside,
        watchers: Sequence[Callable[[Event, Step], None]],
        on_signal: Callable[[int], Commanded | None],
        on_error: Callable[[Event, Exception], None],
        remember: Callable[[Event, Step], None] = lambda _event, _step: None,
        outer_limit: Callable[[], Seconds],
    ) -> None:
        self.state = state
        self.turned_at = time.monotonic()
        self._rules = rule_set.of(rules)
        self._settings = settings
        self._inbox = inbox
        self._actors = actors
        self._beside = beside
        self._watchers = watchers
        self._on_signal = on_signal
        self._on_error = on_error
        self._remember = remember
        self._outer_limit = outer_limit
        self._waiting: list[Request] = []
        self._wake_at: Seconds | None = None
        self._ticked_at: Seconds = 0.0
        self._leave_by: Seconds | None = None

    def run(self) -> None:
        """Turn until a shutdown is complete. A stop that came already is obeyed before a start."""
        self._handle(self._inbox.next(0.0))
        while not self._finished():
            now = time.monotonic()
            wake_in = _HEARTBEAT if self._wake_at is None else self._wake_at - now
            self._handle(self._inbox.next(min(max(wake_in, 0.0), _HEARTBEAT)))
            if time.monotonic() - self._ticked_at >= _HEARTBEAT:
                self.take(Tick(time.monotonic()))

    def switch(self, state: State, rules: RuleSet, settings: PolicySettings) -> None:
        """Go on from ``state`` with all of these. Only for the loop's own thread, in a ``Task``."""
        self.state, self._rules, self._settings = state, rules, settings

    def _handle(self, item: Item | None) -> None:
        match item:
            case None:
                self.take(Tick(time.monotonic()))
            case Signalled():
                command = self._on_signal(item.number)
                if command is not None:
                    self.take(command)
            case Request():
                self._waiting.append(item)
                self.take(item.command)
            case Task():
                self._do(item)
            case _:
                self.take(item)

    def _do(self, task: Task) -> None:
        try:
            task.do()
        except Exception as error:  # noqa: BLE001 - as below
            self._on_error(Tick(time.monotonic()), error)

    def take(self, event: Event) -> None:
        """One step. Only for the loop's own thread."""
        try:
            self._turn(event)
        except Exception as error:  # noqa: BLE001 - a bug must not take the engine's keeper away
            self._wake_at = None  # or what raised at this moment would be tried without a pause
            self._on_error(event, error)

    def _turn(self, event: Event) -> None:
        if isinstance(event, Tick):
            self._ticked_at = time.monotonic()
        done = step(self.state, event, self._rules, self._settings)
        self.state = done.state
        self._wake_at = done.wake_at
        self._kept(event, done)
        for decision in done.decisions:
            self._carry_out(decision)
        for watcher in self._watchers:
            watcher(event, done)
        self._answer()
        if self.state.shutting_down and self._leave_by is None:
            self._leave_by = event.at + self._outer_limit()
        self.turned_at = time.monotonic()  # a step that fails is no turn

    def _kept(self, event: Event, done: Step) -> None:
        """A memory that fails must not keep an engine down."""
        try:
            self._remember(event, done)
        except Exception as error:  # noqa: BLE001 - as above
            self._on_error(event, error)

    def _carry_out(self, decision: Decision) -> None:
        if decision.hold is not None:
            return
        if decision.target.kind is SubjectKind.ENGINE:
            self._actors[decision.target.name].submit(decision)
        else:
            self._beside.submit(decision)

    def _answer(self) -> None:
        """Let go of the requests whose engines have come to rest."""
        for request in tuple(self._waiting):
            if self._at_rest(request.command.engine):
                request.error = self._trouble(request.command)
                self._waiting.remove(request)
                request.done.set()

    def _at_rest(self, engine: str) -> bool:
        return not any(
            e.in_flight or e.pending is not None
            for e in self.state.engines.values()
            if engine in {"", e.name}
        )

    def _trouble(self, command: Commanded) -> str | None:
        """Why the command did not lead to what it asked for; None when it did."""
        if command.verb in {Verb.PAUSE, Verb.RESUME}:
            return None
        if self.state.mode is not Mode.ACT:
            return "observe mode: nothing is started, stopped or signalled"
        for engine in self.state.engines.values():
            if command.engine not in {"", engine.name}:
                continue
            foreign = commands.not_ours(engine, command.verb)
            if foreign is not None:
                return f"{engine.name}: {foreign[1]}"
            spared = cards.spares(self.state, engine) if command.verb is Verb.RESTART else None
            if spared is not None:
                return f"{engine.name}: not restarted while it serves: {spared[1]}"
            if engine.process in {ProcessState.UNKILLABLE, ProcessState.GIVEN_UP} or (
                command.verb in {Verb.START, Verb.RESTART} and engine.failed_at is not None
            ):
                return f"{engine.name}: {engine.process.value}: {'; '.join(engine.reasons)}"
        return None

    def _finished(self) -> bool:
        if not self.state.shutting_down:
            return False
        late = self._leave_by is not None and time.monotonic() >= self._leave_by
        return late or self._at_rest("")
