"""Faults that take minutes to weeks, with the probes at their real periods."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.clockwork import PERIODS, Clockwork, Fault
from tests.laws.lawful import lawful
from watchdog.core.model import ProcessState, Verdict

HOUR = 3600.0
RARE = dict.fromkeys(PERIODS, 15.0)
"""Periods for what takes weeks: only exits matter there."""

STILL = settings(lawful, max_examples=60)
_PHASE = st.sampled_from([0.0, 0.3, 0.9, 1.1, 1.7])
PHASES = st.fixed_dictionaries({"process": _PHASE, "http": _PHASE, "metrics": _PHASE})


def test_d8_dies_at_birth_for_ever() -> None:
    """1.2 s after each start: backoff grows, the breaker opens, and stays open for a week."""
    world = Clockwork(Fault(dies_at_birth=1.2), periods=RARE)
    story = world.run(7 * 24 * HOUR)
    waits = [b.at - a.at for a, b in zip(story.acts[1:], story.acts[2:], strict=False)]
    assert len(story.events("breaker.opened")) == 1
    assert story.engine.verdict is Verdict.GIVEN_UP
    assert world.spawns == story.engine.history.starts == 4
    assert waits == sorted(waits)
    assert story.acts[-1].at < 60.0


def test_d9_dies_every_forty_minutes() -> None:
    """Each restart is immediate, and in two days the hourly budget never trips."""
    story = Clockwork(Fault(dies_after=40 * 60.0), periods=RARE).run(2 * 24 * HOUR)
    exits = [r for r in story.records if r.event == "engine.exited"]
    restarts = [act for act in story.acts if act.action == "restart_engine"]
    assert len(exits) == len(restarts) > 60
    assert not [d for d in story.decisions if d.hold is not None and d.hold.value != "in_flight"]
    assert not story.events("breaker.opened")


@pytest.mark.parametrize("compiles", [0, 3])
def test_h3_saturated_for_two_hours(compiles: int) -> None:
    """/health and completions time out while tokens flow: busy, never restarted."""
    full = Fault(30.0, answers=False, flows=True, health="timeout", computes=True)
    story = Clockwork(full, phases={"http": 0.3, "metrics": float(compiles) / 2}).run(2 * HOUR)
    assert [act.action for act in story.acts] == ["start_engine"]
    assert story.engine.verdict is Verdict.BUSY


@STILL
@given(PHASES, st.sampled_from([30.0, 31.4, 33.9]))
def test_h4_compiles_for_seventy_seconds(phases: dict[str, float], after: float) -> None:
    """No token, compilers below the engine: busy, and left alone until it serves again."""
    jit = Fault(after, 70.0, answers=False, compilers=2, computes=True)
    world = Clockwork(jit, phases)
    assert world.run(after + 65.0).engine.verdict is Verdict.BUSY
    story = world.run(300.0)
    assert [act.action for act in story.acts] == ["start_engine"]
    assert story.engine.verdict is Verdict.READY


def _detected(fault: Fault, phases: dict[str, float]) -> float:
    """Seconds from the fault to the restart it led to."""
    story = Clockwork(fault, phases).run(fault.after + 60.0)
    restarts = [act for act in story.acts if act.action == "restart_engine"]
    assert restarts, "nobody noticed"
    assert restarts[0].cause.value == "stalled"
    return restarts[0].at - fault.after


AFTER = st.integers(300, 700).map(lambda tenth: tenth / 10 + 0.05)


@STILL
@given(PHASES, AFTER)
def test_h1_frozen_without_a_sign(phases: dict[str, float], after: float) -> None:
    """Nothing computes and no token comes: a restart is decided within 30 s."""
    assert _detected(Fault(after, answers=False), phases) <= 30.0


@STILL
@given(PHASES, AFTER)
def test_h1_frozen_with_stopped_members(phases: dict[str, float], after: float) -> None:
    """EngineCore in state T: a restart is decided within 10 s."""
    assert _detected(Fault(after, answers=False, stopped=1), phases) <= 10.0


def test_h6_spins_without_tokens() -> None:
    """Something computes and nothing comes of it: restarted after the long deadline."""
    taken = _spin_detected()
    assert 120.0 <= taken <= 140.0


def _spin_detected() -> float:
    fault = Fault(30.0, 200.0, answers=False, computes=True)
    story = Clockwork(fault).run(300.0)
    return next(a.at for a in story.acts if a.action == "restart_engine") - fault.after


def test_a_day_of_health_is_a_day_of_nothing() -> None:
    """A healthy engine is started once and nothing is said about it but that it is ready."""
    story = Clockwork(periods=RARE).run(24 * HOUR)
    assert len(story.decisions) == 1
    assert story.engine.process is ProcessState.RUNNING
    assert {r.event for r in story.records} == {
        "decision.act",
        "action.started",
        "finding.firing",
        "finding.resolved",
        "engine.started",
        "action.finished",
        "engine.ready",
    }
