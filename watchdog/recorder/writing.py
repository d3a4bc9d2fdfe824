"""Writes moments as frames into files, and gets over whatever a disk does."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from watchdog import __version__
from watchdog.core.model import Seconds
from watchdog.core.state import State
from watchdog.recorder.chunks import CHUNK_BYTES, CHUNK_SECONDS, MOST_PLAIN, Framing, prefix
from watchdog.recorder.files import Bounds, Files
from watchdog.recorder.rows import (
    FORMAT,
    Again,
    Checkpoint,
    Header,
    Row,
    Writing,
    encoded,
    joined,
)
from watchdog.recorder.thinning import Moment

_RETRY: Seconds = 10.0
_FRAME_BYTES = 1 << 20


class Writer:
    """For one thread. No method raises for a sick disk; ``lost`` counts the events it cost."""

    def __init__(  # noqa: PLR0913 - all it touches is handed in
        self,
        directory: Path | None,
        warn: Callable[[str], None],
        bounds: Bounds,
        boot: str,
        *,
        clock: Callable[[], Seconds],
        wall: Callable[[], float],
    ) -> None:
        self._files = Files(directory if directory is not None else Path(), bounds)
        self._directory = directory
        self._warn, self._boot, self._clock, self._wall = warn, boot, clock, wall
        self._run, self._part, self._follows = secrets.token_hex(8), 0, False
        self._rows: list[msgspec.Raw] = []
        self._events = self._bytes = 0
        self._writing, self._framing = Writing(), Framing()
        self._chunk_began: Seconds = 0.0
        self._before: State | None = None
        self._after: State | None = None
        self._sick_until: Seconds | None = None
        self._missed = 0
        self._told = False
        self.lost = 0

    def anew(self, at: Seconds, state: State, lost: int) -> None:
        """Go on from ``state``, which what was written does not lead to."""
        if self._after is not None:
            self._go_on(at, state, lost)
        self._after = state

    def take(self, one: Moment, *, wanted: bool) -> None:
        """Write a moment, or only remember the state that it left."""
        before, self._after = self._after, one.after
        if wanted and self._directory is not None:
            if self._missed and before is not None:
                self._go_on(one.event.at, before, 0)
            write = partial(self._writing.rows, one.event, one.decisions, one.gap_since)
            if not self._add(write, before, events=1):
                self.lost += 1
                self._missed += 1
        if self._bytes >= _FRAME_BYTES:
            self.flush(at_ease=False)

    def failed(self, error: Exception) -> None:
        """Something is wrong that is no disk: what comes next stands alone. Told once."""
        self._missed += 1
        self.lost += self._events
        self._rows, self._events, self._bytes = [], 0, 0
        self._follows = False
        self._files.close()
        self._framing.reset()
        self._writing.reset()
        if not self._told:
            self._told = True
            self._say(f"cannot record something: {type(error).__name__}: {error}")

    def flush(self, *, at_ease: bool) -> None:
        """Put what was taken on the disk. A new file is begun when it is due, rather at ease."""
        if not self._rows:
            return
        rows, events = self._rows, self._events
        self._rows, self._events, self._bytes = [], 0, 0
        if not self._written(joined(rows)):
            self.lost += events
            self._follows = False
            self._end_file()
        elif self._files.is_full(self._clock(), at_ease=at_ease):
            self._end_file()
        elif self._chunk_is_full():
            self._end_chunk()

    def close(self) -> None:
        """Put the rest on the disk."""
        self.flush(at_ease=False)
        self._files.close()

    def _go_on(self, at: Seconds, state: State, lost: int) -> None:
        """The rows before do not lead to ``state``."""
        lost, self._missed = lost + self._missed, 0
        if not self._add(lambda: [Again(at, lost, Checkpoint.of(state))], state, events=0):
            self._missed = lost

    def _add(self, write: Callable[[], list[Row]], before: State | None, *, events: int) -> bool:
        """Whether rows can be written; if not, what is relative to them must begin anew.

        ``before`` is the state that they follow.
        """
        if self._directory is None:
            return True
        try:
            raws = [encoded(row) for row in write()]
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
            self.flush(at_ease=False)
            self._end_chunk()
            return False
        if not self._rows:
            self._before = before
        self._rows += raws
        self._bytes += sum(map(len, map(bytes, raws)))
        self._events += events
        return True

    def _written(self, data: bytes) -> bool:
        now = self._clock()
        if len(data) > MOST_PLAIN or (self._sick_until is not None and now < self._sick_until):
            return False
        try:
            if not self._files.is_open:
                self._begin_file(now)
            self._files.append(self._framing.frame(data))
        except Exception as error:  # noqa: BLE001 - a header may hold what nobody can encode
            self._fell_sick(error, now)
            return False
        self._sick_until = None
        return True

    def _begin_file(self, now: Seconds) -> None:
        state = self._before if self._before is not None else State()
        header = Header(
            version=__version__,
            boot=self._boot,
            run=self._run,
            part=self._part,
            follows=self._follows,
            at=now,
            wall=self._wall(),
            checkpoint=Checkpoint.of(state),
        )
        self._files.begin(now, prefix(FORMAT) + Framing().frame(joined([encoded(header)])))
        self._part += 1
        self._follows = True
        self._framing.reset()  # the rows that wait are the beginning of a chunk already
        self._chunk_began = now

    def _fell_sick(self, error: Exception, now: Seconds) -> None:
        why = error.strerror if isinstance(error, OSError) else None
        if self._sick_until is None:
            self._say(f"cannot record to {self._directory}: {why or error}")
        self._sick_until = now + _RETRY

    def _say(self, line: str) -> None:
        with contextlib.suppress(Exception):
            self._warn(line)

    def _chunk_is_full(self) -> bool:
        old = self._clock() - self._chunk_began >= CHUNK_SECONDS
        return old or self._framing.plain >= CHUNK_BYTES

    def _end_file(self) -> None:
        self._files.close()
        self._end_chunk()

    def _end_chunk(self) -> None:
        self._framing.reset()
        self._writing.reset()
        self._chunk_began = self._clock()
