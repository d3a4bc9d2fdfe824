"""Policy: budgets, backoff and breaker, as numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import engine
from watchdog.core.model import (
    Cause,
    Finding,
    HoldReason,
    Mode,
    Pause,
    ProcessState,
    Severity,
    Verdict,
    engine_subject,
)
from watchdog.core.policy import (
    backoff,
    barred,
    budget_remaining,
    charge,
    failed,
    forgiven,
    healed,
    open_breaker,
    retry_at,
    spares,
    spent,
)
from watchdog.core.state import (
    RETRIES,
    EngineState,
    PolicySettings,
    Restart,
    RestartHistory,
    State,
    Vitals,
)

S = PolicySettings()
FINDING = Finding("engine-dead", engine_subject("main"), Severity.CRITICAL, "", 0.0, ("x",))
DEAD = engine(ProcessState.BACKOFF, failed_at=100.0, retry_at=100.0)


def _history(*ats: float, boot: bool = False) -> RestartHistory:
    return RestartHistory(restarts=tuple(Restart(at, boot) for at in ats))


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0.0), (1, 1.0), (2, 2.0), (9, 256.0), (10, 300.0), (10_000, 300.0)],
)
def test_backoff_doubles_up_to_its_maximum(failures: int, seconds: float) -> None:
    """The first failure waits for nothing, the others 1, 2, 4 ... 300 s."""
    assert backoff(failures, "00000000", S) == seconds


def test_jitter_only_lengthens_and_is_bounded() -> None:
    """The jitter adds at most a tenth, and comes from the generation's id."""
    assert backoff(3, "ffffffffdead", S) == pytest.approx(4.4)
    assert 4.0 < backoff(3, "80000000", S) < 4.4
    assert backoff(3, "", S) == 4.0


def test_the_budget_counts_restarts_in_a_sliding_window() -> None:
    """Five an hour; one comes back when the oldest is an hour old."""
    five = _history(0.0, 1.0, 2.0, 3.0, 4.0)
    assert budget_remaining(five, 3599.9, S) == 0
    assert budget_remaining(five, 3600.0, S) == 1
    assert budget_remaining(_history(), 0.0, S) == 3


def test_boot_failures_count_in_both_budgets() -> None:
    """Three failed boots spend the boot budget, and three of the five of all."""
    assert budget_remaining(_history(0.0, 1.0, 2.0, boot=True), 3.0, S) == 0
    mixed = RestartHistory(restarts=(Restart(0.0, boot=True), *_history(1.0, 2.0, 3.0).restarts))
    assert budget_remaining(mixed, 4.0, S) == 1


def test_a_charge_forgets_what_no_window_reaches() -> None:
    """The account stays bounded over years."""
    account = engine()
    for hour in range(100):
        account = charge(account, hour * 1800.0, S)
    assert len(account.history.restarts) == 2


@pytest.mark.parametrize(("ready_at", "boot"), [(None, True), (50.0, False)])
def test_a_restart_of_what_never_got_ready_is_a_boot(ready_at: float | None, boot: bool) -> None:  # noqa: FBT001
    """Only a start that never served counts in the boot budget."""
    assert charge(engine(ready_at=ready_at), 60.0, S).history.restarts == (Restart(60.0, boot),)


@pytest.mark.parametrize(("ready_for", "waits"), [(599.9, 2.0), (600.0, 0.0)])
def test_ready_time_resets_the_backoff(ready_for: float, waits: float) -> None:
    """Ten ready minutes make a failure the first one again; a spawn alone does not."""
    sick = engine(history=RestartHistory(failures=2), ready_at=0.0)
    found = failed(sick, ready_for, Cause.CRASH, "", S)
    assert found.retry_at == pytest.approx(ready_for + waits, rel=1e-6)


@pytest.mark.parametrize("cause", sorted(c for c, count in RETRIES.items() if count == 0))
def test_an_incurable_start_is_given_up_but_not_a_running_engine(cause: Cause) -> None:
    """A cause that a retry cannot cure ends the retries of a start, not of what had served."""
    assert failed(engine(ready_at=None), 1.0, cause, "", S).history.given_up is cause
    assert failed(engine(), 1.0, cause, "", S).history.given_up is None


def _held(sick: EngineState = DEAD, state: State | None = None, at: float = 100.0) -> object:
    state = State() if state is None else state
    return barred(state, sick, FINDING) or spent(sick, at, S)


