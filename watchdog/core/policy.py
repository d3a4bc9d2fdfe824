"""Policy: what restrains an action. Budgets, backoff and breaker, and nothing about health."""

from __future__ import annotations

from watchdog.core import cards
from watchdog.core.changing import changed
from watchdog.core.model import Cause, Finding, HoldReason, Mode, ProcessState, Seconds, Verdict
from watchdog.core.state import (
    Attach,
    Budget,
    EngineState,
    PolicySettings,
    Restart,
    RestartHistory,
    State,
    StoppedBy,
)

_LIVE = frozenset({ProcessState.STARTING, ProcessState.RUNNING})


def barred(state: State, engine: EngineState, finding: Finding) -> HoldReason | None:
    """Why nothing may be done about ``finding`` whatever its rule says; None when it may."""
    if engine.process is ProcessState.UNKILLABLE:
        return HoldReason.UNKILLABLE
    if _under_way(state, engine):
        return HoldReason.IN_FLIGHT
    if state.mode is not Mode.ACT or finding.mode is not Mode.ACT or is_only_told(engine):
        return HoldReason.OBSERVE
    if state.pause is not None:
        return HoldReason.PAUSED
    outranked = cards.hold(state, engine)
    if outranked is not None:
        return outranked[0]
    return HoldReason.STALE if is_stale(state, engine) else None


def is_only_told(engine: EngineState) -> bool:
    """Whether nothing can be done about the engine: somebody else starts and ends it.

    So it is too while its processes are out of sight.
    """
    return engine.settings.attach is Attach.REPORT or is_out_of_sight(engine)


def is_out_of_sight(engine: EngineState) -> bool:
    """Whether it is there, started by somebody else, and none of its processes can be seen."""
    there = engine.process in _LIVE and not engine.in_flight and bool(engine.generation)
    return there and engine.settings.attach is not None and engine.leader is None


def spent(engine: EngineState, at: Seconds, policy: PolicySettings) -> HoldReason | None:
    """Why the account of the engine allows no start at ``at``; None when it does."""
    return _spent(engine, at, policy) or _waiting(engine, at, policy)


def spares(
    state: State, engine: EngineState, action: str, at: Seconds
) -> tuple[HoldReason, str] | None:
    """Why a rule must not start or stop the engine as it is, and in words; None when it may.

    No rule outranks the first promise. An engine that has not failed is only stopped when it is
    known that no request is in it.
    """
    match action:
        case _ if engine.history.stopped_by is StoppedBy.OPERATOR:
            return HoldReason.INHIBITED, "the engine was stopped by an operator"
        case "start_engine" if engine.process is not ProcessState.STOPPED:
            return HoldReason.INHIBITED, "the engine is not stopped"
        case "start_engine":
            return _outpaced(state, engine)
        case _ if engine.process is ProcessState.STOPPED:
            return HoldReason.INHIBITED, "the engine is stopped"
        case _ if engine.failed_at is None and engine.process in _LIVE:
            return _serving(state, engine, at)
        case _:
            return None


def _outpaced(state: State, engine: EngineState) -> tuple[HoldReason, str] | None:
    """Standbys start one after the other: what the first takes over is known when it serves."""
    coming = None if engine.history.wanted else _standby_in(state, engine, ProcessState.STARTING)
    if coming is None:
        return None
    return HoldReason.INHIBITED, f"the standby {coming.name} starts already"


def _standby_in(state: State, engine: EngineState, process: ProcessState) -> EngineState | None:
    """Another standby that is in ``process``, for an engine that is one too."""
    if not engine.settings.standby:
        return None
    others = (one for one in state.engines.values() if one.name != engine.name)
    return next((one for one in others if one.settings.standby and one.process is process), None)


def _serving(state: State, engine: EngineState, at: Seconds) -> tuple[HoldReason, str] | None:
    """Standbys stop one after the other: each is idle only as long as the others are there."""
    leaving = _standby_in(state, engine, ProcessState.STOPPING)
    if leaving is not None:
        return HoldReason.INHIBITED, f"the standby {leaving.name} stops already"
    vitals = engine.vitals
    since = max(at - engine.settings.fusion.stale_after, state.gap_at or 0.0)
    if engine.health is Verdict.BUSY:
        return HoldReason.INHIBITED, "the engine is busy"
    if vitals.running is None or vitals.metrics_at is None or vitals.metrics_at < since:
        return HoldReason.STALE, "how many requests are in the engine is not known"
    if vitals.running + (vitals.waiting or 0.0) > 0:
        return HoldReason.INHIBITED, "the engine is busy"
    return None


def is_stale(state: State, engine: EngineState) -> bool:
    """After a gap in which nobody looked, a verdict on a living engine needs a look to be true."""
    if state.gap_at is None or engine.process not in _LIVE:
        return False
    vitals = engine.vitals
    looks = (vitals.process_at, vitals.health_at, vitals.canary_at, vitals.metrics_at)
    return not any(seen is not None and seen >= state.gap_at for seen in looks)


def _under_way(state: State, engine: EngineState) -> bool:
    """A start that the verdict calls dead is over, although its processes live on."""
    starts = engine.process is ProcessState.STARTING and engine.failed_at is None
    return state.shutting_down or bool(engine.in_flight) or starts


def _spent(engine: EngineState, at: Seconds, policy: PolicySettings) -> HoldReason | None:
    history = engine.history
    if history.given_up is not None:
        return HoldReason.BLOCKED
    if history.breaker_open:
        return HoldReason.BREAKER_OPEN
    left = budget_remaining(history, at, policy, booted=engine.ready_at is not None)
    return HoldReason.BUDGET if left <= 0 else None


