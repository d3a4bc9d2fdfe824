"""The readings of the last minutes in memory, all of them, packed as they would be on disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from watchdog.core.model import Reading, ReadingTaken, Seconds
from watchdog.recorder.chunks import Framing, unpacked
from watchdog.recorder.rows import Look, Shape, Understanding, Writing, decoded, encoded, joined

_BLOCK: Seconds = 60.0
_BATCH = 50
"""Readings that are packed at once."""


@dataclass(slots=True)
class _Block:
    """A minute or less. ``frames`` are one compressed stream."""

    began: Seconds
    frames: list[bytes] = field(default_factory=list)
    size: int = 0


class Ring:
    """Keeps ``seconds`` of readings in at most ``most_bytes``. Safe from any thread."""

    def __init__(self, seconds: Seconds = 600.0, most_bytes: int = 4 << 20) -> None:
        self._seconds, self._most = seconds, most_bytes
        self._lock = threading.Lock()
        self._blocks: deque[_Block] = deque()
        self._loose: list[Reading] = []
        self._writing, self._framing = Writing(), Framing(level=1)

    def put(self, reading: Reading) -> None:
        """Take one in. Raises what msgspec does for values that cannot be written."""
        with self._lock:
            self._loose.append(reading)
            if len(self._loose) >= _BATCH:
                self._pack()
                self._forget(reading.at)

    def since(self, at: Seconds) -> tuple[Reading, ...]:
        """The readings from ``at`` on, oldest first."""
        with self._lock:
            blocks = [tuple(block.frames) for block in self._blocks]
            loose = tuple(self._loose)
        packed = (one for frames in blocks for one in _unpacked(frames))
        return tuple(one for source in (packed, loose) for one in source if one.at >= at)

    def _pack(self) -> None:
        batch, self._loose = self._loose, []
        now = batch[0].at
        if not self._blocks or now - self._blocks[-1].began >= _BLOCK:
            self._blocks.append(_Block(now))
            self._writing.reset()
            self._framing.reset()
        rows = [row for one in batch for row in self._writing.rows(ReadingTaken(one.at, one), ())]
        frame = self._framing.payload(joined([encoded(row) for row in rows]))
        block = self._blocks[-1]
        block.frames.append(frame)
        block.size += len(frame)

    def _forget(self, now: Seconds) -> None:
        total = sum(block.size for block in self._blocks)
        while len(self._blocks) > 1 and (
            total > self._most or self._blocks[1].began < now - self._seconds
        ):
            total -= self._blocks.popleft().size


def _unpacked(frames: tuple[bytes, ...]) -> Iterator[Reading]:
    understanding = Understanding()
    for plain in unpacked(frames):
        for row in decoded(plain):
            if isinstance(row, Shape):
                understanding.learn(row)
            elif isinstance(row, Look):
                event = understanding.event(row)
                if isinstance(event, ReadingTaken):
                    yield event.reading
