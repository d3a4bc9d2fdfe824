"""Commands: what an operator gets, and what no command can do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import Story, restarting, serving
from watchdog.core.model import Cause, Commanded, HoldReason, Mode, ProcessState, Verb
from watchdog.core.state import EngineSettings, EngineState, RestartHistory, State


def _actions(story: Story) -> list[str]:
    return [act.action for act in story.acts]


def _given_up(*, wanted: bool = True) -> Story:
    history = RestartHistory(breaker_open=True, wanted=wanted, starts=4)
    lost = EngineState(EngineSettings("main"), ProcessState.GIVEN_UP, history=history)
    return Story(State({"main": lost}))


def test_stop_is_sticky() -> None:
    """A stopped engine stays stopped until somebody starts it."""
    story = serving()
    story.command(Verb.STOP, 10.0)
    story.exited(11.0, Cause.SIGNAL)
    story.finished(12.0, "stop_engine")
    story.tick(9999.0)
    assert _actions(story) == ["stop_engine"]
    assert story.engine.process is ProcessState.STOPPED
    story.command(Verb.START, 10_000.0)
    assert _actions(story) == ["stop_engine", "start_engine"]


def test_restart_outranks_budget_breaker_and_pause_and_is_not_charged() -> None:
    """An operator's restart happens whatever the account says, and leaves it as it was."""
    story = _given_up()
    story.command(Verb.PAUSE, 1.0)
    story.command(Verb.RESTART, 2.0)
    assert _actions(story) == ["restart_engine"]
    assert story.acts[0].cause is Cause.OPERATOR
    assert story.engine.history.restarts == ()
    assert story.engine.history.breaker_open


@pytest.mark.parametrize("verb", [Verb.START, Verb.STOP])
def test_what_is_so_already_needs_no_action(verb: Verb) -> None:
    """A start of what runs and a stop of what does not decide nothing."""
    story = serving() if verb is Verb.START else _stopped()
    assert not story.command(verb, 10.0).decisions


def _stopped() -> Story:
    story = serving()
    story.command(Verb.STOP, 5.0)
    story.finished(6.0, "stop_engine")
    story.decisions.clear()
    return story


def test_a_stop_waits_for_the_restart_in_flight() -> None:
    """Stop during a restart: no second action until the first has ended, then the stop."""
    story = restarting()
    story.command(Verb.STOP, 11.0)
    assert _actions(story) == ["restart_engine"]
    assert story.engine.pending is Verb.STOP
    story.spawned(12.0, "0000000b")
    story.finished(12.1, "restart_engine")
    assert _actions(story) == ["restart_engine", "stop_engine"]
    assert story.engine.pending is None


def test_a_stop_follows_a_restart_that_failed() -> None:
    """What the failed restart left behind is stopped too, and nothing is retried."""
    story = restarting()
    story.command(Verb.STOP, 11.0)
    story.finished(12.0, "restart_engine", ok=False, cause=Cause.PORT_IN_USE)
    story.finished(13.0, "stop_engine")
    story.tick(999.0)
    assert _actions(story) == ["restart_engine", "stop_engine"]


def test_the_later_command_replaces_the_waiting_one() -> None:
    """Stop, then start, during a restart: the restart is what the operator wanted."""
    story = restarting()
    story.command(Verb.STOP, 11.0)
    story.command(Verb.START, 11.5)
    story.spawned(12.0, "0000000b")
    story.finished(12.1, "restart_engine")
    assert _actions(story) == ["restart_engine"]
    assert story.engine.history.wanted


def test_reset_breaker_closes_it_and_starts_what_should_run() -> None:
    """The account is cleared and the engine started, by the operator's word."""
    story = _given_up()
    story.command(Verb.RESET_BREAKER, 10.0)
    assert _actions(story) == ["restart_engine"]
    assert not story.engine.history.breaker_open
    assert [r.event for r in story.records].count("breaker.closed") == 1


def test_reset_breaker_of_a_closed_one_says_nothing() -> None:
    """No line tells of a breaker that was not open."""
    story = serving()
    story.command(Verb.RESET_BREAKER, 10.0)
    assert not story.events("breaker.closed")
    assert not story.acts


def test_reset_breaker_leaves_a_stopped_engine_stopped() -> None:
    """It starts an engine that should be running, and no other."""
    story = _stopped()
    story.command(Verb.RESET_BREAKER, 10.0)
    assert not story.acts


def test_reset_breaker_during_a_stop_leaves_the_engine_stopped() -> None:
    """As above while the stop is still in flight."""
    story = serving()
    story.command(Verb.STOP, 10.0)
    story.command(Verb.RESET_BREAKER, 11.0)
    story.finished(12.0, "stop_engine")
    assert _actions(story) == ["stop_engine"]
    assert not story.engine.history.wanted