def test_nothing_restrains_the_first_restart() -> None:
    """A failure with a clean account is acted upon at once."""
    assert _held() is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"retry_at": 100.1}, HoldReason.BACKOFF),
        ({"in_flight": "restart_engine"}, HoldReason.IN_FLIGHT),
        ({"process": ProcessState.UNKILLABLE}, HoldReason.UNKILLABLE),
        ({"process": ProcessState.STARTING, "failed_at": None}, HoldReason.IN_FLIGHT),
        ({"history": RestartHistory(breaker_open=True)}, HoldReason.BREAKER_OPEN),
        ({"history": RestartHistory(given_up=Cause.MODEL_MISSING)}, HoldReason.BLOCKED),
        ({"history": _history(1.0, 2.0, 3.0, 4.0, 5.0)}, HoldReason.BUDGET),
    ],
)
def test_each_restraint_has_its_reason(change: dict[str, object], reason: HoldReason) -> None:
    """What holds an action is named."""
    assert _held(replace(DEAD, **change)) is reason  # type: ignore[arg-type]


def test_what_is_under_way_outranks_mode_and_mode_outranks_pause() -> None:
    """A restart that runs is what holds its finding; a pause that begins then changes nothing."""
    running = replace(DEAD, in_flight="restart_engine")
    paused = State(pause=Pause("why", "me", 0.0))
    assert _held(running, paused) is HoldReason.IN_FLIGHT
    assert _held(DEAD, paused) is HoldReason.PAUSED
    assert _held(DEAD, replace(paused, mode=Mode.OBSERVE)) is HoldReason.OBSERVE
    quiet_rule = replace(FINDING, mode=Mode.OBSERVE)
    assert barred(State(), DEAD, quiet_rule) is HoldReason.OBSERVE


STALLED = engine(failed_at=90.0, vitals=Vitals(process_at=99.0, health_at=98.0))


@pytest.mark.parametrize(
    ("gap_at", "sick", "reason"),
    [
        (None, STALLED, None),
        (99.0, STALLED, None),
        (99.1, STALLED, HoldReason.STALE),
        (99.1, replace(STALLED, process=ProcessState.STARTING), HoldReason.STALE),
        (99.1, DEAD, None),
        (99.1, replace(DEAD, process=ProcessState.STOPPED), None),
    ],
)
def test_after_a_gap_a_living_engine_needs_a_look(
    gap_at: float | None, sick: EngineState, reason: HoldReason | None
) -> None:
    """What was known before nobody looked decides about no process; what is gone needs no look."""
    assert barred(State(gap_at=gap_at), sick, FINDING) is reason


@pytest.mark.parametrize("looked", ["process_at", "health_at", "canary_at", "metrics_at"])
def test_a_look_of_any_probe_ends_the_staleness(looked: str) -> None:
    """One answer after the gap is enough."""
    seen = replace(STALLED, vitals=replace(Vitals(), **{looked: 150.0}))  # type: ignore[arg-type]
    assert barred(State(gap_at=150.0), seen, FINDING) is None
    assert barred(State(gap_at=150.1), seen, FINDING) is HoldReason.STALE


IDLE = Vitals(metrics_at=95.0, running=0.0, waiting=0.0)
LOADED = replace(IDLE, running=1.0)
QUEUED = replace(IDLE, waiting=1.0)
OLD = replace(IDLE, metrics_at=84.9)


