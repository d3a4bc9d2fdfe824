"""The runner: one read at a time, stamped, checked and given up at its deadline."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import msgspec
import pytest

from tests.support.simulated import until
from watchdog.contracts import EngineLook, ProbeError, ProbeSpec, SampleSpec
from watchdog.core.model import (
    Event,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    SubjectKind,
    Unread,
    engine_subject,
)
from watchdog.runner import ProbeRun

SUBJECT = engine_subject("main")
GOOD = Sampled(SUBJECT, "count", 1)


class Settings(msgspec.Struct):
    """Nothing."""


SPEC = ProbeSpec(
    "fake",
    SubjectKind.ENGINE,
    Settings,
    (
        SampleSpec("count", int, "", ""),
        SampleSpec("share", float, "", "", labels=("rank",)),
        SampleSpec("up", bool, "", ""),
    ),
    lambda _settings, _target: Fake(),
)


@dataclass
class Fake:
    """Brings what it is told to."""

    bring: Callable[[], Iterable[Sampled | Unread]] = lambda: [GOOD]
    closed: int = 0

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Whatever ``bring`` says."""
        assert deadline > time.monotonic()
        return self.bring()

    def close(self) -> None:
        """Count."""
        self.closed += 1


@dataclass
class Bench:
    """A run, what it posted, and the generation that it sees."""

    probe: Fake = field(default_factory=Fake)
    posted: list[Event] = field(default_factory=list)
    generation: str = "g1"

    def readings(self) -> list[Reading]:
        """All that were posted."""
        return [event.reading for event in self.posted if isinstance(event, ReadingTaken)]

    @contextmanager
    def running(self, timeout: float = 30.0) -> Iterator[ProbeRun]:
        """A run that is closed afterwards."""

        def look() -> EngineLook:
            return EngineLook(generation=self.generation)

        run = ProbeRun(SPEC, self.probe, SUBJECT, look, self.posted.append, timeout=timeout)
        try:
            yield run
        finally:
            run.close()


def test_a_reading_is_stamped() -> None:
    """FACT: a reading says when it ended, how long it took, what it is about and which start."""
    bench = Bench()
    before = time.monotonic()
    with bench.running() as run:
        run.run()
    (reading,) = bench.readings()
    assert before <= reading.at - reading.took <= reading.at <= time.monotonic()
    assert (reading.probe, reading.subject, reading.generation) == ("fake", SUBJECT, "g1")
    assert (reading.samples, reading.error) == ((GOOD,), None)
    assert run.last_success is not None
    assert bench.probe.closed == 1


def test_one_thread_for_all_reads() -> None:
    """FACT: a probe keeps its thread from read to read."""
    seen: list[int] = []

    def note() -> list[Sampled | Unread]:
        seen.append(threading.get_ident())
        return [GOOD]

    bench = Bench(Fake(note))
    with bench.running() as run:
        for _ in range(5):
            run.run()
    assert len(seen) == 5
    assert len(set(seen)) == 1
    assert threading.get_ident() not in seen


@pytest.mark.parametrize(
    ("item", "error"),
    [
        (Sampled(SUBJECT, "other", 1), "'other' is not declared"),
        (Sampled(SUBJECT, "count", 1.5), "count is float, not int"),
        (Sampled(SUBJECT, "count", value=True), "count is bool, not int"),
        (Sampled(SUBJECT, "up", 1), "up is int, not bool"),
        (Sampled(SUBJECT, "count", 1 << 64), "count is int out of range, not int"),
        (Sampled(SUBJECT, "share", 0.5), "share has other labels than declared"),
        (Unread(SUBJECT, "x", "other"), "'other' is not declared"),
        (cast("Unread", "text"), "str is no sample"),
    ],
)
def test_only_declared_samples_pass(item: Sampled | Unread, error: str) -> None:
    """FACT: one sample that was not declared like that, and the reading is refused by name."""

    def bring() -> Iterator[Sampled | Unread]:
        yield GOOD
        yield item

    bench = Bench(Fake(bring))
    with bench.running() as run:
        run.run()
    (reading,) = bench.readings()
    assert reading.error == f"cannot use the reading: {error}"
    assert not reading.samples
    assert run.last_success is None


