"""Policy: what restrains an action. Budgets, backoff and breaker, and nothing about health."""

from __future__ import annotations

from dataclasses import replace

from watchdog.core import cards
from watchdog.core.model import Cause, Finding, HoldReason, Mode, ProcessState, Seconds
from watchdog.core.state import (
    Budget,
    EngineState,
    PolicySettings,
    Restart,
    RestartHistory,
    State,
)

INCURABLE = frozenset(
    {
        Cause.BAD_ARGUMENTS,
        Cause.MODEL_MISSING,
        Cause.MODEL_CHANGED,
        Cause.DRIVER_TOO_OLD,
        Cause.DRIVER_MISMATCH,
        Cause.CUDA_COMPAT_UNSUPPORTED,
    }
)
"""Causes of a failed start that stay as they are until a person changes something."""


def restraint(
    state: State, engine: EngineState, finding: Finding, at: Seconds, policy: PolicySettings
) -> HoldReason | None:
    """Why ``finding`` must not be acted upon at ``at``; None when it may be."""
    if engine.process is ProcessState.UNKILLABLE:
        return HoldReason.UNKILLABLE
    if _under_way(state, engine):
        return HoldReason.IN_FLIGHT
    if state.mode is not Mode.ACT or finding.mode is not Mode.ACT:
        return HoldReason.OBSERVE
    if state.pause is not None:
        return HoldReason.PAUSED
    outranked = cards.hold(state, engine)
    if outranked is not None:
        return outranked[0]
    return _spent(engine.history, at, policy) or _waiting(engine, at)


def _under_way(state: State, engine: EngineState) -> bool:
    """A start that the verdict calls dead is over, although its processes live on."""
    starts = engine.process is ProcessState.STARTING and engine.failed_at is None
    return state.shutting_down or bool(engine.in_flight) or starts


def _spent(history: RestartHistory, at: Seconds, policy: PolicySettings) -> HoldReason | None:
    if history.given_up is not None:
        return HoldReason.BLOCKED
    if history.breaker_open:
        return HoldReason.BREAKER_OPEN
    return HoldReason.BUDGET if budget_remaining(history, at, policy) <= 0 else None


def _waiting(engine: EngineState, at: Seconds) -> HoldReason | None:
    waits = engine.retry_at is not None and at < engine.retry_at
    return HoldReason.BACKOFF if waits else None


def budget_remaining(history: RestartHistory, at: Seconds, policy: PolicySettings) -> int:
    """Restarts left now: the smaller of what both budgets allow, never negative."""
    used = _used(history.restarts, policy.restart_budget, at)
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
) -> EngineState:
    """``engine`` with the failure found at ``at``, and when backoff lets it be restarted.

    ``curable`` says that a retry may help although the cause is of those that it cannot cure.
    """
    history = engine.history
    stable = engine.ready_at is not None and at - engine.ready_at >= policy.reset_after_ready
    failures = 0 if stable else history.failures
    incurable = cause in INCURABLE and engine.ready_at is None and not curable
    history = replace(history, failures=failures, given_up=cause if incurable else history.given_up)
    return replace(
        engine,
        history=history,
        cause=cause,
        explanation=explanation,
        failed_at=at,
        began_at=at,
        retry_at=at + backoff(failures, engine.generation, policy),
    )


def charge(engine: EngineState, at: Seconds, policy: PolicySettings) -> EngineState:
    """``engine`` with one automatic restart at ``at`` on its account."""
    window = max(policy.restart_budget.window, policy.boot_budget.window)
    kept = tuple(r for r in engine.history.restarts if at - r.at < window)
    restart = Restart(at, boot=engine.ready_at is None)
    history = replace(
        engine.history, restarts=(*kept, restart), failures=engine.history.failures + 1
    )
    return replace(engine, history=history)


def refunded(engine: EngineState) -> EngineState:
    """``engine`` without its last restart on its account: the box refused, and nothing was started.

    The failure counts for the backoff all the same.
    """
    return replace(engine, history=replace(engine.history, restarts=engine.history.restarts[:-1]))


def open_breaker(engine: EngineState) -> EngineState:
    """``engine`` after its budget was spent: only a person closes the breaker."""
    return replace(engine, history=replace(engine.history, breaker_open=True))


def forgiven(engine: EngineState) -> EngineState:
    """``engine`` with breaker closed and account cleared: a person took over."""
    history = replace(engine.history, restarts=(), failures=0, breaker_open=False, given_up=None)
    return replace(engine, history=history, retry_at=None)
