"""Runs one probe: in a thread of its own, until a deadline, and stamps what it brings back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue

from watchdog.contracts import EngineLook, Probe, ProbeError, ProbeSpec, SampleSpec
from watchdog.core.model import Event, Reading, ReadingTaken, Sampled, Seconds, Subject, Unread

_MOST = 10_000
"""Samples of one reading; a probe that brings more is broken, and would take all memory."""
_BITS = 64
_LONGEST = 300
"""Characters of an error that are kept."""


@dataclass(slots=True, eq=False)
class _Read:
    """One read under way. ``abandoned`` means that its result is no longer wanted."""

    began: Seconds
    deadline: Seconds
    generation: str
    done: threading.Event
    abandoned: bool = False


class ProbeRun:
    """One probe with its thread. Never more than one read at a time, however long it hangs.

    ``begin`` and ``expire`` return at once and are for a scheduler: ``begin`` hands a read to the
    thread, ``expire`` reports one that is overdue. ``run`` does both and waits. Safe from any
    thread. Every read ends in exactly one posted ``ReadingTaken``.
    """

    def __init__(  # noqa: PLR0913 - all of it is the identity of one run
        self,
        spec: ProbeSpec,
        probe: Probe,
        subject: Subject | None,
        look: Callable[[], EngineLook] | None,
        post: Callable[[Event], None],
        *,
        timeout: Seconds | None = None,
        clock: Callable[[], Seconds] = time.monotonic,
        wall: Callable[[], Seconds] = time.time,
    ) -> None:
        self.spec = spec
        self.subject = subject
        self.timeout = spec.timeout if timeout is None else timeout
        self.abandoned_total = 0
        """Reads that did not return by their deadline."""
        self.last_success: Seconds | None = None
        """When a read last returned without an error, as a wall time."""
        self.last_took: Seconds | None = None
        """How long the last read that returned in time lasted."""
        self._probe, self._look, self._post = probe, look, post
        self._clock, self._wall = clock, wall
        self._samples = {sample.name: sample for sample in spec.samples}
        self._lock = threading.Lock()
        self._read: _Read | None = None
        self._work: SimpleQueue[_Read | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def abandoned(self) -> bool:
        """Whether a read is overdue and has still not returned."""
        read = self._read
        return read is not None and read.abandoned

    def begin(self) -> bool:
        """Start a read and return at once; False when one is still under way."""
        return self._begin() is not None

    def expire(self) -> None:
        """Report the read under way if it is overdue, once. Returns at once."""
        now = self._clock()
        with self._lock:
            read = self._read
            if read is None or read.abandoned or now < read.deadline:
                return
            read.abandoned = True
            self.abandoned_total += 1
        self._send(self._reading(read, now, error=f"timed out after {self.timeout:g} s"))

    def run(self) -> None:
        """Read and wait for it, at most until its deadline."""
        read = self._begin()
        if read is None:
            return
        while not read.done.wait(max(read.deadline - self._clock(), 0.0)):
            self.expire()
            if read.abandoned:
                return

    def close(self) -> None:
        """Close the probe and let the thread end; waits for nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._read is not None:
                self._read.abandoned = True
        self._work.put(None)
        self._probe.close()

    def _begin(self) -> _Read | None:
        self.expire()
        now = self._clock()
        with self._lock:
            if self._read is not None or self._closed:
                return None
            done = threading.Event()
            read = self._read = _Read(now, now + self.timeout, self._generation(), done)
            if self._thread is None:
                name = f"probe-{self.spec.name}"
                self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._thread.start()
        self._work.put(read)
        return read

    def _generation(self) -> str:
        return self._look().generation if self._look is not None else ""

    def _serve(self) -> None:
        while (read := self._work.get()) is not None:
            reading = self._taken(read)
            with self._lock:
                wanted = not read.abandoned
                self._read = None
            if wanted:
                self.last_took = reading.took
                if reading.error is None:
                    self.last_success = self._wall()
                self._send(reading)
            read.done.set()

    def _send(self, reading: Reading) -> None:
        self._post(ReadingTaken(reading.at, reading))

    def _taken(self, read: _Read) -> Reading:
        try:
            brought = list(islice(self._probe.read(read.deadline), _MOST + 1))
            error = _trouble(brought, self._samples)
        except ProbeError as failed:
            brought, error = [], _one_line(str(failed))
        except Exception as failed:  # noqa: BLE001 - no probe's bug may end its thread
            brought, error = [], _one_line(f"cannot read: {type(failed).__name__}: {failed}")
        if error is None and self._generation() != read.generation:
            error = "cannot tell which start it saw: the engine was restarted meanwhile"
        return self._reading(read, self._clock(), [] if error else brought, error)

    def _reading(
        self,
        read: _Read,
        at: Seconds,
        brought: Iterable[Sampled | Unread] = (),
        error: str | None = None,
    ) -> Reading:
        brought = tuple(brought)
        return Reading(
            probe=self.spec.name,
            at=at,
            took=at - read.began,
            samples=tuple(item for item in brought if isinstance(item, Sampled)),
            unread=tuple(item for item in brought if isinstance(item, Unread)),
            error=error,
            subject=self.subject,
            generation=read.generation,
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST] or "cannot read"


def _trouble(brought: list[Sampled | Unread], declared: Mapping[str, SampleSpec]) -> str | None:
    """The first way in which a probe broke its own declaration."""
    if len(brought) > _MOST:
        return f"cannot use the reading: more than {_MOST} samples"
    wrong = (text for item in brought if (text := _wrong(item, declared)))
    found = next(wrong, None)
    return None if found is None else _one_line(f"cannot use the reading: {found}")


def _wrong(item: object, declared: Mapping[str, SampleSpec]) -> str:
    match item:
        case Unread(sample=name):
            return f"{name!r} is not declared" if name and name not in declared else ""
        case Sampled(sample=name, value=value, labels=labels):
            spec = declared.get(name)
            if spec is None:
                return f"{name!r} is not declared"
            if not _fits(value, spec.type):
                return f"{name} is {_shown(value)}, not {spec.type.__name__}"
            if tuple(key for key, _ in labels) != spec.labels:
                return f"{name} has other labels than declared"
            return ""
        case _:
            return f"{type(item).__name__} is no sample"


def _shown(value: object) -> str:
    kind = type(value).__name__
    return kind if _countable(value) else f"{kind} out of range"


def _fits(value: object, kind: type) -> bool:
    """An int is a float too, but a bool is no number."""
    right = type(value) is kind or (kind is float and type(value) is int)
    return right and _countable(value)


def _countable(value: object) -> bool:
    """Not a number that is none, has no end, or needs more than 64 bits."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or value.bit_length() <= _BITS
