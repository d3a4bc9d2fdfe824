"""Who is to be in the group: who serves, and is not about to be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from watchdog.core.lifecycle import LIFE
from watchdog.core.model import SERVING, HoldReason, Mode, ProcessState, Verdict
from watchdog.core.state import EngineState, State

_STOP = "stop_engine"
_ITS_REQUESTS = frozenset({None, HoldReason.INHIBITED, HoldReason.STALE})
"""What holds a stop that only waits for the requests in the engine."""


def members(state: State, before: AbstractSet[str]) -> frozenset[str]:
    """Names of the engines that are to be asked, where ``before`` were so far.

    A degraded engine stays what it was: it is not known to serve, nor not to. A standby that a rule
    wants to stop takes no more requests, or under steady traffic it would never be without.
    """
    found = {one.name for one in state.engines.values() if _serves(one, before)}
    leaving = {one for one in found if one in _to_stop(state)}
    return frozenset(found - leaving if found != leaving else found)


def _serves(engine: EngineState, before: AbstractSet[str]) -> bool:
    if engine.process is not ProcessState.RUNNING or engine.in_flight in LIFE:
        return False
    if engine.verdict is Verdict.DEGRADED:
        return _is_in_doubt(engine) and (engine.name in before or _is_unseen(engine))
    return engine.verdict in SERVING


def _is_in_doubt(engine: EngineState) -> bool:
    """Whether nothing says for certain that it answers nobody."""
    vitals = engine.vitals
    lost = (vitals.core_gone_since, vitals.worker_gone_since)
    silent = vitals.health in {"status", "refused"} or lost != (None, None)
    return not silent and not vitals.sleeping


def _is_unseen(engine: EngineState) -> bool:
    """An earlier watchdog knew that it serves, and nobody has looked since."""
    vitals = engine.vitals
    looks = (vitals.process_at, vitals.health_at, vitals.canary_at, vitals.metrics_at)
    return engine.adopted and engine.ready_at is not None and not any(looks)


def _to_stop(state: State) -> Iterator[str]:
    for (_, subject), seen in state.watches.items():
        engine = state.engines.get(subject.name)
        if engine is None or engine.subject != subject or not engine.settings.standby:
            continue
        one = seen.firing
        if one is None or one.mode is not Mode.ACT or _STOP not in one.actions[:1]:
            continue
        if seen.held in _ITS_REQUESTS and seen.clear_since is None:
            yield engine.name
