"""An engine that somebody else starts, in the core: told of always, ended only where allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import GENERATION, NAME, Story, engine, http, process
from tests.support.windows import snapshot
from watchdog.core.model import (
    ActionFinished,
    Cause,
    EngineExited,
    EngineSpawned,
    HoldReason,
    Outcome,
    ProcessState,
    Verb,
    Verdict,
)
from watchdog.core.state import Attach, EngineSettings, EngineState, RestartHistory, State
from watchdog.web import bodies


def attached(attach: Attach, *, there: bool = True) -> Story:
    """One attached engine, which serves or has not been started yet."""
    settings = EngineSettings(NAME, attach=attach)
    one = engine(settings=settings) if there else EngineState(settings)
    return Story(State({NAME: one}))


def held(story: Story) -> set[HoldReason | None]:
    """Why its decisions were not carried out; None among them: one was."""
    return {decision.hold for decision in story.decisions}


def test_a_crash_of_a_reported_engine_leads_to_nothing() -> None:
    """FACT: attached to report, a dead engine is an incident, and every decision is held."""
    story = attached(Attach.REPORT)
    story.exited(10.0)
    story.tick(11.0)
    story.tick(9_000.0)
    assert story.engine.verdict is Verdict.DEAD
    assert held(story) == {HoldReason.OBSERVE}
    assert [r.event for r in story.records if r.event == "incident.opened"] == ["incident.opened"]


def test_one_that_may_be_signalled_is_ended_and_its_next_start_awaited() -> None:
    """FACT: attached to signal, a dead engine is restarted: and its account pays."""
    story = attached(Attach.SIGNAL)
    story.exited(10.0)
    story.tick(11.0)
    assert [act.action for act in story.acts] == ["restart_engine"]
    assert len(story.engine.history.restarts) == 1


@pytest.mark.parametrize("attach", list(Attach))
def test_our_end_is_not_its_end(attach: Attach) -> None:
    """FACT: a shutdown of the watchdog decides nothing about an engine that it is attached to."""
    story = attached(attach)
    done = story.command(Verb.SHUTDOWN, 10.0)
    assert done.decisions == ()
    assert story.state.shutting_down
    assert story.engine.process is ProcessState.RUNNING


def test_a_stop_is_for_whoever_starts_it() -> None:
    """FACT: an operator's stop is held, for somebody would start it again; a restart is made."""
    story = attached(Attach.SIGNAL)
    story.command(Verb.STOP, 10.0)
    assert held(story) == {HoldReason.BLOCKED}
    assert story.engine.history.wanted
    story.command(Verb.RESTART, 20.0)
    assert [act.action for act in story.acts] == ["restart_engine"]


@pytest.mark.parametrize("verb", [Verb.START, Verb.STOP, Verb.RESTART])
def test_no_word_of_an_operator_moves_a_reported_engine(verb: Verb) -> None:
    """FACT: attached to report, no command is carried out."""
    story = attached(Attach.REPORT)
    story.command(verb, 10.0)
    assert held(story) == {HoldReason.OBSERVE}
    assert story.acts == []


def test_one_that_comes_back_serves_again() -> None:
    """FACT: whoever starts it need not ask us: found again, it serves, and all is over."""
    story = attached(Attach.REPORT)
    story.exited(10.0)
    story.tick(11.0)
    story.take(EngineSpawned(20.0, NAME, "0000000b", 7, Cause.UNKNOWN, adopted=True))
    assert story.engine.process is ProcessState.STARTING
    story.read(process(21.0, generation="0000000b"))
    story.read(http(22.0, canary="ok", generation="0000000b"))
    assert story.engine.verdict is Verdict.READY
    assert "incident.resolved" in [record.event for record in story.records]


