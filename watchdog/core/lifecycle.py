"""The life of an engine's processes as a table. The laws check that nothing else happens."""

from __future__ import annotations

from watchdog.core import vitals
from watchdog.core.changing import changed
from watchdog.core.model import ProcessState, Seconds
from watchdog.core.state import EngineState

_S = ProcessState

LIFE = frozenset({"start_engine", "stop_engine", "restart_engine"})
"""The actions that begin or end processes of an engine."""

TRANSITIONS: dict[ProcessState, frozenset[ProcessState]] = {
    # nothing runs; a start was decided, or an engine of an earlier watchdog was found
    _S.STOPPED: frozenset({_S.STARTING, _S.RUNNING, _S.STOPPING, _S.BACKOFF, _S.GIVEN_UP}),
    # spawned, no token yet
    _S.STARTING: frozenset({_S.RUNNING, _S.STOPPING, _S.BACKOFF, _S.GIVEN_UP}),
    # it has shown what it can
    _S.RUNNING: frozenset({_S.STOPPING, _S.BACKOFF, _S.GIVEN_UP}),
    # an action runs the stop ladder, and may spawn the next generation
    _S.STOPPING: frozenset(
        {_S.STOPPED, _S.STARTING, _S.RUNNING, _S.BACKOFF, _S.GIVEN_UP, _S.UNKILLABLE}
    ),
    # it failed; the next start waits for its time
    _S.BACKOFF: frozenset({_S.STARTING, _S.STOPPING, _S.STOPPED, _S.GIVEN_UP}),
    # the budget is spent or a retry cannot help: a person must decide
    _S.GIVEN_UP: frozenset({_S.STARTING, _S.STOPPING, _S.STOPPED, _S.BACKOFF}),
    # something survived SIGKILL: nothing is started on top of it
    _S.UNKILLABLE: frozenset({_S.STOPPING, _S.STOPPED}),
}


def move(engine: EngineState, to: ProcessState, at: Seconds) -> EngineState:
    """``engine`` in state ``to`` since ``at``; unchanged when it is there already.

    Of an engine that is given up no next try is due.
    """
    if engine.process is to:
        return engine
    if to is ProcessState.GIVEN_UP:
        engine = changed(engine, retry_at=None)
    return changed(engine, process=to, since=at)


def set_out(engine: EngineState, action: str, at: Seconds) -> EngineState:
    """``engine`` with ``action`` under way: what it was doing before is over.

    An action that is none of ``LIFE`` leaves its processes as they are.
    """
    if action not in LIFE:
        return changed(engine, aside=action)
    if action == "start_engine":
        engine = changed(
            move(engine, ProcessState.STARTING, at),
            vitals=vitals.begin(at),
            started_at=at,
            ready_at=None,
            failed_at=None,
        )
    else:
        engine = move(engine, ProcessState.STOPPING, at)
    return changed(engine, in_flight=action, charged=False, retry_at=None)
