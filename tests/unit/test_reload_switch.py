"""A switch that cannot be made changes nothing; what follows from one that can, for the core."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from watchdog.config import Config, EngineConfig
from watchdog.core import reload, rule_set
from watchdog.core.model import Cause, EngineExited, Event, Mode, Tick, Verb
from watchdog.core.reload import NewOrder
from watchdog.core.state import (
    EngineSettings,
    EngineState,
    RestartHistory,
    State,
    StoppedBy,
)
from watchdog.daemon.box import EngineBox
from watchdog.daemon.crew import Crew, Muster
from watchdog.daemon.gates import Gates
from watchdog.daemon.mailbox import Mailbox
from watchdog.daemon.plan import InForce, Plan
from watchdog.daemon.reload import Reloader, Wish
from watchdog.daemon.wiring import Engine
from watchdog.inbox import Inbox, Task
from watchdog.supervisor.memory_ledger import MemoryLedger

NAME = "main"


@dataclass
class Heard:
    """What the journal, the exporter and the aftercare were told."""

    lines: list[str] = field(default_factory=list)
    reloaded_ok: list[bool] = field(default_factory=list)
    tended: int = 0
    busy: bool = False

    def log(self, level: str, event: str, **_: object) -> None:
        """As ``Journal.log``."""
        self.lines.append(f"{level} {event}")

    def reloaded(self, *, ok: bool) -> None:
        """As ``Exporter.reloaded``."""
        self.reloaded_ok.append(ok)

    def let_go(self) -> None:
        """As ``Aftercare.let_go``."""

    def tend_soon(self) -> None:
        """As ``Aftercare.tend_soon``."""
        self.tended += 1


def test_a_bug_in_the_switch_changes_nothing() -> None:
    """FACT: what raises there is an error of that reload: the plan is let go of, and it is said."""
    before, gone = State(), threading.Event()
    config = Config(engine={NAME: EngineConfig(command=("x",))})
    none, broken = cast("Any", None), cast("Event", object())
    comer = Engine(EngineConfig(), none, none, none, Mailbox(lambda _: None))
    plan = Plan(config, (), (), (), (), muster=Muster({NAME: comer}, {}), facts={NAME: (broken,)})
    plan.made(gone.set)
    crew, heard, inbox = Crew(EngineBox({}, MemoryLedger())), Heard(), Inbox()
    now = InForce(Config(), ())
    planner = SimpleNamespace(now=now, crew=crew, plan=lambda: plan)
    loop = SimpleNamespace(state=before)
    told = cast("Any", heard)
    reloader = Reloader(
        cast("Any", planner), cast("Any", loop), inbox, told, told, told, lambda: None
    )
    wish = Wish("somebody")
    reloader.ask(wish)
    item = inbox.next(30.0)
    assert isinstance(item, Task)
    item.do()
    assert wish.done.is_set()
    assert wish.result.errors[0].startswith("cannot reload: AssertionError")
    assert (loop.state, crew.engines, now.config) == (before, {}, Config())
    assert (heard.lines, heard.reloaded_ok) == (["error config.rejected"], [False])
    assert (heard.tended, heard.busy) == (1, False)
    assert gone.wait(30.0)


def under(engine: EngineState, mode: Mode, **histories: RestartHistory) -> EngineState:
    """The engine after a reload that leaves it in the file."""
    rules = rule_set.of(())
    order = NewOrder((rules, rules), (engine.settings,), {}, mode, histories=histories)
    state, _ = reload.reloaded(State(engines={NAME: engine}), 1.0, order)
    return state.engines[NAME]


def test_who_observes_carries_out_nothing_that_waits() -> None:
    """FACT: a command that waits for the action under way is dropped by observe, and only by it."""
    engine = EngineState(EngineSettings(NAME), in_flight="restart_engine", pending=Verb.STOP)
    assert under(engine, Mode.ACT).pending is Verb.STOP
    assert under(engine, Mode.OBSERVE) == replace(engine, pending=None)


def test_who_comes_back_has_its_account_back() -> None:
    """FACT: all of it, and what was to end it is not done."""
    stopped = RestartHistory(wanted=False, stopped_by=StoppedBy.OPERATOR)
    account = RestartHistory(failures=2, breaker_open=True, given_up=Cause.CUDA_OOM)
    engine = EngineState(EngineSettings(NAME), history=stopped, pending=Verb.STOP)
    back = under(engine, Mode.ACT, main=account)
    assert (back.history, back.pending) == (account, None)


def test_a_closed_mailbox_is_silent() -> None:
    """FACT: what an actor reports after its engine was forgotten reaches nobody."""
    passed: list[Event] = []
    mailbox = Mailbox(passed.append)
    mailbox.open()
    mailbox(Tick(1.0))
    mailbox.close()
    mailbox(EngineExited(2.0, NAME, "g", 0, None, Cause.CRASH))
    assert passed == [Tick(1.0)]


def gates(**keys: Any) -> Gates:  # noqa: ANN401 - fields of Gates
    """Gates that look at nothing."""
    return Gates({}, cast("Any", None), {}, **keys)


def test_the_wait_for_a_place_is_as_long_as_its_ladder() -> None:
    """FACT: the patience is asked while it waits, and each that is in the way has all of it."""
    others: list[str | None] = ["a", "a", "b", "b", None]
    limits = iter([0.0, 30.0, 30.0, 30.0, 30.0])
    step = gates(patience=lambda: next(limits) or 30.0).place(NAME, lambda: others.pop(0))
    assert step.look() is None
    assert others == []
    step = gates(patience=lambda: 0.0).place(NAME, lambda: "a")
    refusal = step.look()
    assert refusal is not None
    assert refusal.cause is Cause.PLACE_TAKEN


def test_nobody_waits_for_a_place_that_is_not_wanted() -> None:
    """FACT: a stop that came meanwhile ends the wait, which is nobody's failure."""
    step = gates(unwanted=lambda name: name == NAME).place(NAME, lambda: "a")
    refusal = step.look()
    assert refusal is not None
    assert (refusal.cause, refusal.explanation) == (
        Cause.OPERATOR,
        "cannot start main: it is no longer asked for",
    )
