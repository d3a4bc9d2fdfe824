"""Retries: how often each cause of a failure is worth another start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import NAME, Story, process, restarting, serving
from watchdog.core.model import Cause, HoldReason, ProcessState, Verb
from watchdog.core.state import RETRIES, EngineSettings, EngineState, RestartHistory, State

ONCE = sorted(cause for cause, count in RETRIES.items() if count == 0)
TWICE = sorted(cause for cause, count in RETRIES.items() if count == 1)
OTHERS = sorted(set(Cause) - RETRIES.keys())


def starts(story: Story, cause: Cause) -> Story:
    """The start in flight ends with ``cause`` before the engine was ready; its backoff passes."""
    at = (story.state.at or 0.0) + 1.0
    generation = f"{int(at):08x}"
    story.spawned(at, generation)
    story.finished(at + 0.1, "restart_engine")
    story.exited(at + 0.2, cause, generation)
    return _waited(story)


def _waited(story: Story) -> Story:
    if story.engine.retry_at is not None and not story.engine.in_flight:
        story.tick(max(story.engine.retry_at, story.state.at or 0.0))
    return story


def given_up(story: Story) -> Cause | None:
    """The cause that no retry cures."""
    return story.engine.history.given_up


@pytest.mark.parametrize("cause", ONCE)
def test_what_a_person_must_change_is_not_tried_again(cause: Cause) -> None:
    """FACT: one failed start is enough, and the state says that a person must decide."""
    story = starts(restarting(), cause)
    assert given_up(story) is cause
    assert story.engine.process is ProcessState.GIVEN_UP
    assert len(story.acts) == 1
    assert story.decisions[-1].hold is HoldReason.BLOCKED


@pytest.mark.parametrize("cause", TWICE)
def test_what_may_have_been_chance_is_tried_once_more(cause: Cause) -> None:
    """FACT: memory that ran out twice in a row is the configuration, once it may be another."""
    story = starts(restarting(), cause)
    assert given_up(story) is None
    assert len(story.acts) == 2
    starts(story, cause)
    assert given_up(story) is cause
    assert len(story.acts) == 2
    assert story.decisions[-1].hold is HoldReason.BLOCKED


def test_another_cause_in_between_ends_the_row() -> None:
    """FACT: only the same cause twice in a row counts."""
    story = restarting()
    for cause in (Cause.CUDA_OOM, Cause.CRASH, Cause.CUDA_OOM):
        starts(story, cause)
    assert given_up(story) is None


@pytest.mark.parametrize("cause", OTHERS)
def test_all_other_causes_have_the_budgets_alone(cause: Cause) -> None:
    """FACT: they end in an open breaker, never in a verdict on the cause."""
    story = restarting()
    for _ in range(5):
        if story.engine.in_flight:
            starts(story, cause)
    assert given_up(story) is None
    assert story.engine.history.breaker_open
    assert 3 <= len(story.acts) <= 5


@pytest.mark.parametrize("cause", [*ONCE, *TWICE])
def test_what_has_served_is_worth_one_restart(cause: Cause) -> None:
    """FACT: the command cannot be all wrong when it has served; when its next start fails it is."""
    story = serving()
    story.exited(10.0, cause)
    assert given_up(story) is None
    assert len(story.acts) == 1
    starts(story, cause)
    assert given_up(story) is cause
    assert len(story.acts) == 1


def serves_and_dies(story: Story, cause: Cause, lasts: float) -> Story:
    """The start in flight succeeds, serves for ``lasts`` seconds and ends with ``cause``."""
    at = (story.state.at or 0.0) + 1.0
    generation = f"{int(at):08x}"
    story.restarted(at, generation)
    story.exited(at + 1.0 + lasts, cause, generation)
    return _waited(story)


def test_long_service_ends_the_row() -> None:
    """FACT: memory that runs out once a day is no row, once a minute it is."""
    story = serving()
    story.exited(10.0, Cause.CUDA_OOM)
    for _ in range(3):
        serves_and_dies(story, Cause.CUDA_OOM, lasts=600.0)
        assert given_up(story) is None
    serves_and_dies(story, Cause.CUDA_OOM, lasts=60.0)
    assert given_up(story) is Cause.CUDA_OOM


@pytest.mark.parametrize("cause", [Cause.GPU_MEMORY_SHORT, Cause.DRIVER_MISMATCH])
def test_what_the_box_refuses_is_tried_for_ever(cause: Cause) -> None:
    """FACT: nothing was started, so the cause says nothing about the engine's command."""
    story = restarting()
    for _ in range(10):
        at = (story.state.at or 0.0) + 1.0
        story.finished(at, "restart_engine", ok=False, cause=cause)
        _waited(story)
    assert given_up(story) is None
    assert len(story.acts) == 11


