"""Laws of what must outlive the watchdog: saving and recalling changes no restraint."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.lawful import lawful
from tests.laws.user_rules import user_rules, with_own
from tests.laws.world import SETTINGS, Moment, World, moments
from watchdog.core import ladder, policy
from watchdog.core.model import Cause, Pause, ProcessState, Seconds, engine_subject
from watchdog.core.rules import Rule
from watchdog.core.state import (
    EngineSettings,
    EngineState,
    Restart,
    RestartHistory,
    State,
    Step,
    Track,
)
from watchdog.daemon.memory import Memory
from watchdog.store import Store

NAMES = ("a",)
OTHER_BOOT = "another-boot"
_SOON: Seconds = 2.0
"""What saving and recalling may take."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """A state as it was recalled, and what its clock showed then."""

    state: State
    now: Seconds


@contextmanager
def _store() -> Iterator[tuple[Store, Path]]:
    with tempfile.TemporaryDirectory() as name:
        store = Store.open(Path(name))
        try:
            yield store, Path(name)
        finally:
            store.close()


def _kept(state: State, now: Seconds, down: Seconds | None) -> Recalled:
    """``state`` through a store; ``down`` None is the same boot, else the seconds of a reboot."""
    with _store() as (store, folder):
        Memory(store).keep(Step(state))
        if down is None:
            _saved(folder, now)
        else:
            _rebooted(folder, now, down)
        again = Memory(store).recall((EngineSettings("a"),), frozenset())
    return Recalled(again, now if down is None else time.monotonic())


def _saved(folder: Path, now: Seconds) -> None:
    """As if all of it had been saved at ``now`` of this boot."""
    with contextlib.closing(sqlite3.connect(folder / "store.sqlite3")) as own, own:
        own.execute("UPDATE saved SET monotonic = ?", (now,))


def _rebooted(folder: Path, now: Seconds, down: Seconds) -> None:
    """As if all of it had been saved at ``now`` of a boot that ended ``down`` seconds ago."""
    with contextlib.closing(sqlite3.connect(folder / "store.sqlite3")) as own, own:
        own.execute(
            "UPDATE saved SET boot_id = ?, monotonic = ?, wall = ?",
            (OTHER_BOOT, now, time.time() - down),
        )


def _close(one: Seconds, other: Seconds) -> bool:
    return abs(one - other) < _SOON


def _same_restraint(before: State, now: Seconds, after: Recalled, down: Seconds) -> None:
    """Counted from now on, every duration is what it was, less the time that passed."""
    passed = now + down
    old, new = before.engines["a"].history, after.state.engines["a"].history
    unchanged = replace(old, restarts=(), given_up=None, starts=0)
    assert replace(new, restarts=(), given_up=None, starts=0) == unchanged
    assert [r.boot for r in old.restarts] == [r.boot for r in new.restarts]
    for was, now_is in zip(old.restarts, new.restarts, strict=True):
        assert _close(passed - was.at, after.now - now_is.at)
    for later in (0.0, 100.0, 1000.0, 3000.0):
        if not any(_close(passed + later - r.at, 3600.0) for r in old.restarts):
            left = policy.budget_remaining(old, passed + later, SETTINGS)
            assert policy.budget_remaining(new, after.now + later, SETTINGS) == left
    assert policy.backoff(old.failures, "", SETTINGS) == policy.backoff(new.failures, "", SETTINGS)
    _same_debt(before.engines["a"], passed, after)
    _same_pause(before, passed, after)


def _same_debt(old: EngineState, passed: Seconds, after: Recalled) -> None:
    """An engine that failed waits for its next start until the same moment."""
    new = after.state.engines["a"]
    if new.history.wanted and new.history.breaker_open:
        assert new.process is ProcessState.GIVEN_UP
    elif new.history.wanted and old.process is ProcessState.BACKOFF and old.retry_at is not None:
        assert new.process is ProcessState.BACKOFF
        assert new.retry_at is not None
        assert _close(old.retry_at - passed, new.retry_at - after.now)
    else:
        assert new.process is ProcessState.STOPPED


def _same_pause(before: State, passed: Seconds, after: Recalled) -> None:
    old, new = before.pause, after.state.pause
    assert (old is None) is (new is None)
    if old is not None and new is not None:
        assert (old.owner, old.reason) == (new.owner, new.reason)
        assert (old.until is None) is (new.until is None)
        assert _close((old.until or passed) - passed, (new.until or after.now) - after.now)


def _same_rests(before: State, now: Seconds, after: Recalled, down: Seconds, rule: Rule) -> None:
    """The ladder is on the same rung, and the rest after its action ends when it did."""
    passed = now + down
    assert before.tracks.keys() == after.state.tracks.keys()
    for key, track in before.tracks.items():
        assert after.state.tracks[key].rung == track.rung
        ended = now if track.ended_at is None else track.ended_at  # it died with us
        known = replace(before, tracks={key: replace(track, ended_at=ended)})
        old = ladder.resting_until(known, key, rule)
        new = ladder.resting_until(after.state, key, rule)
        assert (old is None) is (new is None)
        if old is not None and new is not None:
            assert _close(old - passed, new - after.now)


DOWN = st.one_of(st.none(), st.sampled_from([0.0, 5.0, 300.0, 3500.0, 86400.0]))


@settings(lawful, max_examples=25)
@given(moments(), user_rules(1), st.floats(0.0, 1.0), DOWN)
def test_a_restart_of_the_watchdog_changes_no_restraint(
    story: list[Moment], some: list[Rule], where: float, down: float | None
) -> None:
    """At any moment of any story, on the same boot and another: budgets, backoff, breaker, rests.

    The pause too. Only what no retry cures is tried once more: the command may have been mended.
    """
    world = World(NAMES, rules=with_own(some)).live(story)
    seen = world.trace[int(where * (len(world.trace) - 1))]
    state, now = seen.done.state, seen.done.state.at or seen.event.at
    after = _kept(state, now, down)
    _same_restraint(state, now, after, down or 0.0)
    for rule in some:
        _same_rests(state, now, after, down or 0.0, rule)


RICH = RestartHistory(
    restarts=(Restart(100.0), Restart(900.0, boot=True), Restart(950.0, boot=True)),
    failures=3,
    breaker_open=True,
    wanted=True,
    repeated=Cause.CUDA_OOM,
    repeats=1,
)


@pytest.mark.parametrize("down", [None, 60.0])
def test_everything_that_restrains_is_kept(down: float | None) -> None:
    """Restarts with their ages, the breaker, the row of a cause, a pause, a rung and its rest."""
    key = ("it", engine_subject("a"))
    state = State(
        engines={"a": EngineState(EngineSettings("a"), history=RICH)},
        tracks={key: Track(rung=2, acted_at=970.0, ended_at=980.0, healed_at=990.0)},
        pause=Pause("why", "me", since=940.0, until=2000.0),
    )
    after = _kept(state, 1000.0, down)
    shift = after.now - 1000.0 - (down or 0.0)
    history, track = after.state.engines["a"].history, after.state.tracks[key]
    assert [(round(r.at - shift), r.boot) for r in history.restarts] == [
        (100, False),
        (900, True),
        (950, True),
    ]
    assert (history.repeats, history.repeated, history.failures) == (1, Cause.CUDA_OOM, 3)
    assert after.state.engines["a"].process is ProcessState.GIVEN_UP
    assert track.rung == 2
    assert round((track.ended_at or 0.0) - shift) == 980
    assert round((track.healed_at or 0.0) - shift) == 990
    assert after.state.pause is not None
    assert round((after.state.pause.until or 0.0) - shift) == 2000