def test_reset_breaker_does_not_replace_a_waiting_stop() -> None:
    """Stop, then reset-breaker, during a restart: the engine ends up stopped."""
    story = restarting()
    story.command(Verb.STOP, 11.0)
    story.command(Verb.RESET_BREAKER, 11.5)
    story.spawned(12.0, "0000000b")
    story.finished(12.1, "restart_engine")
    assert _actions(story) == ["restart_engine", "stop_engine"]


@pytest.mark.parametrize("verb", [Verb.START, Verb.RESTART, Verb.RESET_BREAKER])
def test_nothing_replaces_a_waiting_shutdown(verb: Verb) -> None:
    """After SIGTERM the engine is stopped, whatever is asked for meanwhile."""
    story = restarting()
    story.command(Verb.SHUTDOWN, 11.0)
    story.command(verb, 11.5)
    story.spawned(12.0, "0000000b")
    story.finished(12.1, "restart_engine")
    if story.engine.in_flight == "restart_engine":
        story.finished(12.2, "restart_engine")
    assert story.engine.in_flight == "stop_engine"


def test_a_stop_that_failed_does_not_end_in_a_restart() -> None:
    """Stop is sticky also when the stop itself fails."""
    story = serving()
    story.command(Verb.STOP, 10.0)
    story.finished(12.0, "stop_engine", ok=False)
    story.tick(999.0)
    assert _actions(story) == ["stop_engine"]


def test_a_stop_that_failed_is_not_told_as_stopped() -> None:
    """Stopped means that no process is alive, and nothing less."""
    story = serving()
    story.command(Verb.STOP, 10.0)
    story.finished(12.0, "stop_engine", ok=False)
    assert not story.events("engine.stopped")
    assert story.engine.process is not ProcessState.STOPPED


def test_the_orphans_of_an_unwanted_engine_are_not_left() -> None:
    """The end of a leader does not prove the end of its set."""
    story = serving()
    story.state = replace(
        story.state,
        engines={"main": replace(story.engine, history=RestartHistory(wanted=False))},
    )
    story.exited(20.0)
    story.tick(21.0)
    assert story.engine.process is not ProcessState.STOPPED or story.acts


def test_an_unwanted_engine_that_exits_is_not_restarted() -> None:
    """Nobody wants it: its end is no trouble to be mended."""
    unwanted = EngineState(EngineSettings("main"), history=RestartHistory(wanted=False))
    story = Story(State({"main": unwanted}))
    story.spawned(1.0)
    story.exited(2.0)
    assert _actions(story) == ["stop_engine"]
    story.finished(3.0, "stop_engine")
    story.tick(99.0)
    assert story.engine.process is ProcessState.STOPPED
    assert _actions(story) == ["stop_engine"]


def test_shutdown_stops_without_forgetting_what_is_wanted() -> None:
    """The next watchdog starts the engine again; this one does not."""
    story = serving()
    story.command(Verb.SHUTDOWN, 10.0)
    story.finished(12.0, "stop_engine")
    story.tick(13.0)
    assert _actions(story) == ["stop_engine"]
    assert story.engine.history.wanted


def test_leave_stops_nothing_and_ends_all_acting() -> None:
    """An engine that is left to the next watchdog is not restarted by this one."""
    story = serving()
    story.command(Verb.LEAVE, 10.0)
    story.exited(11.0)
    assert not story.decisions
    assert not story.events("finding.firing")  # nothing is wanted any more


@pytest.mark.parametrize("verb", [Verb.START, Verb.STOP, Verb.RESTART, Verb.SHUTDOWN])
def test_observe_only_says_what_it_would_have_done(verb: Verb) -> None:
    """In observe mode a command is a decision to hold."""
    story = serving()
    story.state = State(story.state.engines, mode=Mode.OBSERVE)
    story.command(verb, 10.0)
    assert [d.hold for d in story.decisions] == [HoldReason.OBSERVE]
    assert story.engine.process is ProcessState.RUNNING


def test_pause_holds_a_crash_and_resume_lets_it_go() -> None:
    """A paused crash is held; after ``resume`` it is dealt with because it still holds."""
    story = serving()
    story.command(Verb.PAUSE, 5.0)
    story.exited(10.0)
    assert [d.hold for d in story.decisions] == [HoldReason.PAUSED]
    story.command(Verb.RESUME, 20.0)
    assert _actions(story) == ["restart_engine"]


def test_a_pause_ends_by_itself() -> None:
    """At its end exactly, and the journal says so."""
    story = serving()
    story.command(Verb.PAUSE, 5.0, until=60.0)
    assert story.tick(59.9).state.pause is not None
    assert story.last is not None
    assert story.last.wake_at == 60.0
    assert story.tick(60.0).state.pause is None
    assert len(story.events("watchdog.resumed")) == 1


def test_a_command_for_an_unknown_engine_does_nothing() -> None:
    """Names are not guessed."""
    story = serving()
    assert not story.take(Commanded(1.0, Verb.STOP, "other")).decisions
