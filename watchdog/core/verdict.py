"""Fuses an engine's vital signs into one verdict, with the sentences that explain it.

The order of the questions is the order of certainty. A stall is only ever named when a completion
was asked for and did not come: slow HTTP, still counters and a busy GPU prove nothing alone. One
data parallel rank of several is named when completions left it as it was: none is sent to it alone.

How long something has lasted is counted up to the last look at it, never up to now: what cannot
be seen any more is not known to go on.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchdog.core import ranks
from watchdog.core.model import Cause, ProcessState, Seconds, Verdict
from watchdog.core.state import EngineState, FusionSettings, Vitals
from watchdog.core.vitals import answers, is_fault

_STATIC = {
    ProcessState.STOPPED: Verdict.STOPPED,
    ProcessState.STOPPING: Verdict.STOPPING,
    ProcessState.BACKOFF: Verdict.DEAD,
    ProcessState.GIVEN_UP: Verdict.GIVEN_UP,
    ProcessState.UNKILLABLE: Verdict.UNKILLABLE,
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, why, and for ``dead`` and ``stalled`` its cause and when the trouble began."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    cause: Cause = Cause.UNKNOWN
    began_at: Seconds | None = None


def judge(engine: EngineState, at: Seconds) -> Judgement:
    """The verdict on ``engine`` at ``at``."""
    static = _STATIC.get(engine.process)
    if static is not None:
        return Judgement(static, engine.reasons)
    if engine.process is ProcessState.STARTING:
        return _starting(engine, at)
    return _running(engine.vitals, at, engine.settings.fusion)


_IN_NEED_OF_A_GPU = frozenset(
    {Verdict.READY, Verdict.BUSY, Verdict.DEGRADED, Verdict.STALLED, Verdict.DEAD}
)


def with_gpus(judged: Judgement, faults: tuple[str, ...]) -> Judgement:
    """The verdict that counts the engine's GPUs too: a faulty one outranks what comes of it."""
    if not faults or judged.verdict not in _IN_NEED_OF_A_GPU:
        return judged
    return Judgement(Verdict.GPU_FAULT, (*faults, *judged.reasons), judged.cause, judged.began_at)


def is_first_ready(vitals: Vitals, *, expects_log: bool = False) -> bool:
    """Whether a start is over: the engine answers, and its log has shown what is expected of it.

    One that answers without a token runs, ``degraded``.
    """
    return answers(vitals) and (not expects_log or vitals.expected_missing == "")


def _starting(engine: EngineState, at: Seconds) -> Judgement:
    if engine.leader is None and engine.in_flight:
        attached = engine.settings.attach is not None
        awaited = "waiting to be started by somebody else" if attached else "waiting at its gate"
        return Judgement(Verdict.STARTING, (awaited,))
    vitals, settings = engine.vitals, engine.settings
    gone = _core_gone(vitals, settings.fusion) or _worker_gone(vitals, settings.fusion)
    if gone is not None and gone.verdict is Verdict.DEAD:
        return gone
    began = engine.started_at if engine.started_at is not None else at
    sign = vitals.start_sign_at if vitals.start_sign_at is not None else began
    seen = vitals.process_at if vitals.process_at is not None else sign
    if seen - sign >= settings.start_timeout:
        return _overdue(
            engine, f"no progress of the start for {settings.start_timeout:.0f} s", sign
        )
    if settings.start_deadline is not None and at - began >= settings.start_deadline:
        return _overdue(engine, f"not ready within {settings.start_deadline:.0f} s", began)
    unshown = _unshown(engine)
    looked_at = vitals.expected_at if vitals.expected_missing is not None else None
    if unshown and _lasted(vitals.answered_at, looked_at) >= settings.start_timeout:
        text = f"not ready {settings.start_timeout:.0f} s after its first answer"
        return _overdue(engine, text, vitals.answered_at)
    return Judgement(Verdict.STARTING, unshown or ("waiting for the first token",))


def _overdue(engine: EngineState, text: str, since: Seconds | None) -> Judgement:
    unshown = _unshown(engine)
    known = bool(unshown) and engine.vitals.expected_missing is not None
    cause = Cause.NOT_EXPECTED if known else Cause.START_TIMEOUT
    return Judgement(Verdict.DEAD, (text, *unshown), cause, since)


