"""One event in; state, decisions and journal out: the heart, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import (
    GENERATION,
    NAME,
    Story,
    http,
    metrics,
    process,
    reading,
    restarting,
    serving,
)
from tests.support.rules import DEFAULT_RULES
from watchdog.core import rule_set, views
from watchdog.core.engine import firing, step
from watchdog.core.model import (
    Cause,
    EngineSpawned,
    HoldReason,
    Mode,
    ProcessState,
    ReadingTaken,
    SubjectKind,
    Tick,
    Verdict,
)
from watchdog.core.state import EngineSettings, EngineState, PolicySettings, RestartHistory, State

NEXT = "0000000b"


def test_the_first_start_is_decided_once_and_is_free() -> None:
    """A wanted engine that does not run is started, once, without a charge."""
    story = Story()
    for second in range(5):
        story.tick(float(second))
    assert [(a.action, a.cause) for a in story.acts] == [("start_engine", Cause.OPERATOR)]
    assert story.engine.process is ProcessState.STARTING
    assert story.engine.history.restarts == ()


def test_a_start_is_ready_at_the_first_token() -> None:
    """Ready needs a token; the journal tells how long it took."""
    story = Story()
    story.tick(0.0)
    story.spawned(1.0)
    story.read(process(2.0), http(3.0), metrics(3.0, 0.0))
    assert story.engine.verdict.value == "starting"
    story.read(http(5.0, canary="ok", status=200))
    assert story.engine.verdict is Verdict.READY
    assert dict(story.events("engine.ready")[0].keys)["ready_seconds"] == 4.0


def test_a_start_without_proof_is_not_told_as_ready() -> None:
    """An engine that asks for a key has started, and is degraded."""
    story = Story()
    story.tick(0.0)
    story.spawned(1.0)
    story.read(http(5.0, canary="unauthorized", status=401))
    assert story.engine.process is ProcessState.RUNNING
    assert story.engine.verdict is Verdict.DEGRADED
    assert not story.events("engine.ready")
    assert len(story.events("engine.unproven")) == 1


def test_a_crash_is_restarted_in_the_same_step() -> None:
    """Nothing lies between the exit and the decision: the first failure does not wait."""
    done = serving().exited(10.0, Cause.SIGNAL)
    acts = [d for d in done.decisions if d.hold is None]
    assert [(a.action, a.cause, a.at) for a in acts] == [("restart_engine", Cause.SIGNAL, 10.0)]


def test_exit_zero_that_nobody_asked_for_is_a_crash() -> None:
    """The engine is restarted whatever its exit code was."""
    story = serving()
    story.exited(10.0, Cause.ENGINE_CORE_DIED)
    assert [a.cause for a in story.acts] == [Cause.ENGINE_CORE_DIED]
    assert dict(story.events("engine.exited")[0].keys)["expected"] is False


def test_the_exit_during_a_stop_is_expected() -> None:
    """What we end ourselves is no failure and costs nothing more."""
    story = restarting(10.0)
    before = story.engine.history
    story.exited(11.0, Cause.SIGNAL)
    assert story.engine.history == before
    assert story.engine.process is ProcessState.STOPPING


def test_a_crash_while_the_action_is_in_flight_waits_for_its_end() -> None:
    """The new generation dies before the restart is told done: one action after the other."""
    story = restarting(10.0)
    story.spawned(11.0, NEXT)
    story.exited(11.1, generation=NEXT)
    assert len(story.acts) == 1
    assert [d.hold for d in story.decisions][-1:] == [HoldReason.IN_FLIGHT]
    story.finished(11.2, "restart_engine")
    assert len(story.acts) == 1
    assert story.decisions[-1].hold is HoldReason.BACKOFF
    assert story.last is not None
    story.tick(story.last.wake_at or 0.0)
    assert len(story.acts) == 2


def test_a_failed_start_is_retried_after_its_backoff() -> None:
    """A hook that fails is a failed start: it waits, and is charged as a boot."""
    story = restarting(10.0)
    story.finished(11.0, "restart_engine", ok=False, cause=Cause.PRE_START_FAILED)
    assert (story.engine.process, story.engine.verdict) == (ProcessState.BACKOFF, Verdict.DEAD)
    story.tick(11.9)
    assert len(story.acts) == 1
    story.tick(12.1)
    assert len(story.acts) == 2
    assert [r.boot for r in story.engine.history.restarts] == [False, True]


def test_an_incurable_start_is_given_up_at_once() -> None:
    """State and verdict are given_up, the breaker is not open, nothing is retried."""
    story = restarting(10.0)
    story.spawned(11.0, NEXT)
    story.finished(11.1, "restart_engine")
    story.exited(12.0, Cause.BAD_ARGUMENTS, NEXT)
    story.tick(99_999.0)
    assert (story.engine.process, story.engine.verdict) == (
        ProcessState.GIVEN_UP,
        Verdict.GIVEN_UP,
    )
    assert not story.engine.history.breaker_open
    assert len(story.acts) == 1
    assert story.decisions[-1].hold is HoldReason.BLOCKED


def test_nothing_is_started_on_top_of_what_cannot_be_killed() -> None:
    """An unkillable engine is held, however long."""
    story = restarting(10.0)
    story.finished(50.0, "restart_engine", ok=False, unkillable=True)
    story.tick(99_999.0)
    assert story.engine.verdict is Verdict.UNKILLABLE
    assert len(story.acts) == 1
    assert story.decisions[-1].hold is HoldReason.UNKILLABLE


def test_a_late_exit_does_not_make_an_engine_killable() -> None:
    """The leader is gone; what else survived SIGKILL nobody knows: a person decides."""
    story = restarting(10.0)
    story.finished(50.0, "restart_engine", ok=False, unkillable=True)
    story.exited(60.0)
    story.tick(99_999.0)
    assert story.engine.process is ProcessState.UNKILLABLE
    assert len(story.acts) == 1


@pytest.mark.parametrize("generation", ["", "00000009", NEXT])
def test_a_late_reading_says_nothing_about_the_living(generation: str) -> None:
    """What was read of another generation changes no vital sign."""
    story = serving()
    story.read(http(9.0, "refused", generation=generation))
    story.read(process(10.0, cores=0, generation=generation), metrics(10.0, 9.0, generation=""))
    assert story.engine == serving().engine


def test_a_late_exit_of_a_dead_generation_is_ignored() -> None:
    """Only the present generation can fail."""
    story = serving()
    story.exited(10.0, generation="00000009")
    assert story.engine.verdict is Verdict.READY
    assert not story.acts


def test_a_failed_probe_is_not_a_sick_engine() -> None:
    """A reading with an error adds nothing, whatever samples it carries."""
    story = serving()
    story.read(replace(process(5.0, cores=0), error="cannot read /proc"))
    story.read(reading("engine_http", 6.0, ("health", "refused"), error="cannot connect"))
    assert story.engine.vitals == serving().engine.vitals


def test_adoption_is_not_a_start() -> None:
    """An adopted engine runs, counts no start, and is told as adopted."""
    story = Story(
        State({NAME: EngineState(EngineSettings(NAME), history=RestartHistory(starts=3))})
    )
    story.take(EngineSpawned(1.0, NAME, GENERATION, 7, Cause.OPERATOR, adopted=True, ready=True))
    assert story.engine.history.starts == 3
    assert story.engine.process is ProcessState.RUNNING
    assert [r.event for r in story.records] == ["engine.adopted"]
    assert not story.acts


def test_observe_holds_the_first_start() -> None:
    """In observe mode not even the first start happens; it is told once."""
    story = Story(replace(Story().state, mode=Mode.OBSERVE))
    for second in range(5):
        story.tick(float(second))
    assert [d.hold for d in story.decisions] == [HoldReason.OBSERVE]
    assert story.engine.process is ProcessState.STOPPED


def test_a_hold_is_told_when_its_reason_changes() -> None:
    """Not at each look: the decisions of an outage are few."""
    story = restarting(10.0)
    for tenth in range(20):
        story.tick(10.0 + tenth / 10)
    story.spawned(12.0, NEXT)
    story.finished(12.1, "restart_engine")
    assert [d.hold for d in story.decisions] == [None, HoldReason.IN_FLIGHT]


def test_an_engine_that_heals_before_its_turn_is_left_alone() -> None:
    """Stalled, held by the backoff, and serving again: not restarted."""
    story = serving()
    history = RestartHistory(failures=3)
    story.state = State({NAME: replace(story.engine, history=history)})
    story.read(process(2.0, stopped_members=1), process(5.0, stopped_members=1))
    story.read(http(9.0, canary="timeout", took=4.0))
    assert [d.hold for d in story.decisions] == [HoldReason.BACKOFF]
    story.read(process(9.5), metrics(10.0, 1.0))
    story.tick(40.0)
    assert not story.acts
    assert story.engine.retry_at is None


def test_firing_findings_come_loudest_first() -> None:
    """Critical before information."""
    story = restarting()
    story.tick(11.0)
    assert [finding.rule for _, finding in firing(story.state)] == ["engine-dead"]


def test_a_view_holds_all_that_the_default_rules_ask_for() -> None:
    """Each of the core's own samples that a default rule about engines names is known.

    What others do is known in the view of one that stands by for them.
    """
    story = serving().read(metrics(12.0, 2.0))
    other = EngineState(EngineSettings("spare", standby=True))
    state = story.state.with_engine(other)
    view = views.of_engine(state, other)
    of_engines = [rule for rule in DEFAULT_RULES if rule.subject is SubjectKind.ENGINE]
    asked = {name for rule in of_engines for name in (*rule.evidence, *rule.when.samples)}
    own = views.of_engine(state, story.engine)
    assert not [
        name
        for name in asked
        if name.startswith("engine.") and view.get(name) is None and own.get(name) is None
    ]


def test_a_step_changes_nothing_but_what_it_returns() -> None:
    """The state that goes in is the same afterwards, and the same step can be taken again."""
    story, event = serving(), ReadingTaken(5.0, http(5.0, "refused"))
    first = step(story.state, event, DEFAULT_RULES, PolicySettings())
    assert step(story.state, event, DEFAULT_RULES, PolicySettings()) == first


def test_a_rule_set_judges_as_its_rules_do() -> None:
    """What is worked out once changes no answer."""
    story, event = serving(), ReadingTaken(5.0, http(5.0, "refused"))
    rules = step(story.state, event, DEFAULT_RULES, PolicySettings())
    assert step(story.state, event, rule_set.of(DEFAULT_RULES), PolicySettings()) == rules


@pytest.mark.parametrize(
    "history", [RestartHistory(given_up=Cause.MODEL_MISSING), RestartHistory(breaker_open=True)]
)
def test_what_was_given_up_stays_given_up_over_our_own_restart(history: RestartHistory) -> None:
    """State and verdict are given_up, as they were before."""
    story = Story(State({NAME: EngineState(EngineSettings(NAME), history=history)}))
    story.take(Tick(1.0))
    assert not story.acts
    assert story.engine.process is ProcessState.GIVEN_UP
    assert story.engine.verdict is Verdict.GIVEN_UP
