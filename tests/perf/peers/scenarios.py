"""What is done to a worker tree, and what is seen: one function a measurement, one trial a call."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.perf.peers.processes import end, rest, sweep, waited
from tests.perf.peers.subject import Kept, Purpose, Start, Subject, Trial, Worker
from tests.support.simulated import alive

_CHANCE = random.SystemRandom()
PATIENCE = 30.0
STOP_WATCH = 5.0
LOOP_SECONDS = 60.0
LOOP_FIRST = 20.0
HANG_SECONDS = 90.0
SATURATED_SECONDS = 90.0
"""Longer than the slowest check here: httpok every 60 s, 10 s of patience, 10 s to stop."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation: seconds until it came (None: never), how many, and whether one lived."""

    seconds: float | None
    count: int = 0
    alive: bool = False
    last: float = 0.0


@contextlib.contextmanager
def kept(
    run: Path, subject: Subject, purpose: Purpose, workers: int = 1
) -> Iterator[tuple[Trial, Kept]]:
    """A subject with running workers, below a folder of its own; nothing of it lives afterwards."""
    word = subject.title.replace(" ", "").replace(",", "-")
    folder = run / f"{word}-{purpose}-{_CHANCE.getrandbits(32):08x}"
    trees = tuple(Worker.new(folder, n, loops=purpose is Purpose.LOOP) for n in range(workers))
    trial = Trial(folder, trees, purpose)
    try:
        with subject.keep(trial) as keeper:
            if not waited(lambda: all(tree.starts() for tree in trees), PATIENCE):
                raise TimeoutError(f"{subject.title}: no worker was started")
            yield trial, keeper
    finally:
        sweep(folder)


def _healthy(worker: Worker) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=1)
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def _settle(subject: Subject, worker: Worker, least: float) -> None:
    """Until it is healthy, then a while, at a random moment of the subject's period."""
    if not waited(lambda: _healthy(worker), PATIENCE):
        raise TimeoutError(f"{subject.title}: the worker is not healthy")
    rest(least + _CHANCE.uniform(0, subject.phase))


def crashes(run: Path, subject: Subject, rounds: int) -> list[Sample]:
    """SIGKILL of the leader, again and again: seconds to the next start's first moment."""
    with kept(run, subject, Purpose.CRASH) as (trial, _):
        return [_crash(trial, subject) for _ in range(rounds)]


def _crash(trial: Trial, subject: Subject) -> Sample:
    worker = trial.worker
    _settle(subject, worker, subject.settle)
    count, old, began = len(worker.starts()), worker.starts()[-1], time.monotonic()
    os.kill(old.pid, signal.SIGKILL)
    came = waited(lambda: len(worker.starts()) > count, PATIENCE, fine=True)
    living = alive(old.child)
    end(old.child, trial.folder)
    return Sample(worker.starts()[count].at - began if came else None, alive=living)


def stops(run: Path, subject: Subject, rounds: int) -> list[Sample]:
    """The subject's own stop, of a child that ignores SIGTERM: seconds until it says stopped."""
    return [_stop(run, subject) for _ in range(rounds)]


def _stop(run: Path, subject: Subject) -> Sample:
    with kept(run, subject, Purpose.STOP) as (trial, keeper):
        _settle(subject, trial.worker, max(subject.settle, 2.0))
        if keeper.stop is None:
            return Sample(None)
        began = time.monotonic()
        said = keeper.stop()
        seconds, living = time.monotonic() - began, bool(trial.worker.living())
        dead = waited(lambda: not trial.worker.living(), STOP_WATCH)
        return Sample(seconds if said else None, count=int(dead), alive=living and said)


def loops(run: Path, subject: Subject) -> Sample:
    """A worker that exits 1 soon: starts in 20 s, and when the last one of 60 s was."""
    with kept(run, subject, Purpose.LOOP) as (trial, _):
        first = trial.worker.starts()[0].at
        rest(max(0.0, first + LOOP_SECONDS - time.monotonic()))
        times = [start.at - first for start in trial.worker.starts()]
    early = sum(at <= LOOP_FIRST for at in times)
    return Sample(float(len(times)), count=early, last=times[-1])


def hangs(run: Path, subject: Subject) -> Sample:
    """SIGSTOP of the leader: seconds to the next start, and whether the old tree lived then."""
    with kept(run, subject, Purpose.HANG) as (trial, _):
        _settle(subject, trial.worker, subject.grace)
        old = trial.worker.starts()[-1]
        os.kill(old.pid, signal.SIGSTOP)
        return _restarted(trial, old, HANG_SECONDS)


def saturations(run: Path, subject: Subject) -> Sample:
    """/health does not answer, tokens flow: seconds to the restart that nobody needs."""
    with kept(run, subject, Purpose.SATURATED) as (trial, _):
        _settle(subject, trial.worker, subject.grace)
        old = trial.worker.starts()[-1]
        (trial.worker.folder / "saturated").touch()
        return _restarted(trial, old, SATURATED_SECONDS)


def _restarted(trial: Trial, old: Start, patience: float) -> Sample:
    count, began = len(trial.worker.starts()), time.monotonic()
    came = waited(lambda: len(trial.worker.starts()) > count, patience)
    living = alive(old.child) or alive(old.pid)
    if came:
        return Sample(trial.worker.starts()[count].at - began, alive=living)
    # A subject that ends the worker and starts none has meddled too.
    return Sample(None, count=int(not alive(old.pid)), alive=living)