def _unshown(engine: EngineState) -> tuple[str, ...]:
    """What keeps an engine that has answered from being ready: its log, as far as it was read."""
    missing = engine.vitals.expected_missing
    if not engine.settings.expects_log or engine.vitals.answered_at is None or missing == "":
        return ()
    if missing is None:
        return ("its log has not been read yet",)
    return (f"the log has not shown '{missing}' yet",)


def _running(v: Vitals, at: Seconds, s: FusionSettings) -> Judgement:
    return (
        _unproven(v)
        or _core_gone(v, s)
        or _worker_gone(v, s)
        or _unhealthy(v, s)
        or _refused(v, s)
        or _cannot_serve(v, s)
        or _hung_rank(v, at, s)
        or _stall(v, at, s)
        or _silent(v, at, s)
        or _serving(v)
    )


def _unproven(v: Vitals) -> Judgement | None:
    if v.process_at is None and v.health_at is None and v.metrics_at is None:
        return Judgement(Verdict.DEGRADED, ("not looked at yet",))
    return None


def _silent(v: Vitals, at: Seconds, s: FusionSettings) -> Judgement | None:
    """Nobody says it is sick, but nobody has seen it serve either."""
    if v.progressed_at is None:
        return Judgement(Verdict.DEGRADED, ("no token seen yet",))
    if at - v.progressed_at < s.proof_for:
        return None
    return Judgement(Verdict.DEGRADED, (f"no token seen for {at - v.progressed_at:.0f} s",))


def _core_gone(v: Vitals, s: FusionSettings) -> Judgement | None:
    text = "EngineCore is gone, the API server lives on"
    dead = Judgement(Verdict.DEAD, (text,), Cause.ENGINE_CORE_DIED, v.core_gone_since)
    return _gone(v, s, dead, "EngineCore is missing")


def _worker_gone(v: Vitals, s: FusionSettings) -> Judgement | None:
    """An EngineCore of vLLM takes seconds to come down by it."""
    text = "a worker is gone, EngineCore lives on"
    dead = Judgement(Verdict.DEAD, (text,), Cause.WORKER_DIED, v.worker_gone_since)
    return _gone(v, s, dead, "a worker is missing")


def _gone(v: Vitals, s: FusionSettings, dead: Judgement, missing: str) -> Judgement | None:
    """``dead`` once it is certain; None when nothing is missing."""
    if dead.began_at is None:
        return None
    if v.health == "status" or _lasted(dead.began_at, v.process_at) >= s.core_gone_confirm:
        return dead
    return Judgement(Verdict.DEGRADED, (missing,))


def _unhealthy(v: Vitals, s: FusionSettings) -> Judgement | None:
    if v.health != "status" or v.health_since is None:
        return None
    if _lasted(v.health_since, v.health_at) < s.unhealthy_limit:
        return Judgement(Verdict.DEGRADED, ("/health answers with an error",))
    text = f"/health has answered with an error for {s.unhealthy_limit:.0f} s"
    return Judgement(Verdict.DEAD, (text,), Cause.ENGINE_CORE_DIED, v.health_since)


def _refused(v: Vitals, s: FusionSettings) -> Judgement | None:
    if v.health != "refused" or v.health_since is None:
        return None
    if _lasted(v.health_since, v.health_at) < s.refused_limit:
        return Judgement(Verdict.DEGRADED, ("the engine refuses connections",))
    text = f"the engine has refused connections for {s.refused_limit:.0f} s"
    return Judgement(Verdict.DEAD, (text,), Cause.CRASH, v.health_since)


def _cannot_serve(v: Vitals, s: FusionSettings) -> Judgement | None:
    if v.sleeping:
        return Judgement(Verdict.DEGRADED, ("the engine sleeps",))
    newer = v.canary_at is not None and (v.progressed_at or 0.0) < v.canary_at
    if not newer or v.canary not in {"unauthorized", "failed"}:
        return None
    if v.canary == "unauthorized":
        return Judgement(Verdict.DEGRADED, ("the completion was refused: API key needed",))
    since = v.canary_since if v.canary_since is not None else v.canary_at
    lasted = _lasted(since, v.canary_at)
    if is_fault(v.canary_status) and lasted >= s.unhealthy_limit:
        text = f"every completion has failed for {s.unhealthy_limit:.0f} s"
        return Judgement(Verdict.DEAD, (text,), Cause.CRASH, since)
    how = f"failed with {v.canary_status}" if v.canary_status else "got no whole answer"
    return Judgement(Verdict.DEGRADED, (f"the completion {how}",))


