"""The recorder: watches the loop, and writes in a thread of its own what is worth keeping.

The loop pays for a look at the state and an append. A disk that is full, slow or gone costs events,
which are counted, and a checkpoint when it is well again; it never costs the loop any time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from watchdog.core.model import Event, Seconds
from watchdog.core.state import State, Step
from watchdog.recorder.files import Bounds
from watchdog.recorder.thinning import Listener, Moment, Thinner, kept
from watchdog.recorder.writing import Writer

DIRECTORY = "recording"
"""Below the state directory."""
_PERIOD: Seconds = 2.0
"""What happened is on disk this soon, and the idle daemon is woken this often."""
_MOST_SAMPLES = 200_000
"""Samples that wait for the thread; more are lost. Some 20 MB, and minutes of the biggest box."""
_MOST_MOMENTS = 20_000


@dataclass(frozen=True, slots=True)
class _Anew:
    """The run begins, or what was told before does not lead to ``state``."""

    at: Seconds
    state: State
    lost: int


class Recorder:
    """Takes in every step. ``observe`` is for the loop's thread; the rest is for any thread.

    Without a ``state_dir`` nothing is kept. ``warn`` is told in one line when writing begins to
    fail; it is tried again every ten seconds. No bug ends the recording: it costs an event.
    """

    def __init__(  # noqa: PLR0913 - all it touches is handed in
        self,
        state_dir: Path | None,
        warn: Callable[[str], None],
        *,
        bounds: Bounds | None = None,
        boot: str = "",
        clock: Callable[[], Seconds] = time.monotonic,
        wall: Callable[[], float] = time.time,
        most_samples: int = _MOST_SAMPLES,
    ) -> None:
        self._most_samples = most_samples
        self._thinner = Thinner()
        self._listener = Listener()
        self._waiting: deque[Moment | _Anew | threading.Event] = deque()
        self._samples = 0
        self._dropped = self._broken = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._gap = 0
        self._closed = False
        directory = None if state_dir is None else state_dir / DIRECTORY
        self._writer = Writer(directory, warn, bounds or Bounds(), boot, clock=clock, wall=wall)
        self._thread = threading.Thread(target=self._serve, name="recorder", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Events that were to be written and were not, since the beginning."""
        return self._dropped + self._broken + self._writer.lost

    def begin(self, state: State, at: Seconds) -> None:
        """Go on from ``state``: before the first step, and when other things than steps changed it.

        For the loop's thread, or before it runs.
        """
        self._listener.begin(state)
        with self._lock:
            self._waiting.append(_Anew(at, kept(state), 0))

    def observe(self, event: Event, step: Step) -> None:
        """Take in what a step led to. Returns at once and never raises."""
        before = self._listener.before
        try:
            one = self._listener.moment(event, step)
        except Exception:  # noqa: BLE001 - no bug here may reach the loop
            self._listener.begin(step.state)
            self._dropped += 1
            self._gap += 1
            return
        if one is not None:
            self._enqueue(one, before)

    def flush(self, timeout: Seconds) -> bool:
        """Wait until what was observed so far was dealt with; False when it was not in time.

        Readings of a quiet minute go on waiting for what comes.
        """
        done = threading.Event()
        with self._lock:
            self._waiting.append(done)
        self._wake.set()
        return done.wait(timeout)

    def close(self, timeout: Seconds = 2.0) -> None:
        """Write what waits and end, at most after ``timeout`` seconds."""
        self._closed = True
        self._wake.set()
        self._thread.join(timeout)

    def _enqueue(self, one: Moment, before: State) -> None:
        size = one.size
        with self._lock:
            full = self._samples + size > self._most_samples or len(self._waiting) > _MOST_MOMENTS
            if not full:
                if self._gap:
                    self._waiting.append(_Anew(one.event.at, kept(before), self._gap))
                    self._gap = 0
                self._waiting.append(one)
                self._samples += size
        if full:
            self._dropped += 1
            self._gap += 1
        if self._samples * 2 > self._most_samples:
            self._wake.set()

    def _serve(self) -> None:
        while not self._closed:
            self._wake.wait(_PERIOD)
            self._wake.clear()
            self._pass()
        self._pass()
        self._write(self._thinner.end())
        self._guarded(self._writer.close)

    def _pass(self) -> None:
        """Deal with all that waits."""
        with self._lock:
            items, self._waiting, self._samples = self._waiting, deque(), 0
        asked = []
        for item in items:
            if isinstance(item, threading.Event):
                asked.append(item)
            else:
                self._deal(item)
        self._guarded(lambda: self._writer.flush(at_ease=self._listener.quiet))
        for event in asked:
            event.set()

    def _deal(self, item: Moment | _Anew) -> None:
        if isinstance(item, _Anew):
            self._write(self._thinner.end())
            self._guarded(lambda: self._writer.anew(item.at, item.state, item.lost))
        else:
            self._write(self._thinner.take(item))

    def _write(self, moments: Iterable[tuple[Moment, bool]]) -> None:
        settled: list[tuple[Moment, bool]] = []
        self._guarded(lambda: settled.extend(moments))
        for one, wanted in settled:
            self._guarded(partial(self._writer.take, one, wanted=wanted))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do it; whatever is wrong is counted and told once, and the thread lives on."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - see above
            self._broken += 1
            self._writer.failed(error)