def _waiting(engine: EngineState, at: Seconds, policy: PolicySettings) -> HoldReason | None:
    due = retry_at(engine, at, policy)
    return HoldReason.BACKOFF if due is not None and at < due else None


def retry_at(engine: EngineState, at: Seconds, policy: PolicySettings) -> Seconds | None:
    """When backoff lets the next start happen.

    Of an engine that runs and has not failed it counts from its last restart.
    """
    runs = engine.process is ProcessState.RUNNING and engine.failed_at is None
    if not runs or not engine.history.restarts:
        return engine.retry_at
    if _is_stable(engine, at, policy):
        return None
    wait = backoff(engine.history.failures, engine.generation, policy)
    return engine.history.restarts[-1].at + wait


def _is_stable(engine: EngineState, at: Seconds, policy: PolicySettings) -> bool:
    return engine.ready_at is not None and at - engine.ready_at >= policy.reset_after_ready


def budget_remaining(
    history: RestartHistory, at: Seconds, policy: PolicySettings, *, booted: bool = False
) -> int:
    """Restarts left now: the smaller of what both budgets allow, never negative.

    The boot budget is no matter of an engine that has ``booted``.
    """
    used = _used(history.restarts, policy.restart_budget, at)
    if booted:
        return max(policy.restart_budget.count - used, 0)
    boots = tuple(r for r in history.restarts if r.boot)
    boot_used = _used(boots, policy.boot_budget, at)
    left = min(policy.restart_budget.count - used, policy.boot_budget.count - boot_used)
    return max(left, 0)


def _used(restarts: tuple[Restart, ...], budget: Budget, at: Seconds) -> int:
    return sum(at - restart.at < budget.window for restart in restarts)


def backoff(failures: int, seed: str, policy: PolicySettings) -> Seconds:
    """Seconds to wait after ``failures`` failures in a row; the first one waits for nothing.

    ``seed`` (a generation id, hexadecimal) spreads the jitter without a source of randomness.
    """
    if failures <= 0:
        return 0.0
    delay = min(policy.backoff_initial * 2.0 ** min(failures - 1, 62), policy.backoff_max)
    spread = int(seed[:8] or "0", 16) / 0xFFFFFFFF
    return delay * (1.0 + policy.backoff_jitter * spread)


def failed(  # noqa: PLR0913 - one failure, whole
    engine: EngineState,
    at: Seconds,
    cause: Cause,
    explanation: str,
    policy: PolicySettings,
    *,
    curable: bool = False,
    same: bool = False,
) -> EngineState:
    """``engine`` with the failure found at ``at``, and when backoff lets it be restarted.

    ``curable`` says that a retry may help although the cause is of those that it cannot cure.
    ``same`` says that it is one that was found before, of which more is known now.
    """
    if same:
        history = changed(engine.history, repeated=cause)
    else:
        history = _row(engine.history, cause, stable=_is_stable(engine, at, policy))
    if not curable and history.repeats > _worth(engine, cause, policy):
        history = changed(history, given_up=cause)
    return changed(
        engine,
        history=history,
        cause=cause,
        explanation=explanation,
        failed_at=at,
        began_at=at,
        retry_at=at + backoff(history.failures, engine.generation, policy),
    )


def _row(history: RestartHistory, cause: Cause, *, stable: bool) -> RestartHistory:
    """The row of failures with one more; ten minutes of service ended the one before."""
    if stable:
        return changed(history, failures=0, given_up=None, repeated=cause, repeats=1)
    repeats = history.repeats + 1 if cause is history.repeated else 1
    return changed(history, repeated=cause, repeats=repeats)


def _worth(engine: EngineState, cause: Cause, policy: PolicySettings) -> float:
    """Restarts in a row; an engine that has served with the same command is worth one at least."""
    retries = policy.retries.get(cause, float("inf"))
    return retries if engine.ready_at is None else max(retries, 1)


def healed(engine: EngineState) -> EngineState:
    """``engine`` whose failure went away before anything was done about it: it was none."""
    history = engine.history
    history = changed(history, given_up=None, repeats=max(history.repeats - 1, 0))
    return changed(engine, history=history, failed_at=None, began_at=None, retry_at=None)


def charge(engine: EngineState, at: Seconds, policy: PolicySettings) -> EngineState:
    """``engine`` with one automatic restart at ``at`` on its account."""
    window = max(policy.restart_budget.window, policy.boot_budget.window)
    kept = tuple(r for r in engine.history.restarts if at - r.at < window)
    restart = Restart(at, boot=engine.ready_at is None)
    history = changed(
        engine.history, restarts=(*kept, restart), failures=engine.history.failures + 1
    )
    return changed(engine, history=history)


def refunded(engine: EngineState) -> EngineState:
    """``engine`` without its last restart on its account: the box refused, and nothing was started.

    The failure counts for the backoff all the same.
    """
    return changed(engine, history=changed(engine.history, restarts=engine.history.restarts[:-1]))


def open_breaker(engine: EngineState) -> EngineState:
    """``engine`` after its budget was spent: only a person closes the breaker."""
    return changed(engine, history=changed(engine.history, breaker_open=True))


def is_given_up(engine: EngineState) -> bool:
    """Whether it should run and nobody starts it any more before a person has decided."""
    history = engine.history
    return history.wanted and (history.given_up is not None or history.breaker_open)


def forgiven(engine: EngineState) -> EngineState:
    """``engine`` with breaker closed and account cleared: a person took over."""
    history = changed(
        engine.history,
        restarts=(),
        failures=0,
        repeats=0,
        breaker_open=False,
        given_up=None,
    )
    return changed(engine, history=history, retry_at=None)