def _stall(v: Vitals, at: Seconds, s: FusionSettings) -> Judgement | None:
    """None while no completion is overdue; else stalled, or what speaks against it."""
    if v.failing_since is None:
        return None
    since = v.failing_since
    waited = _lasted(since, v.canary_at)
    if v.stopped_since is not None and _lasted(v.stopped_since, v.process_at) >= s.stopped_confirm:
        return _stalled(_stopped(v), min(since, v.stopped_since))
    if _recent(v.compilers_at, at, s):
        limit, why = s.compile_stall, "compilers run"
    elif _recent(v.gpu_busy_at, at, s):
        limit, why = s.blind_stall, "the GPU is at work"
    elif _quiet(v, at, s):
        if v.timeouts >= s.stall_canaries:
            return _stalled(f"{v.timeouts} completions timed out and nothing computes", since)
        return Judgement(Verdict.DEGRADED, (f"{v.timeouts} completions timed out",))
    elif not _recent(v.metrics_at, at, s):
        limit, why = s.blind_stall, "its counters cannot be read"
    else:
        limit, why = s.long_stall, "it computes"
    if v.timeouts >= s.stall_canaries and waited >= limit:
        return _stalled(f"no token for {waited:.0f} s although {why}", since)
    return Judgement(Verdict.BUSY, (f"no token for {waited:.0f} s, but {why}",))


def _hung_rank(v: Vitals, at: Seconds, s: FusionSettings) -> Judgement | None:
    """A rank that stands still with requests while others move, for as long as an engine might."""
    found = ranks.hung(v, 1) if v.still else None
    if found is None:
        return None
    rank, since = found
    waited = _lasted(since, v.metrics_at)
    if v.stopped_since is not None and _lasted(v.stopped_since, v.process_at) >= s.stopped_confirm:
        limit, why = s.rank_confirm, _stopped(v)
    elif ranks.hung(v, s.stall_canaries) is None:
        return None
    elif _recent(v.compilers_at, at, s):
        limit, why = s.compile_stall, "although compilers run"
    elif _recent(v.gpu_busy_at, at, s):
        limit, why = s.blind_stall, "although a GPU is at work"
    else:
        limit, why = s.long_stall, "and others move"
    if waited < limit:
        return None
    return _stalled(f"rank {rank} has requests and no token for {waited:.0f} s, {why}", since)


def _lasted(since: Seconds | None, seen_at: Seconds | None) -> Seconds:
    return 0.0 if since is None or seen_at is None else seen_at - since


def _stalled(text: str, since: Seconds) -> Judgement:
    return Judgement(Verdict.STALLED, (text,), Cause.STALLED, since)


def _recent(seen_at: Seconds | None, at: Seconds, s: FusionSettings) -> bool:
    return seen_at is not None and at - seen_at <= s.stale_after


def _quiet(v: Vitals, at: Seconds, s: FusionSettings) -> bool:
    """Nothing computed since the first overdue completion, as far as a fresh reading tells."""
    if v.quiet_since is None or v.failing_since is None or not _recent(v.process_at, at, s):
        return False
    return v.quiet_since <= v.failing_since + s.stopped_confirm


def _serving(v: Vitals) -> Judgement:
    load = (v.running or 0.0) + (v.waiting or 0.0)
    if load > 0:
        return Judgement(Verdict.BUSY, (f"{load:.0f} requests in the engine",))
    return Judgement(Verdict.READY)


def next_look(engine: EngineState, at: Seconds) -> Seconds | None:
    """The next moment at which time alone can change the verdict, or None.

    Trouble needs a look to be known, so only proof that grows old and a start's deadline count.
    """
    moments = [_after(engine.vitals.progressed_at, engine.settings.fusion.proof_for)]
    if engine.process is ProcessState.STARTING:
        moments.append(_after(engine.started_at, engine.settings.start_deadline))
    return min((m for m in moments if m is not None and m > at), default=None)


def _after(since: Seconds | None, duration: Seconds | None) -> Seconds | None:
    return None if since is None or duration is None else since + duration


def _stopped(vitals: Vitals) -> str:
    """How many stand still, and who the first of them is."""
    count = vitals.stopped_members
    told = "1 stopped process" if count == 1 else f"{count} stopped processes"
    return f"{told}: {vitals.stopped}" if vitals.stopped else told
