"""What an adopted engine is to become: as it was wanted, in every state of its life."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import GENERATION, NAME, Story
from watchdog.core.model import Cause, EngineSpawned, Mode, ProcessState
from watchdog.core.state import EngineSettings, EngineState, RestartHistory, State, StoppedBy


def found(history: RestartHistory, mode: Mode = Mode.ACT, *, ready: bool = True) -> Story:
    """A watchdog that has just found its engine alive; it was spawned at second 10."""
    settings = EngineSettings(NAME, start_deadline=100.0)
    story = Story()
    story.state = State(engines={NAME: EngineState(settings, history=history)}, mode=mode)
    story.take(
        EngineSpawned(
            60.0,
            NAME,
            GENERATION,
            7,
            Cause.UNKNOWN,
            adopted=True,
            ready=ready,
            spawned_at=10.0,
            ready_at=20.0 if ready else None,
        )
    )
    return story


@pytest.mark.parametrize("by", list(StoppedBy))
@pytest.mark.parametrize("ready", [True, False])
def test_a_stop_that_was_under_way_is_made(by: StoppedBy, *, ready: bool) -> None:
    """FACT: nobody wants it to run, so it is ended, once, and who had stopped it stays the same."""
    story = found(RestartHistory(wanted=False, stopped_by=by), ready=ready)
    assert [act.action for act in story.acts] == ["stop_engine"]
    story.tick(61.0)
    story.finished(62.0, "stop_engine")
    story.tick(90.0)
    assert len(story.acts) == 1
    engine = story.engine
    assert (engine.process, engine.pending) == (ProcessState.STOPPED, None)
    assert (engine.history.wanted, engine.history.stopped_by) == (False, by)


def test_what_is_wanted_is_let_run() -> None:
    """FACT: an adoption of a wanted engine decides nothing, and costs nothing."""
    story = found(RestartHistory())
    assert story.decisions == []
    assert story.engine.process is ProcessState.RUNNING
    assert story.engine.history.restarts == ()


def test_who_observes_ends_nobody() -> None:
    """FACT: while observing an unwanted engine runs on, and nothing is decided about it."""
    story = found(RestartHistory(wanted=False, stopped_by=StoppedBy.OPERATOR), Mode.OBSERVE)
    assert story.acts == []
    assert story.engine.pending is None


def test_the_time_for_a_start_goes_on() -> None:
    """FACT: the deadline of a start counts from its spawn, not from its adoption."""
    story = found(RestartHistory(), ready=False)
    assert (story.engine.process, story.engine.started_at) == (ProcessState.STARTING, 10.0)
    story.tick(109.0)
    assert story.acts == []
    story.tick(111.0)
    assert [act.action for act in story.acts] == ["restart_engine"]


def test_a_breaker_stays_open() -> None:
    """FACT: an engine that lives is let live although its budget is spent: it serves."""
    history = replace(RestartHistory(), breaker_open=True)
    story = found(history)
    assert story.engine.process is ProcessState.RUNNING
    assert story.engine.history.breaker_open
