"""Laws of failures: what each cause is worth, and actions that fail, hang or change nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.auditor import Auditor
from tests.laws.lawful import lawful
from tests.laws.world import Fate, Look, Moment, World, moments, own_acts, records
from tests.support.core import NAME, serving
from watchdog.core.model import Cause, HoldReason, ProcessState, Verb
from watchdog.core.state import Budget

PLENTY = Budget(10**6, 1.0)
WORTH = {Cause.CUDA_OOM: 1, Cause.BAD_ARGUMENTS: 0, Cause.MODEL_MISSING: 0, Cause.CRASH: 10**6}
"""Restarts in a row by the cause."""
WELL = Moment(60.0, (Look.IDLE,), (Fate.RUNS,))


@dataclass(frozen=True, slots=True)
class Failure:
    """An exit: its cause, how long the engine had served (None: never), what a person did after."""

    cause: Cause
    served: float | None
    person: Verb | None


FAILURES = st.lists(
    st.builds(
        Failure,
        st.sampled_from([*WORTH, Cause.CUDA_OOM]),
        st.sampled_from([None, None, 1.0, 599.0, 600.0]),
        st.sampled_from([None, None, None, Verb.RESET_BREAKER, Verb.START]),
    ),
    min_size=1,
    max_size=12,
)


@settings(lawful, max_examples=50)
@given(FAILURES)
def test_a_cause_is_retried_as_often_as_it_is_worth(failures: list[Failure]) -> None:
    """More in a row than a cause is worth is given up, unless service or a person ended the row.

    An engine that has served is worth one restart at least. What is given up is held ``blocked``.
    """
    story = serving(restart_budget=PLENTY, boot_budget=PLENTY, backoff_max=1.0)
    at, last, count, number = 0.0, Cause.UNKNOWN, 0, 0x10
    first = True
    for failure in failures:
        served = 600.0 if first and failure.served is None else failure.served
        first = False
        at += served or 0.0
        story.exited(at, failure.cause, story.engine.generation)
        count = count + 1 if failure.cause is last and (served or 0.0) < 600.0 else 1
        last = failure.cause
        worth = WORTH[last] if served is None else max(WORTH[last], 1)
        given_up = count > worth
        assert (story.engine.history.given_up is not None) is given_up
        at += 5.0
        story.tick(at)
        assert (story.engine.process is ProcessState.GIVEN_UP) is given_up
        held = [seen.held for seen in story.state.watches.values() if seen.firing is not None]
        assert (HoldReason.BLOCKED in held) is given_up
        if given_up or failure.person is not None:
            verb = failure.person or Verb.START
            story.command(verb, at)
            count = 0 if verb is Verb.RESET_BREAKER else count
        number += 1
        generation = f"{number:08x}"
        story.spawned(at, generation)
        story.finished(at, story.engine.in_flight)
        if _next_served(failures, failure) is not None:
            story.serve(at, generation)


def _next_served(failures: list[Failure], failure: Failure) -> float | None:
    index = next(i for i, one in enumerate(failures) if one is failure)
    return failures[index + 1].served if index + 1 < len(failures) else None


ENDLESS = {
    "fails": Fate.REFUSED,
    "cannot be cured": Fate.INCURABLE,
    "changes nothing": Fate.DONE,
    "crashes": Fate.CRASHES,
    "cannot kill": Fate.UNKILLABLE,
}


@pytest.mark.parametrize("how", ENDLESS)
@settings(lawful, max_examples=4)
@given(st.sampled_from([Look.EXITS, Look.QUIET, Look.CORE_GONE]), moments(verbs=False))
def test_w6_actions_that_do_not_help_come_to_an_end(
    how: str, sick: Look, story: list[Moment]
) -> None:
    """Every outcome is written down, and it ends in one "given up": never a silent loop."""
    world = World().live([*story[:10], WELL])
    sick_now = Moment(1.0, (sick,), (ENDLESS[how],), times=8)
    for _ in range(9):
        world.live([WELL, sick_now])
    auditor = Auditor().audit(world.trace)
    engine = world.state.engines["a"]
    over = {ProcessState.GIVEN_UP, ProcessState.UNKILLABLE}
    assert engine.process in over or engine.history.breaker_open or engine.in_flight
    ended = len(records(world.trace, "action.finished"))
    assert len([a for seen in world.trace for a in seen.done.decisions if a.hold is None]) in {
        ended,
        ended + bool(engine.in_flight),
    }
    assert len(records(world.trace, "breaker.opened")) <= 1
    count = len(world.trace)
    world.live([sick_now] * 4)
    assert not own_acts(world.trace[count:])
    assert any(name.startswith("engine-") for name in auditor.reached)


@settings(lawful, max_examples=3)
@given(st.sampled_from([Look.EXITS, Look.QUIET, Look.CORE_GONE]))
def test_w6_an_action_that_never_ends_is_said_and_nothing_else_is_done(sick: Look) -> None:
    """In flight for ever: no other decision on that engine, one loud finding, others go on."""
    world = World(("a", "b")).live([Moment(0.0, (Look.IDLE, Look.IDLE), (Fate.DONE, Fate.DONE))])
    hangs = Moment(1.0, (sick, Look.EXITS), (Fate.RUNS, Fate.DONE), times=3)
    while not world.state.engines["a"].in_flight:
        world.live([hangs])
    count = len(world.trace)
    world.live([hangs] * 80)
    assert not [act for act in own_acts(world.trace[count:]) if act.target.name == "a"]
    assert [act for act in own_acts(world.trace[count:]) if act.target.name == "b"]
    hung = [r for r in records(world.trace, "finding.firing") if _rule_of(r) == HUNG]
    assert [dict(r.keys)["subject"] for r in hung] == ["engine/a"]
    world.live([Moment(1.0, (Look.IDLE, Look.IDLE), (Fate.DONE, Fate.DONE))])
    gone = [r for r in records(world.trace, "finding.resolved") if _rule_of(r) == HUNG]
    assert [dict(r.keys)["subject"] for r in gone] == ["engine/a"]


@lawful
@given(st.lists(st.sampled_from([Look.EXITS, *Look]), max_size=12))
def test_unkillable_stays_so_until_a_person_acts(looks: list[Look]) -> None:
    """Whatever is seen of what survived SIGKILL, also its exit, nothing is started on top of it."""
    lives = [Moment(1.0, (Look.IDLE,), (Fate.DONE,))] * 2
    sick = Moment(1.0, (Look.CORE_GONE,), (Fate.UNKILLABLE,), times=3)
    world = World().live([*lives, sick, sick])
    assert world.state.engines["a"].process is ProcessState.UNKILLABLE
    count = len(world.trace)
    world.live([Moment(5.0, (look,), (Fate.DONE,)) for look in looks])
    assert world.state.engines["a"].process is ProcessState.UNKILLABLE
    assert not own_acts(world.trace[count:])


HUNG = "engine-action-hung"


def _rule_of(record: object) -> object:
    return dict(record.keys)["rule"]  # type: ignore[attr-defined]


def test_the_failures_are_of_every_kind() -> None:
    """Both ends are reached: causes that are given up, and rows that service ends."""
    story = serving(restart_budget=PLENTY, boot_budget=PLENTY)
    story.exited(700.0, Cause.CUDA_OOM)
    assert story.acts
    story.spawned(701.0, "0000000b")
    story.finished(701.0, "restart_engine")
    story.exited(702.0, Cause.CUDA_OOM, "0000000b")
    assert story.engine.history.given_up is Cause.CUDA_OOM
    assert story.state.engines[NAME].process is ProcessState.GIVEN_UP
