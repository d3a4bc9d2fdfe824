"""The verdict: which vital signs mean what, and for how long they must last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import engine, http, metrics, process, reading, serving
from watchdog.core.model import Cause, ProcessState, Verdict
from watchdog.core.state import EngineSettings, Vitals
from watchdog.core.verdict import Judgement, is_first_ready, judge, next_look

PROVEN = Vitals(process_at=100.0, health="ok", health_at=100.0, health_since=0.0, metrics_at=100.0)
WELL = replace(PROVEN, progressed_at=100.0, cores=1, core_seen=True)
OVERDUE = replace(WELL, progressed_at=50.0, failing_since=60.0, timeouts=3, canary="timeout")


def _judged(vitals: Vitals, at: float = 100.0) -> Judgement:
    """The verdict at ``at`` when everything that was ever looked at is looked at until then."""
    seen = replace(
        vitals,
        process_at=at if vitals.process_at is not None else None,
        health_at=at if vitals.health_at is not None else None,
        canary_at=at if vitals.canary_at is not None or vitals.timeouts else None,
        compilers_at=at if vitals.compilers else None,
    )
    return judge(engine(vitals=seen), at)


@pytest.mark.parametrize(
    ("process_state", "expected"),
    [
        (ProcessState.STOPPED, Verdict.STOPPED),
        (ProcessState.STOPPING, Verdict.STOPPING),
        (ProcessState.BACKOFF, Verdict.DEAD),
        (ProcessState.GIVEN_UP, Verdict.GIVEN_UP),
        (ProcessState.UNKILLABLE, Verdict.UNKILLABLE),
    ],
)
def test_without_a_living_engine_the_process_state_decides(
    process_state: ProcessState, expected: Verdict
) -> None:
    """Vital signs of the past say nothing about an engine that does not run."""
    assert judge(engine(process_state, vitals=WELL), 100.0).verdict is expected


def test_a_recent_token_is_ready_and_load_is_busy() -> None:
    """Ready needs a token within 45 s; requests in the engine make it busy."""
    assert _judged(WELL).verdict is Verdict.READY
    assert _judged(WELL, 144.9).verdict is Verdict.READY
    assert _judged(WELL, 145.0).verdict is Verdict.DEGRADED
    assert _judged(replace(WELL, waiting=1.0)).verdict is Verdict.BUSY


def test_what_was_never_seen_is_degraded() -> None:
    """A running engine that nobody has looked at, or seen serve, is neither ready nor dead."""
    assert _judged(Vitals()).reasons == ("not looked at yet",)
    assert _judged(PROVEN).reasons == ("no token seen yet",)


def test_a_missing_core_is_dead_at_once_when_health_agrees() -> None:
    """EngineCore missing is dead with a 503 at once, alone after a second."""
    gone = replace(WELL, core_gone_since=100.0)
    assert _judged(gone).verdict is Verdict.DEGRADED
    assert _judged(gone, 101.0).verdict is Verdict.DEAD
    told = _judged(replace(gone, health="status"))
    assert (told.verdict, told.cause) == (Verdict.DEAD, Cause.ENGINE_CORE_DIED)


def test_a_missing_worker_is_dead_as_a_missing_core_is() -> None:
    """It is dead with a 503 at once, alone after a second; of both, EngineCore is named."""
    gone = replace(WELL, worker_gone_since=100.0)
    assert _judged(gone).reasons == ("a worker is missing",)
    told = _judged(gone, 101.0)
    assert (told.verdict, told.cause, told.began_at) == (Verdict.DEAD, Cause.WORKER_DIED, 100.0)
    assert _judged(replace(gone, health="status")).verdict is Verdict.DEAD
    both = replace(gone, core_gone_since=100.0)
    assert _judged(both, 101.0).cause is Cause.ENGINE_CORE_DIED


@pytest.mark.parametrize(
    ("health", "limit", "cause"),
    [("status", 60.0, Cause.ENGINE_CORE_DIED), ("refused", 10.0, Cause.CRASH)],
)
def test_sick_answers_have_their_limits(health: str, limit: float, cause: Cause) -> None:
    """/health 503 is degraded for 60 s, a refused connection for 10 s, then dead."""
    sick = replace(WELL, health=health, health_since=100.0)
    assert _judged(sick, 100.0 + limit - 0.1).verdict is Verdict.DEGRADED
    told = _judged(sick, 100.0 + limit)
    assert (told.verdict, told.cause, told.began_at) == (Verdict.DEAD, cause, 100.0)


def test_a_health_timeout_alone_is_nothing() -> None:
    """Slow HTTP is not a stall while tokens are recent."""
    slow = replace(WELL, health="timeout", health_since=0.0)
    assert _judged(slow).verdict is Verdict.READY


@pytest.mark.parametrize("hours", [0.1, 10.0])
def test_sleep_and_a_missing_key_are_degraded_for_ever(hours: float) -> None:
    """An engine that sleeps or asks for a key is degraded, however long, never dead."""
    asleep = replace(OVERDUE, sleeping=True)
    locked = replace(WELL, canary="unauthorized", canary_at=101.0, canary_since=101.0)
    assert _judged(asleep, 100 + hours * 3600).verdict is Verdict.DEGRADED
    assert _judged(locked, 101 + hours * 3600).verdict is Verdict.DEGRADED


def test_failing_completions_are_dead_only_with_server_errors() -> None:
    """Completions that fail with 500 for a minute are dead, with 404 never."""
    failing = replace(WELL, canary="failed", canary_at=101.0, canary_since=101.0)
    assert _judged(replace(failing, canary_status=500), 160.9).verdict is Verdict.DEGRADED
    assert _judged(replace(failing, canary_status=500), 161.0).verdict is Verdict.DEAD
    assert _judged(replace(failing, canary_status=404), 9999.0).verdict is Verdict.DEGRADED


def test_stopped_members_corroborate_one_overdue_completion() -> None:
    """One timed-out completion and two seconds in state T are a stall."""
    stopped = replace(OVERDUE, timeouts=1, stopped_members=2, stopped_since=98.0)
    assert _judged(stopped).verdict is Verdict.STALLED
    assert _judged(stopped).reasons == ("2 stopped processes",)
    named = replace(stopped, stopped="VLLM::EngineCor (pid 7)")
    assert _judged(named).reasons == ("2 stopped processes: VLLM::EngineCor (pid 7)",)
    assert _judged(replace(stopped, stopped_since=98.1)).verdict is not Verdict.STALLED
    assert _judged(replace(stopped, failing_since=None)).verdict is not Verdict.STALLED


def test_quiet_needs_three_completions() -> None:
    """A set that uses no CPU since the first overdue completion stalls at the third."""
    quiet = replace(OVERDUE, quiet_since=62.0)
    assert _judged(quiet).verdict is Verdict.STALLED
    assert _judged(replace(quiet, timeouts=2)).verdict is Verdict.DEGRADED
    assert _judged(replace(quiet, quiet_since=62.1)).verdict is Verdict.BUSY


@pytest.mark.parametrize(
    ("vitals", "limit"),
    [
        (OVERDUE, 120.0),
        (replace(OVERDUE, metrics_at=None), 300.0),
        (replace(OVERDUE, compilers=1), 1800.0),
    ],
)
def test_the_less_is_known_the_longer_it_takes(vitals: Vitals, limit: float) -> None:
    """Without a token: 120 s while it computes, 300 s blind, half an hour while it compiles."""
    at = 60.0 + limit
    fresh = replace(vitals, process_at=at, metrics_at=at if vitals.metrics_at else None)
    assert _judged(fresh, at - 0.1).verdict is Verdict.BUSY
    assert _judged(fresh, at).verdict is Verdict.STALLED
    assert _judged(replace(fresh, timeouts=2), at).verdict is Verdict.BUSY


def test_a_busy_gpu_takes_the_blind_limit() -> None:
    """GPU work speaks against a stall until 300 s."""
    working = replace(OVERDUE, gpu_busy_at=355.0, process_at=359.0, metrics_at=359.0)
    assert _judged(working, 359.0).verdict is Verdict.BUSY
    assert _judged(working, 360.0).verdict is Verdict.STALLED


def test_a_start_is_dead_after_the_last_sign_of_progress() -> None:
    """start_timeout counts from the last sign, start_deadline from the spawn."""
    starting = engine(ProcessState.STARTING, vitals=Vitals(process_at=2599.0, start_sign_at=800.0))
    assert judge(starting, 2600.0).verdict is Verdict.STARTING
    looked = replace(starting, vitals=replace(starting.vitals, process_at=2600.0))
    told = judge(looked, 2600.0)
    assert (told.verdict, told.cause) == (Verdict.DEAD, Cause.START_TIMEOUT)
    bounded = replace(starting, settings=EngineSettings("main", start_deadline=900.0))
    assert judge(bounded, 899.0).verdict is Verdict.STARTING
    assert judge(bounded, 900.0).cause is Cause.START_TIMEOUT


@pytest.mark.parametrize(
    ("vitals", "ready"),
    [
        (Vitals(health="ok", canary="ok"), True),
        (Vitals(health="ok", canary="unauthorized"), True),
        (Vitals(health="ok", sleeping=True), True),
        (Vitals(health="ok", canary="timeout"), False),
        (Vitals(health="timeout", canary="ok"), False),
        (Vitals(), False),
    ],
)
def test_what_ends_a_start(vitals: Vitals, ready: bool) -> None:  # noqa: FBT001 - a value
    """A start ends with a token, a named refusal or sleep, and never without /health."""
    assert is_first_ready(vitals) is ready


def test_next_look_is_the_nearest_deadline_ahead() -> None:
    """Only moments in the future count, and the nearest of them."""
    well = engine(vitals=WELL)
    assert next_look(well, 100.0) == 145.0
    assert next_look(well, 145.0) is None
    bounded = engine(ProcessState.STARTING, settings=EngineSettings("main", start_deadline=20.0))
    assert next_look(replace(bounded, vitals=WELL, started_at=100.0), 100.0) == 120.0


@pytest.mark.parametrize("vitals", [OVERDUE, replace(OVERDUE, timeouts=1, stopped_since=99.0)])
def test_time_alone_makes_nobody_stalled(vitals: Vitals) -> None:
    """However long ago the last look was: what is not looked at is not known to go on."""
    unseen = engine(vitals=replace(vitals, process_at=100.0, canary_at=100.0))
    assert not {judge(unseen, 100.0 + 10.0**n).verdict for n in range(6)} & {
        Verdict.STALLED,
        Verdict.DEAD,
    }


@pytest.mark.parametrize(
    "sick",
    [
        http(100.0, "status"),
        http(100.0, "refused"),
        http(100.0, canary="failed", status=500),
        process(100.0, cores=0),
    ],
)
def test_one_sick_reading_and_then_none_is_not_death(sick: object) -> None:
    """Unknown is neither healthy nor sick: without a second look nothing is done."""
    story = serving(99.0).read(sick)  # type: ignore[arg-type]
    for second in range(1, 120):
        blind = reading("engine_process", 100.0 + second, error="cannot read")
        story.read(blind)
    assert not story.acts


@pytest.mark.parametrize("sick", [http(100.0, "status"), http(100.0, "refused")])
def test_nothing_that_piled_up_over_a_gap_is_acted_upon(sick: object) -> None:
    """After a long gap a condition must hold anew."""
    story = serving(99.0).read(sick)  # type: ignore[arg-type]
    story.asleep(3700.0)
    assert not story.acts
    assert story.events("watchdog.gap")


def test_a_start_that_nobody_can_see_is_not_killed() -> None:
    """No sign of progress and no sight of the start are two things; unknown never acts."""
    starting = engine(ProcessState.STARTING, vitals=Vitals(start_sign_at=0.0), ready_at=None)
    assert judge(starting, 1800.0).verdict is Verdict.STARTING


def test_a_completion_overtaken_by_tokens_is_no_stall() -> None:
    """Tokens that moved after a completion was sent speak louder than its time-out."""
    story = serving().read(process(4.0, stopped_members=1), metrics(5.0, 10.0, running=9.0))
    story.read(process(6.5, stopped_members=1), metrics(7.0, 20.0, running=9.0))
    story.read(http(7.5, "timeout", "timeout", took=4.0))
    assert story.engine.verdict is Verdict.BUSY
    assert not story.acts


def test_answers_without_an_end_are_dead_after_a_minute() -> None:
    """FACT (H7): neither /health nor a completion ever ends: degraded for a minute, then dead."""
    story = serving()
    for at in range(50, 111, 10):
        story.read(process(float(at)), http(float(at), "error", canary="failed"))
        if at == 100:
            assert story.engine.verdict is Verdict.DEGRADED
            assert story.engine.reasons == ("the completion got no whole answer",)
    assert story.engine.reasons == ("every completion has failed for 60 s",)
    assert [act.action for act in story.acts] == ["restart_engine"]


def test_a_health_without_an_end_does_not_outweigh_tokens() -> None:
    """FACT (H7): while tokens come it serves, whatever /health is."""
    story = serving()
    for at in range(50, 300, 10):
        story.read(process(float(at)), http(float(at), "error", canary="ok", status=200))
    assert story.engine.verdict is Verdict.READY
    assert story.acts == []


def test_tokens_break_a_row_of_failed_completions() -> None:
    """Two failed completions with hours of tokens between them are not a minute of failures."""
    story = serving().read(http(10.0, canary="failed", status=500))
    for hour in range(1, 3):
        story.read(metrics(3600.0 * hour, 100.0 * hour, running=3.0))
    story.read(http(7210.0, canary="failed", status=500))
    assert not story.acts


def test_a_server_error_after_client_errors_has_its_own_minute() -> None:
    """Only completions that failed with a server error count towards its minute."""
    story = serving()
    for minute in range(1, 10):
        story.read(http(60.0 * minute, canary="failed", status=404))
    story.read(http(600.0, canary="failed", status=500))
    assert not story.acts


def test_the_pause_between_two_compilers_is_no_stall() -> None:
    """An engine that compiled for 150 s is not stalled in the second in which no compiler runs."""
    story = serving()
    for second in range(1, 150):
        story.read(process(float(second), compilers=2, cpu_seconds=2.0 * second))
        if second % 6 == 0:
            story.read(http(float(second), "ok", "timeout", took=4.0), metrics(second, 0.0))
    story.read(process(150.0, compilers=0, cpu_seconds=300.0))
    assert not story.acts
