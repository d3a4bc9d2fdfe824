"""What is left of an engine that was given up: ended once it is seen to live, and not before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import GENERATION, NAME, Story, process, serving
from watchdog.core import clearing
from watchdog.core.model import Cause, Decision, EngineSpawned, Mode, ProcessState, Verb, Verdict
from watchdog.core.state import Budget, EngineSettings, EngineState, PolicySettings, State

NOTHING = Budget(0, 3600.0)
START = EngineSettings(NAME, start_timeout=5.0)


def given_up(at: float = 10.0) -> Story:
    """An engine whose leader crashed at ``at`` with nothing left of its budget."""
    story = serving(restart_budget=NOTHING)
    story.exited(at)
    assert story.engine.process is ProcessState.GIVEN_UP
    assert story.engine.history.breaker_open
    return story


def cleared(story: Story) -> list[Decision]:
    """What this stage did."""
    return [act for act in story.acts if act.rule == clearing.RULE]


def orphans(at: float, members: int = 2) -> Story:
    """What a look finds of it is told."""
    return given_up().read(process(at, leader_alive=False, members=members))


def test_what_outlives_the_leader_is_ended_and_it_stays_given_up() -> None:
    """FACT: one stop with the cause of the failure; state and reasons are what they were."""
    story = orphans(11.0)
    (act,) = cleared(story)
    assert (act.action, act.cause, act.detail) == (
        "stop_engine",
        Cause.CRASH,
        "given up: 2 of its processes live on",
    )
    assert story.engine.process is ProcessState.STOPPING
    story.finished(12.0, "stop_engine")
    engine = story.engine
    assert (engine.process, engine.verdict) == (ProcessState.GIVEN_UP, Verdict.GIVEN_UP)
    assert (engine.reasons, engine.cause, engine.generation) == (("it crashed",), Cause.CRASH, "")
    assert engine.history.wanted
    story.read(process(13.0, leader_alive=False, members=2))
    story.tick(60.0)
    assert len(cleared(story)) == 1
    assert [one.resolved_at for one in story.state.incidents] == [None]


def test_nothing_is_done_about_an_empty_set() -> None:
    """FACT: what nobody saw living is not stopped; a look from before it was given up is none."""
    assert cleared(orphans(11.0, members=0)) == []
    story = given_up()
    story.tick(14.0)
    assert cleared(story) == []


def test_what_cannot_be_stopped_is_tried_once() -> None:
    """FACT: a stop that fails is told and leaves it given up; what survives KILL is unkillable."""
    story = orphans(11.0)
    story.finished(12.0, "stop_engine", ok=False)
    assert story.engine.process is ProcessState.GIVEN_UP
    story.read(process(13.0, leader_alive=False, members=2))
    assert len(cleared(story)) == 1
    story = orphans(11.0)
    story.finished(12.0, "stop_engine", ok=False, unkillable=True)
    assert story.engine.process is ProcessState.UNKILLABLE


@pytest.mark.parametrize("how", ["pause", "observe", "leave"])
def test_it_waits_for_whoever_wants_nothing_done(how: str) -> None:
    """FACT: paused, observing or leaving it signals nobody; after a pause it does."""
    story = given_up()
    match how:
        case "pause":
            story.command(Verb.PAUSE, 10.5)
        case "observe":
            story.state = replace(story.state, mode=Mode.OBSERVE)
        case _:
            story.command(Verb.LEAVE, 10.5)
    story.read(process(11.0, leader_alive=False, members=2))
    assert cleared(story) == []
    if how == "pause":
        story.command(Verb.RESUME, 12.0)
        assert len(cleared(story)) == 1


def test_a_start_that_hangs_with_the_breaker_open_is_ended() -> None:
    """FACT: it does not stay ``starting``: its set is ended, and it is given up."""
    policy = PolicySettings(restart_budget=NOTHING)
    story = Story(State(engines={NAME: EngineState(START)}), settings=policy)
    story.tick(0.0)
    story.take(EngineSpawned(0.0, NAME, GENERATION, 1, Cause.OPERATOR))
    story.finished(0.0, "start_engine")
    for at in range(1, 8):
        story.read(process(float(at)))
    (act,) = cleared(story)
    assert (act.cause, act.detail) == (Cause.START_TIMEOUT, "given up: its start hangs")
    story.exited(8.0, Cause.START_TIMEOUT)
    story.finished(8.1, "stop_engine")
    assert story.engine.process is ProcessState.GIVEN_UP
    assert story.engine.cause is Cause.START_TIMEOUT
    assert "no progress of the start for 5 s" in story.engine.reasons[0]
    (exited,) = story.events("engine.exited")
    assert dict(exited.keys)["cause"] == "start_timeout"


def test_an_operator_who_comes_meanwhile_has_his_way() -> None:
    """FACT: a start while it is cleared away follows; a stop leaves it stopped."""
    story = orphans(11.0)
    story.command(Verb.START, 11.5)
    story.finished(12.0, "stop_engine")
    assert story.engine.in_flight == "restart_engine"
    story = orphans(11.0)
    story.command(Verb.STOP, 11.5)
    story.finished(12.0, "stop_engine")
    assert story.engine.process is ProcessState.STOPPED