def test_unread_and_labels_pass() -> None:
    """FACT: what could not be read travels beside what could; an int is a float too."""
    items: list[Sampled | Unread] = [
        Sampled(SUBJECT, "share", 1, (("rank", "0"),)),
        Unread(SUBJECT, "lost", "count"),
    ]
    bench = Bench(Fake(lambda: items))
    with bench.running() as run:
        run.run()
    (reading,) = bench.readings()
    assert (reading.samples, reading.unread) == ((items[0],), (items[1],))


def boom(error: Exception) -> Iterator[Sampled]:
    """Bring one sample, then fail."""
    yield GOOD
    raise error


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (ProbeError("cannot see"), "cannot see"),
        (ProbeError("cannot\nsee"), "cannot see"),
        (KeyError("x"), "cannot read: KeyError: 'x'"),
    ],
)
def test_a_failed_read_is_one_line(failure: Exception, error: str) -> None:
    """FACT: a probe that raises brings one line and no sample, and is read again."""
    bench = Bench(Fake(lambda: boom(failure)))
    with bench.running() as run:
        run.run()
        run.run()
    assert [(r.error, r.samples) for r in bench.readings()] == [(error, ()), (error, ())]


def test_a_restart_under_the_read_drops_it() -> None:
    """FACT: what was seen while the engine was restarted belongs to no start."""
    bench = Bench()

    def restart() -> list[Sampled | Unread]:
        bench.generation = "g2"
        return [GOOD]

    bench.probe.bring = restart
    with bench.running() as run:
        run.run()
    (reading,) = bench.readings()
    assert reading.generation == "g1"
    assert reading.error is not None
    assert not reading.samples


def test_a_hanging_read_is_abandoned_once() -> None:
    """FACT: one error at the deadline, no second read meanwhile, the late result is dropped."""
    go, reads = threading.Event(), [0]

    def hang() -> list[Sampled | Unread]:
        reads[0] += 1
        go.wait(60)
        return [GOOD]

    bench = Bench(Fake(hang))
    with bench.running(timeout=0.05) as run:
        run.run()
        assert [r.error for r in bench.readings()] == ["timed out after 0.05 s"]
        for _ in range(3):
            run.run()
            run.expire()
            assert not run.begin()
        assert (run.abandoned, run.abandoned_total, reads[0]) == (True, 1, 1)
        assert len(bench.posted) == 1
        go.set()
        until(lambda: not run.abandoned)
        assert len(bench.posted) == 1
        run.timeout = 30.0
        run.run()
        assert bench.readings()[-1].samples == (GOOD,)
        assert reads[0] == 2


def test_begin_and_expire_never_wait() -> None:
    """FACT: a scheduler's thread is not held by a probe; ``expire`` finds what is overdue."""
    go = threading.Event()
    bench = Bench(Fake(lambda: [GOOD] if go.wait(60) else []))
    with bench.running(timeout=0.05) as run:
        assert run.begin()

        def expired() -> bool:
            run.expire()
            return bool(bench.posted)

        until(expired)
        assert bench.readings()[0].error == "timed out after 0.05 s"
        go.set()


def test_close_lets_the_thread_end() -> None:
    """FACT: after close there is no read, no post and no thread."""
    bench = Bench()
    with bench.running() as run:
        run.run()
    name = "probe-fake"
    until(lambda: name not in {thread.name for thread in threading.enumerate()})
    run.run()
    run.close()
    assert len(bench.posted) == 1
    assert bench.probe.closed == 1


def test_a_flood_of_samples_ends() -> None:
    """FACT: a probe that never stops bringing samples is cut off."""

    def flood() -> Iterator[Sampled]:
        while True:
            yield GOOD

    bench = Bench(Fake(flood))
    with bench.running() as run:
        run.run()
    assert bench.readings()[0].error == "cannot use the reading: more than 10000 samples"
