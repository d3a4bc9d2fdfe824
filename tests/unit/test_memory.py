"""What outlives the watchdog of a rest and of a wait that were under way when it died."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.core import NAME, engine
from watchdog.core.model import Cause, ProcessState, Seconds, engine_subject
from watchdog.core.state import (
    EngineSettings,
    EngineState,
    RestartHistory,
    State,
    Step,
    StoppedBy,
    Track,
)
from watchdog.daemon.memory import Memory
from watchdog.store import Store

KEY = ("mine", engine_subject(NAME))
SOON: Seconds = 5.0
"""What saving and recalling may take."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A real one."""
    with contextlib.closing(Store.open(tmp_path / "store")) as one:
        yield one


def recalled(store: Store, state: State) -> State:
    """``state`` as the next watchdog begins with it."""
    Memory(store).keep(Step(state))
    return Memory(store).recall((EngineSettings(NAME),), frozenset())


def test_an_action_that_died_with_us_ended_then(store: Store) -> None:
    """FACT: the rule rests from our last word on, not from when the action was decided."""
    now = time.monotonic()
    running = Track(1, acted_at=now - 600.0, action="restart_engine")
    (track,) = recalled(store, State(tracks={KEY: running})).tracks.values()
    assert track.ended_at is not None
    assert 0.0 <= track.ended_at - now < SOON
    assert replace(track, ended_at=None) == running


def test_what_had_ended_before_stays_ended_then(store: Store) -> None:
    """FACT: a rest is not prolonged by our own restart."""
    now = time.monotonic()
    over = Track(1, acted_at=now - 600.0, ended_at=now - 500.0, action="dump")
    assert recalled(store, State(tracks={KEY: over})).tracks == {KEY: over}


def failing(due: Seconds, **history: object) -> EngineState:
    """An engine that waits for its next start until ``due``."""
    kept = RestartHistory(failures=4, repeated=Cause.CUDA_OOM, **history)  # type: ignore[arg-type]
    return engine(
        ProcessState.BACKOFF, history=kept, failed_at=due - 8.0, retry_at=due, leader=None
    )


def test_a_wait_goes_on_over_our_own_death(store: Store) -> None:
    """FACT: who restarts the watchdog does not get around the backoff of the engine."""
    due = time.monotonic() + 200.0
    state = recalled(store, State({NAME: failing(due)}))
    one = state.engines[NAME]
    assert (one.process, one.retry_at) == (ProcessState.BACKOFF, due)
    assert (one.cause, one.history.failures) == (Cause.CUDA_OOM, 4)


@pytest.mark.parametrize(
    ("changes", "process"),
    [
        ({"wanted": False, "stopped_by": StoppedBy.OPERATOR}, ProcessState.STOPPED),
        ({"breaker_open": True}, ProcessState.GIVEN_UP),
    ],
)
def test_what_is_not_to_be_started_does_not_wait(
    store: Store, changes: dict[str, object], process: ProcessState
) -> None:
    """FACT: nobody wants it, or only a person may start it."""
    due = time.monotonic() + 200.0
    one = recalled(store, State({NAME: failing(due, **changes)})).engines[NAME]
    assert (one.process, one.retry_at) == (process, None)
    told = "it was given up before this watchdog began: cuda_oom"
    assert one.reasons == ((told,) if process is ProcessState.GIVEN_UP else ())


def test_an_engine_that_serves_has_no_debt(store: Store) -> None:
    """FACT: what it waited for before it was started is over."""
    memory = Memory(store)
    memory.keep(Step(State({NAME: failing(time.monotonic() + 200.0)})))
    memory.keep(Step(State({NAME: engine()})))
    one = Memory(store).recall((EngineSettings(NAME),), frozenset()).engines[NAME]
    assert (one.process, one.retry_at) == (ProcessState.STOPPED, None)