@pytest.mark.parametrize(
    ("action", "change", "reason"),
    [
        ("restart_engine", {"health": Verdict.BUSY}, HoldReason.INHIBITED),
        ("stop_engine", {"health": Verdict.BUSY}, HoldReason.INHIBITED),
        ("restart_engine", {"health": Verdict.READY}, None),
        ("stop_engine", {"health": Verdict.READY}, None),
        ("restart_engine", {"health": Verdict.DEGRADED, "verdict": Verdict.BUSY}, None),
        ("restart_engine", {"vitals": LOADED}, HoldReason.INHIBITED),
        ("stop_engine", {"vitals": QUEUED}, HoldReason.INHIBITED),
        ("restart_engine", {"vitals": Vitals()}, HoldReason.STALE),
        ("restart_engine", {"vitals": OLD}, HoldReason.STALE),
        ("stop_engine", {"vitals": OLD}, HoldReason.STALE),
        ("restart_engine", {"vitals": LOADED, "failed_at": 99.0}, None),
        ("restart_engine", {"vitals": Vitals(), "failed_at": 99.0}, None),
        ("stop_engine", {"process": ProcessState.STOPPED}, HoldReason.INHIBITED),
        ("stop_engine", {"process": ProcessState.BACKOFF, "failed_at": 99.0}, None),
        ("start_engine", {"process": ProcessState.STOPPED}, None),
        ("start_engine", {}, HoldReason.INHIBITED),
        ("start_engine", {"process": ProcessState.BACKOFF}, HoldReason.INHIBITED),
    ],
)
def test_what_no_rule_may_do_to_an_engine(
    action: str, change: dict[str, object], reason: HoldReason | None
) -> None:
    """What may have requests is let be; what runs is not started, what is stopped not stopped."""
    one = engine(**{"vitals": IDLE, **change})  # type: ignore[arg-type]
    spared = spares(State(), one, action, 100.0)
    assert (spared[0] if spared is not None else None) is reason


@pytest.mark.parametrize(("gap_at", "known"), [(None, True), (95.0, True), (95.1, False)])
def test_a_load_of_before_a_gap_is_not_known(gap_at: float | None, known: bool) -> None:  # noqa: FBT001
    """Counters that were read before nobody looked say nothing of the requests of now."""
    spared = spares(State(gap_at=gap_at), engine(vitals=IDLE), "restart_engine", 100.0)
    words = "how many requests are in the engine is not known"
    assert spared == (None if known else (HoldReason.STALE, words))


@pytest.mark.parametrize(("booted", "left"), [(False, 0), (True, 2)])
def test_the_boot_budget_is_no_matter_of_what_has_served(booted: bool, left: int) -> None:  # noqa: FBT001
    """Three starts that never got ready bar a fourth, and no restart of one that did."""
    history = _history(1.0, 2.0, 3.0, boot=True)
    assert budget_remaining(history, 10.0, S, booted=booted) == left


def test_a_working_engine_waits_from_its_last_restart() -> None:
    """A rule that restarts again and again what serves waits as long as for a failure."""
    history = replace(_history(50.0), failures=4)
    runs = engine(ready_at=60.0, history=history)
    assert retry_at(runs, 61.0, S) == pytest.approx(58.0, abs=0.1)
    assert spent(runs, 57.9, S) is HoldReason.BACKOFF
    assert spent(runs, 58.1, S) is None
    assert retry_at(runs, 660.0, S) is None  # ten minutes of service ended the row


def test_a_failure_that_is_explained_later_counts_once() -> None:
    """The exit of an engine that was found stalled is the same failure, by its better name."""
    one = failed(engine(), 10.0, Cause.STALLED, "", S)
    two = failed(one, 12.0, Cause.CUDA_OOM, "", S, same=True)
    assert (one.history.repeats, two.history.repeats) == (1, 1)
    assert two.history.repeated is Cause.CUDA_OOM


def test_a_failure_that_heals_by_itself_is_taken_back() -> None:
    """Nothing is given up for it, and it does not count in the row."""
    policy = replace(S, retries={Cause.STALLED: 1})
    twice = failed(
        failed(engine(), 10.0, Cause.STALLED, "", policy), 20.0, Cause.STALLED, "", policy
    )
    assert twice.history.given_up is Cause.STALLED
    well = healed(twice)
    assert (well.history.given_up, well.history.repeats) == (None, 1)
    assert (well.failed_at, well.retry_at) == (None, None)


def test_a_start_that_is_found_dead_may_be_restarted() -> None:
    """Its processes live on, but nobody waits for it any more."""
    assert _held(replace(DEAD, process=ProcessState.STARTING)) is None


def test_an_open_breaker_leaves_the_processes_alone() -> None:
    """A stalled engine keeps its processes."""
    assert open_breaker(engine()).history.breaker_open
    assert open_breaker(engine()).process is ProcessState.RUNNING


def test_forgiveness_clears_the_account_and_keeps_the_wish() -> None:
    """Breaker, budget, backoff and verdict on the cause go; ``wanted`` and ``starts`` stay."""
    spent = replace(_history(1.0), breaker_open=True, failures=4, wanted=False, starts=7)
    clean = forgiven(engine(history=spent, retry_at=9.0))
    assert clean.history == RestartHistory(wanted=False, starts=7)
    assert clean.retry_at is None
