"""A minute of random faults against the real daemon, and proof that its observer can see."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.accounts import Accounts
from tests.chaos.bystander import Bystander
from tests.chaos.journal import Invariant, Journal
from tests.chaos.observer import RUN, Observer
from tests.chaos.plan import ON_ENGINE, ON_WORLD, WORLD, Fault, steps
from tests.chaos.sightings import since_boot
from tests.support.simulated import ROOT, until

MINUTE = ("--minutes", "1", "--seed", "7")


def test_a_minute_of_chaos_violates_nothing(tmp_path: Path) -> None:
    """FACT: three tracks of random faults for a minute, and every invariant holds all along."""
    argv = [sys.executable, "-m", "tests.chaos", *MINUTE, "--out", str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            told = process.communicate(timeout=400)[1]
        finally:
            process.kill()
    assert process.returncode == 0, told[-6000:]
    page = (tmp_path / "chaos.md").read_text()
    assert "**0 violations**" in page
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    checks = {name.removeprefix("| "): count for name, count, *_ in rows}
    for one in set(Invariant) - {Invariant.MEMORY, Invariant.DESCRIPTORS, Invariant.BUSY}:
        assert int(checks[one]) > 0, one


def first(seed: int, track: str, count: int) -> list[object]:
    """The beginning of a sequence."""
    return list(itertools.islice(steps(seed, track), count))


@pytest.mark.parametrize("track", ["main", "second", WORLD])
def test_the_same_seed_brings_the_same_faults(track: str) -> None:
    """FACT: faults, waits and dice follow from the seed and the track, and from nothing else."""
    assert first(3, track, 200) == first(3, track, 200)
    assert first(3, track, 200) != first(4, track, 200)


def test_no_fault_is_left_out() -> None:
    """FACT: in one round of every track each fault comes."""
    engine = {step.fault for step in itertools.islice(steps(1, "main"), len(ON_ENGINE))}
    world = {step.fault for step in itertools.islice(steps(1, WORLD), len(ON_WORLD))}
    assert engine | world == set(Fault)
    assert not engine & world


@contextlib.contextmanager
def member(run: str, generation: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process as the watchdog would have started it."""
    marks = {"VLLM_WATCHDOG_ENGINE": "main", "VLLM_WATCHDOG_GENERATION": generation, RUN: run}
    argv = [sys.executable, "-ISc", "import time; time.sleep(600)"]
    with subprocess.Popen(argv, env=os.environ | marks, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_two_generations_at_once_are_seen() -> None:
    """FACT: one generation is fine, a second one beside it is a violation that names both.

    Those of another run, and what has died, are not counted.
    """
    run, journal = uuid.uuid4().hex, Journal(1)
    observer = Observer(journal, run, lambda: None)
    with member(run, "first") as one, member("another", "elsewhere"):
        until(lambda: observer.of("main"))
        observer.audit()
        assert not journal.violations
        with member(run, "second") as two:
            until(lambda: len(observer.of("main")) == 2)
            observer.audit()
            (found,) = journal.violations
            assert found.invariant is Invariant.ONE_GENERATION
            for who, generation in ((one, "first"), (two, "second")):
                assert f"generation {generation}: {who.pid}" in found.evidence
        assert set(observer.of("main")) == {"first"}


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGWINCH, signal.SIGSTOP, signal.SIGKILL]
)
def test_a_stranger_that_is_signalled_tells(tmp_path: Path, number: signal.Signals) -> None:
    """FACT: any signal to a bystander is a trouble: one it can take, a stop, and its death."""
    one = Bystander.start(tmp_path, "VLLM::EngineCore", ())
    try:
        until(one.report.exists)
        assert not one.trouble()
        os.kill(one.process.pid, number)
        assert str(one.process.pid) in until(one.trouble)
    finally:
        one.close()


def test_a_start_too_many_is_seen() -> None:
    """FACT: the first start is free, and so is one that was asked for; one more is overdrawn."""
    now = since_boot()
    accounts = Accounts(3, 100.0)
    born = {("main", str(number)): now + number for number in range(4)}
    assert all(kept for _, kept, _ in accounts.overdrawn(born))
    born["main", "more"] = now + 5
    assert [kept for _, kept, _ in accounts.overdrawn(born)] == [True] * 4 + [False]
    accounts.asked("main")
    assert all(kept for _, kept, _ in accounts.overdrawn(born))
