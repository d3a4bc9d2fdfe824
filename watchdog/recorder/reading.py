"""Reads a recording back: where a run begins, what was told, and what was decided then."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from watchdog.core.model import Decision, Event, Seconds
from watchdog.core.state import State
from watchdog.recorder.chunks import Frames, format_of
from watchdog.recorder.files import SUFFIX, listed
from watchdog.recorder.recorder import DIRECTORY
from watchdog.recorder.rows import (
    FORMAT,
    Again,
    Gap,
    Happened,
    Header,
    Look,
    Row,
    Shape,
    Understanding,
    decoded,
)

_SENSELESS = (msgspec.MsgspecError, LookupError, ValueError, TypeError, RecursionError)


class RecordingError(Exception):
    """There is nothing to read; the text is one line for the person who asked."""


@dataclass(frozen=True, slots=True)
class Start:
    """What follows begins at ``state``.

    ``fresh`` is a new life of the watchdog, which knew nothing else; otherwise the run goes on, and
    ``lost`` events are missing before here. ``offset`` is wall time minus ``at``, in seconds.
    """

    at: Seconds
    state: State
    fresh: bool
    offset: float
    lost: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """One event, and what was decided when it happened.

    ``gap_since`` is since when nobody had looked, None when there was no gap. ``offset`` is wall
    time minus the event's, in seconds.
    """

    event: Event
    decisions: tuple[Decision, ...]
    offset: float
    gap_since: Seconds | None = None


def recorded(path: Path) -> list[Path]:
    """The files of the recording at ``path``: a file, a directory of them, or a state directory.

    Raises RecordingError when there are none.
    """
    try:
        if not path.is_dir():
            path.stat()
            return [path]
        below = path / DIRECTORY
        found = listed(path) or (listed(below) if below.is_dir() else [])
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error
    if not found:
        raise RecordingError(f"no recording in {path}: no file {DIRECTORY}/*{SUFFIX}")
    return found


def read(
    path: Path, say: Callable[[str], None], since: float | None = None
) -> Iterator[Start | Told]:
    """All that is readable, in order, beginning with a ``Start``.

    ``say`` is told in one line what was skipped. Files that were last written to before the wall
    time ``since`` are left out. Holds one frame in memory. Raises RecordingError when nothing can
    be read, and for a recording of a newer format.
    """
    paths = _newer(recorded(path), since)
    reader = _Reader(say)
    for one in paths:
        yield from reader.file(one, alone=len(paths) == 1)
    if reader.header is None:
        raise RecordingError(f"nothing can be read of {path}")


def _newer(paths: list[Path], since: float | None) -> list[Path]:
    """Without those that ended before; the last one stays, to have something to begin with."""
    if since is None:
        return paths
    try:
        return [p for p in paths[:-1] if p.stat().st_mtime >= since] + paths[-1:]
    except OSError as error:
        raise RecordingError(f"cannot read {paths[0].parent}: {error.strerror}") from error


class _Reader:
    """What is known from one file to the next."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.header: Header | None = None
        self._offset = 0.0
        self._gap_since: Seconds | None = None
        self._whole = True

    def file(self, path: Path, *, alone: bool) -> Iterator[Start | Told]:
        try:
            with open(path, "rb", opener=_at_once) as file:
                wrong = _wrong(file)
                if wrong is None:
                    yield from self._frames(path, Frames(file))
                    return
        except OSError as error:
            wrong = f"cannot be read: {error.strerror}"
        if alone or isinstance(wrong, _Newer):
            raise RecordingError(f"{path}: {wrong}")
        self._whole = False
        self._say(f"{path}: skipped: {wrong}")

    def _frames(self, path: Path, frames: Frames) -> Iterator[Start | Told]:
        understanding = Understanding()
        headed = False
        for begins, plain in frames:
            if begins:
                understanding.reset()
            try:
                rows = decoded(plain)
            except _SENSELESS:
                frames.spoil()
                continue
            for row in rows:
                if isinstance(row, Header):
                    headed = True
                    yield from self._headed(row)
                elif headed:
                    try:
                        told = self._told(row, understanding)
                    except _SENSELESS:
                        frames.spoil()
                        break
                    if told is not None:
                        yield told
        self._complain(path, frames, headed=headed)

    def _complain(self, path: Path, frames: Frames, *, headed: bool) -> None:
        if not headed:
            self._say(f"{path}: skipped: its header is damaged")
        elif frames.damaged:
            self._say(f"{path}: {frames.damaged} damaged places were skipped")
        elif frames.cut:
            self._say(f"{path}: ends within a frame; what was written before it is read")
        self._whole = headed and not frames.damaged and not frames.cut

    def _headed(self, header: Header) -> Iterator[Start]:
        last, self.header = self.header, header
        self._offset = header.wall - header.at
        same = last is not None and last.run == header.run
        follows = same and last is not None and header.follows and header.part == last.part + 1
        if not (follows and self._whole):
            state = header.checkpoint.state
            yield Start(header.at, state, not same, self._offset, version=header.version)

    def _told(self, row: Row, understanding: Understanding) -> Start | Told | None:
        match row:
            case Shape():
                understanding.learn(row)
                return None
            case Again():
                state = row.checkpoint.state
                return Start(row.at, state, fresh=False, offset=self._offset, lost=row.lost)
            case Gap():
                self._gap_since = row.since
                return None
            case Look() | Happened():
                gap_since, self._gap_since = self._gap_since, None
                event = understanding.event(row)
                return Told(event, row.decisions, self._offset, gap_since)
            case _:
                return None


class _Newer(str):
    """The reason that is always an error: a newer program would understand the rest."""

    __slots__ = ()


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO must not block


def _wrong(file: BinaryIO) -> str | None:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return "not a regular file"
    number = format_of(file)
    if number is None:
        return "not a recording"
    if number > FORMAT:
        return _Newer(f"a recording of format {number}; this version reads up to {FORMAT}")
    return None