@pytest.mark.parametrize("initial", [0.001, 30.0])
def test_what_the_box_refuses_is_not_tried_in_a_spin(initial: float) -> None:
    """FACT: a second at least lies between two tries, however short the backoff is configured."""
    story = serving(backoff_initial=initial, backoff_jitter=0.0)
    story.exited(10.0)
    for tries in range(3):
        wait = max(initial * 2**tries, 1.0)
        at = (story.state.at or 0.0) + 1.0
        story.finished(at, "restart_engine", ok=False, cause=Cause.GPU_MEMORY_SHORT)
        assert story.engine.retry_at == pytest.approx(at + wait)
        _waited(story)


@pytest.mark.parametrize("allowed", [0, 2, 3])
def test_what_a_cause_is_worth_is_configured(allowed: int) -> None:
    """FACT: for any cause: so many restarts in a row, and not one more."""
    story = serving(
        retries={Cause.PORT_IN_USE: allowed}, boot_budget=serving().settings.restart_budget
    )
    story.exited(10.0)
    for _ in range(4):
        if story.engine.in_flight:
            starts(story, Cause.PORT_IN_USE)
    assert given_up(story) is Cause.PORT_IN_USE
    assert len(story.acts) == 1 + allowed


def test_a_cause_that_is_configured_away_has_the_budgets_alone() -> None:
    """FACT: what is configured replaces our own table."""
    story = serving(retries={})
    story.exited(10.0)
    starts(story, Cause.BAD_ARGUMENTS)
    assert given_up(story) is None
    assert len(story.acts) == 2


def test_our_own_restart_does_not_forget_the_row() -> None:
    """FACT: a watchdog that is restarted in between does not give one cause twice its worth."""
    before = starts(restarting(), Cause.CUDA_OOM).engine.history
    assert (before.repeated, before.repeats) == (Cause.CUDA_OOM, 1)
    story = Story(State({NAME: EngineState(EngineSettings(NAME), history=before)}))
    story.tick(0.0)
    story.spawned(1.0, "0000000b")
    story.finished(1.1, "start_engine")
    story.exited(2.0, Cause.CUDA_OOM, "0000000b")
    assert given_up(story) is Cause.CUDA_OOM


@pytest.mark.parametrize("verb", [Verb.START, Verb.RESTART, Verb.RESET_BREAKER])
def test_a_person_may_try_again(verb: Verb) -> None:
    """FACT: what was given up is started by a command, whatever the cause was worth."""
    story = starts(restarting(), Cause.MODEL_MISSING)
    story.command(verb, 100.0)
    assert given_up(story) is None
    assert [act.cause for act in story.acts][1:] == [Cause.OPERATOR]


def test_a_reset_forgets_the_row() -> None:
    """FACT: after a person took over, one cause is worth again what it was."""
    story = starts(restarting(), Cause.CUDA_OOM)
    story.state = story.state.with_engine(
        replace(story.engine, history=RestartHistory(repeated=Cause.CUDA_OOM, repeats=1))
    )
    story.command(Verb.RESET_BREAKER, story.state.at or 0.0)
    assert story.engine.history.repeats == 0


WORTH_ONE = {**RETRIES, Cause.ENGINE_CORE_DIED: 1}


def core_gone(story: Story, first: int, last: int) -> Story:
    """The engine's core is not there from ``first`` to ``last``."""
    for at in range(first, last):
        story.read(process(float(at), cores=1 if at == first else 0))
    return story


def failures(story: Story) -> tuple[bool, int]:
    """Whether it has failed, and how often in a row for this cause."""
    return story.engine.failed_at is not None, story.engine.history.repeats


def test_an_exit_that_explains_a_failure_is_the_same_one() -> None:
    """FACT: it was found dead, then it exited: one failure, worth the restart that one is worth."""
    story = serving(retries=WORTH_ONE)
    story.command(Verb.PAUSE, 1.0, until=20.0)
    core_gone(story, 2, 6)
    story.exited(7.0, Cause.ENGINE_CORE_DIED)
    assert (story.engine.history.repeats, given_up(story)) == (1, None)
    story.tick(30.0)
    assert [act.action for act in story.acts] == ["restart_engine"]


def test_what_healed_by_itself_gives_nothing_up() -> None:
    """FACT: failures that nobody had to do anything about were none."""
    story = serving(retries=WORTH_ONE)
    story.command(Verb.PAUSE, 1.0, until=100.0)
    for at in (2, 22):
        core_gone(story, at, at + 4)
        assert failures(story) == (True, 1)
        story.read(process(at + 5.0)).serve(at + 6.0)
        assert failures(story) == (False, 0)
    for at in range(110, 2000, 10):
        story.serve(float(at))
    story.exited(2000.0)
    assert [act.action for act in story.acts] == ["restart_engine"]


def test_no_try_is_due_of_what_is_given_up() -> None:
    """FACT: what a person must change has no next try, neither by its cause nor by the breaker."""
    assert starts(restarting(), Cause.MODEL_MISSING).engine.retry_at is None