def test_one_out_of_sight_is_judged_by_what_it_answers() -> None:
    """FACT: without a pid it serves while it answers, and is dead when told to be gone."""
    story = attached(Attach.REPORT, there=False)
    story.take(EngineSpawned(1.0, NAME, "0000000b", None, Cause.UNKNOWN, adopted=True))
    story.read(http(2.0, canary="ok", generation="0000000b"))
    assert (story.engine.leader, story.engine.verdict) == (None, Verdict.READY)
    story.take(EngineExited(9.0, NAME, "0000000b", None, None, Cause.CRASH, "nobody listens"))
    assert story.engine.verdict is Verdict.DEAD


def test_what_is_given_up_is_not_cleared_away_where_nothing_may_be_done() -> None:
    """FACT: orphans of a reported engine are somebody else's, also when it is given up."""
    history = RestartHistory(breaker_open=True)
    settings = EngineSettings(NAME, attach=Attach.REPORT)
    lost = engine(ProcessState.GIVEN_UP, settings=settings, history=history, leader=None)
    story = Story(State({NAME: lost}))
    story.read(process(20.0, leader_alive=False, members=2))
    story.tick(900.0)
    assert story.acts == []


def test_a_watchdog_beside_it_is_alive_whatever_became_of_it() -> None:
    """FACT: the kubelet must not restart a sidecar for an engine that is somebody else's."""
    history = RestartHistory(breaker_open=True)
    settings = EngineSettings(NAME, attach=Attach.SIGNAL)
    lost = engine(ProcessState.GIVEN_UP, settings=settings, history=history, leader=None)
    assert bodies.live(snapshot(State({NAME: lost})), 0.0) == (True, {"ok": True, "reasons": []})
    ours = engine(ProcessState.GIVEN_UP, history=history, leader=None)
    assert bodies.live(snapshot(State({NAME: ours})), 0.0)[0] is False


def test_a_stop_that_signals_nobody_leaves_a_serving_engine_as_it_is() -> None:
    """FACT: who may not be signalled serves on, keeps its leader and its account, as recorded."""
    story = attached(Attach.SIGNAL)
    before = story.engine
    story.command(Verb.RESTART, 10.0)
    done = Outcome(
        "restart_engine", before.subject, ok=False, took=0.1, explanation="no", untouched=True
    )
    story.take(ActionFinished(11.0, done))
    after = story.engine
    assert (after.process, after.leader) == (ProcessState.RUNNING, before.leader)
    assert (after.history.restarts, after.in_flight, after.failed_at) == ((), "", None)
    finished = dict(story.events("action.finished")[-1].keys)
    assert (finished["result"], finished["explanation"]) == ("failed", "no")


def test_a_decision_says_about_which_start_it_is() -> None:
    """FACT: the hands can tell whether what was judged is what they would end."""
    story = attached(Attach.SIGNAL)
    story.exited(10.0)
    story.tick(11.0)
    story.command(Verb.RESTART, 12.0)
    assert {act.generation for act in story.acts} == {GENERATION}


@pytest.mark.parametrize("verb", [Verb.STOP, Verb.RESTART])
def test_no_command_for_what_cannot_be_seen(verb: Verb) -> None:
    """FACT: without a pid nobody can be ended: it is refused before anything is begun."""
    story = attached(Attach.SIGNAL, there=False)
    story.take(EngineSpawned(1.0, NAME, "0000000b", None, Cause.UNKNOWN, adopted=True))
    story.command(verb, 2.0)
    assert held(story) == {HoldReason.BLOCKED}
    assert "cannot be seen" in story.decisions[-1].detail
    assert story.engine.process is ProcessState.STARTING


def test_what_came_during_a_stop_is_not_stopped() -> None:
    """FACT: a stop that found another start instead says nothing about that one."""
    story = attached(Attach.SIGNAL)
    engine = story.engine
    going = replace(engine, process=ProcessState.STOPPING, in_flight="stop_engine")
    story.state = story.state.with_engine(going)
    story.take(EngineSpawned(10.0, NAME, "0000000b", 7, Cause.UNKNOWN, adopted=True))
    story.take(ActionFinished(11.0, Outcome("stop_engine", engine.subject, ok=True, took=0.1)))
    assert (story.engine.process, story.engine.leader) == (ProcessState.STARTING, 7)
