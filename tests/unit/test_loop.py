"""The main loop: what a step that fails for ever looks like from outside."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.core import NAME, rule
from tests.support.simulated import until
from watchdog.core.conditions import View, Window
from watchdog.core.model import Commanded, Decision, Event, Tick, Verb
from watchdog.core.state import EngineSettings, EngineState, PolicySettings, State, Step
from watchdog.daemon.loop import Loop
from watchdog.inbox import Inbox


class Broken:
    """A condition with a bug, until it is ``mended``."""

    samples = frozenset({"engine.process"})
    windows: tuple[Window, ...] = ()
    mended = False

    def __call__(self, view: View) -> bool | None:  # noqa: ARG002 - the contract
        """Raises, or knows nothing."""
        if not self.mended:
            raise RuntimeError("a bug")
        return None


def test_a_loop_whose_steps_fail_does_not_turn() -> None:
    """FACT: while every step raises its age grows, however busy it is, so that /livez can tell."""
    inbox, errors, broken = Inbox(), list[Exception](), Broken()

    def failed(_: Event, error: Exception) -> None:
        errors.append(error)

    loop = Loop(
        state=State({NAME: EngineState(EngineSettings(NAME))}),
        rules=(rule("sick", broken),),
        settings=PolicySettings(),
        inbox=inbox,
        actors={},
        beside=Hands([]),  # type: ignore[arg-type]  # all that the loop asks of one
        watchers=(),
        on_signal=lambda _: None,
        on_error=failed,
        outer_limit=lambda: 1.0,
    )
    born = loop.turned_at
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    for count in range(1, 6):
        inbox.post(Tick(time.monotonic()))
        until(lambda count=count: len(errors) >= count)  # type: ignore[misc]
    assert loop.turned_at == born
    broken.mended = True
    until(lambda: loop.turned_at > born)
    inbox.post(Commanded(time.monotonic(), Verb.SHUTDOWN))
    thread.join(10)
    assert not thread.is_alive()


class Hands:
    """An actor that notes what it is given."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def submit(self, decision: Decision) -> None:
        """Note it."""
        self.notes.append(decision.action)


@pytest.mark.parametrize("works", [True, False])
def test_an_act_is_remembered_before_it_is_done(*, works: bool) -> None:
    """FACT: who is killed in between has it on the account; a memory that fails delays nothing."""
    notes, errors = list[str](), list[Exception]()

    def remember(_: Event, step: Step) -> None:
        notes.extend(f"remembered {one.action}" for one in step.decisions)
        if not works:
            raise RuntimeError("no memory")

    loop = Loop(
        state=State({NAME: EngineState(EngineSettings(NAME))}),
        rules=(),
        settings=PolicySettings(),
        inbox=Inbox(),
        actors={NAME: Hands(notes)},  # type: ignore[dict-item]  # all that the loop asks of one
        beside=Hands([]),  # type: ignore[arg-type]
        watchers=(),
        on_signal=lambda _: None,
        on_error=lambda _, error: errors.append(error),
        remember=remember,
        outer_limit=lambda: 1.0,
    )
    loop.take(Commanded(time.monotonic(), Verb.START))
    assert notes == ["remembered start_engine", "start_engine"]
    assert bool(errors) is not works
