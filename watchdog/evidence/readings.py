"""The last ten minutes as the recorder has them on the disk: what was read, happened, was decided.

The recorder writes trouble in full and quiet minutes thinned, and its files are only read here.
They are gone through from their beginning, which costs no more than taking the frames apart; what
they say is understood of the last chunks alone, the newest first.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from watchdog import procfs
from watchdog.core.model import Event, Reading, ReadingTaken, Seconds
from watchdog.evidence.blots import Blots, Clean, joined
from watchdog.recorder import recorded
from watchdog.recorder.chunks import Frames, format_of
from watchdog.recorder.rows import (
    FORMAT,
    Happened,
    Header,
    Look,
    Row,
    Shape,
    Understanding,
    decoded,
)

SPAN: Seconds = 600.0
_SENSELESS = (msgspec.MsgspecError, LookupError, ValueError, TypeError, RecursionError)
_Chunk = list[bytes]
"""What the frames of one chunk say."""


@dataclass(frozen=True, slots=True)
class Found:
    """Lines of JSON, oldest first, and in words what is missing of them; "" when nothing is."""

    lines: Clean
    missing: str = ""


def recent(state_dir: Path, since: Seconds, blots: Blots, limit: int, until: Seconds) -> Found:
    """What was recorded since ``since``: at most ``limit`` bytes, the newest rather than the rest.

    ``since`` and ``until``, when to be done, are CLOCK_MONOTONIC. Raises RecordingError, OSError.
    """
    found: deque[Clean] = deque()
    left = limit
    offset = time.time() - time.monotonic()
    for chunk in _newest_first(state_dir, since):
        lines = list(_lines(chunk, since, offset, blots, until))
        for line in reversed(lines):
            left -= len(line) + 1
            if left < 0:
                return Found(joined(found), f"what is older than {len(found)} lines: too long")
            found.appendleft(line)
        if time.monotonic() >= until:
            return Found(joined(found), f"what is older than {len(found)} lines: no time")
    return Found(joined(found), "" if found else "nothing was recorded in that time")


# --- chunks ---------------------------------------------------------------------------------------


def _newest_first(state_dir: Path, since: Seconds) -> Iterator[_Chunk]:
    """The chunks of this boot that may hold something since then."""
    for path in reversed(recorded(state_dir)):
        with open(path, "rb", opener=_at_once) as file:
            if not _is_of_this_boot(file):
                return
            chunks = _last_chunks(file, since)
        yield from reversed(chunks)
        if chunks and _begins(chunks[0]) <= since:
            return


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _is_of_this_boot(file: BinaryIO) -> bool:
    """Whether we understand it and its times are ours."""
    number = format_of(file)
    if number is None or number > FORMAT:
        return False
    header = next((plain for begins, plain in Frames(file) if begins), b"")
    rows = _rows(header)[:1]
    return bool(rows) and isinstance(rows[0], Header) and rows[0].boot == procfs.boot_id()


def _last_chunks(file: BinaryIO, since: Seconds) -> list[_Chunk]:
    """All from the last one on that begins before ``since``."""
    chunks: list[_Chunk] = []
    for begins, plain in Frames(file):
        if begins:
            if _begins([plain]) <= since:
                chunks.clear()
            chunks.append([plain])
        elif chunks:
            chunks[-1].append(plain)
    return chunks


def _begins(chunk: _Chunk) -> Seconds:
    """When the first thing in it happened; never, when it cannot be understood."""
    for row in _rows(chunk[0]):
        match row:
            case Header() | Look():
                return row.at
            case Happened():
                at: Seconds = msgspec.msgpack.decode(row.event, type=_At).at
                return at
            case _:
                continue
    return float("inf")


class _At(msgspec.Struct):
    """The part of an event that all of them have."""

    at: float


def _rows(plain: bytes) -> tuple[Row, ...]:
    try:
        return decoded(plain)
    except _SENSELESS:
        return ()


# --- lines ----------------------------------------------------------------------------------------


def _lines(
    chunk: _Chunk, since: Seconds, offset: float, blots: Blots, until: Seconds
) -> Iterator[Clean]:
    understanding = Understanding()
    for plain in chunk:
        if time.monotonic() >= until:
            return
        for row in _rows(plain):
            try:
                event = _understood(row, understanding)
            except _SENSELESS:
                return  # the rest is relative to what cannot be understood
            if event is not None and event.at >= since and isinstance(row, Look | Happened):
                yield blots.json(_told(event, row, offset))


def _understood(row: Row, understanding: Understanding) -> Event | None:
    match row:
        case Shape():
            understanding.learn(row)
            return None
        case Look() | Happened():
            return understanding.event(row)
        case _:
            return None


def _told(event: Event, row: Look | Happened, offset: float) -> Mapping[str, object]:
    at = {"at": round(event.at + offset, 3), "monotonic": round(event.at, 3)}
    decisions = {"decisions": msgspec.to_builtins(row.decisions)} if row.decisions else {}
    if isinstance(event, ReadingTaken):
        return {**at, **_reading(event.reading), **decisions}
    kind = row.kind if isinstance(row, Happened) else ""
    return {**at, "event": kind, **msgspec.to_builtins(event), **at, **decisions}


def _reading(reading: Reading) -> Mapping[str, object]:
    """A sample is its subject, its name, its value, and its labels where it has some."""
    told: dict[str, object] = {
        "probe": reading.probe,
        "subject": None if reading.subject is None else str(reading.subject),
        "took_s": round(reading.took, 4),
        "samples": [
            (str(one.subject), one.sample, one.value, *((dict(one.labels),) if one.labels else ()))
            for one in reading.samples
        ],
    }
    if reading.unread:
        told["unread"] = [(str(one.subject), one.sample, one.error) for one in reading.unread]
    if reading.error is not None:
        told["error"] = reading.error
    return told
