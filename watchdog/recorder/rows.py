"""What stands in a recording: rows of msgpack arrays, each with a letter that says what it is.

Readings are most of it, and most of a reading is as it was: rows of readings name the values that
changed. What that is relative to are the rows before it in the same chunk, so chunks stand alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from watchdog.core.model import (
    ActionFinished,
    Commanded,
    Decision,
    EngineExited,
    EngineSpawned,
    Event,
    Labels,
    Mode,
    Pause,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    Subject,
    Tick,
    Unread,
    Value,
)
from watchdog.core.state import EngineState, State, Track

FORMAT = 1
"""Raised when an older reader would misunderstand what is written."""


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    """What replay starts from; what readings teach within seconds is not in it."""

    engines: tuple[EngineState, ...]
    mode: Mode
    pause: Pause | None
    shutting_down: bool
    cards: tuple[tuple[Subject, str], ...]
    tracks: tuple[tuple[str, Subject, Track], ...]

    @classmethod
    def of(cls, state: State) -> Checkpoint:
        """The part of ``state`` that is kept."""
        return cls(
            tuple(state.engines.values()),
            state.mode,
            state.pause,
            state.shutting_down,
            tuple(state.cards.items()),
            tuple((*key, track) for key, track in state.tracks.items()),
        )

    @property
    def state(self) -> State:
        """A state that knows this and nothing else."""
        return State(
            engines={engine.name: engine for engine in self.engines},
            mode=self.mode,
            pause=self.pause,
            shutting_down=self.shutting_down,
            cards=dict(self.cards),
            tracks={(rule, subject): track for rule, subject, track in self.tracks},
        )


class Header(msgspec.Struct, array_like=True, frozen=True, tag="h"):
    """The first row of a file, and the only one of its chunk.

    ``run`` names one life of a recorder, ``part`` counts its files; ``follows`` says that nothing
    is missing between the part before and this one. ``at`` and ``wall`` are one moment on both
    clocks, in seconds; ``boot`` is the boot of which ``at`` is.
    """

    version: str
    boot: str
    run: str
    part: int
    follows: bool
    at: Seconds
    wall: float
    checkpoint: Checkpoint


class Again(msgspec.Struct, array_like=True, frozen=True, tag="a"):
    """The state as it is now, where the rows before do not lead to it."""

    at: Seconds
    lost: int
    checkpoint: Checkpoint


class Gap(msgspec.Struct, array_like=True, frozen=True, tag="g"):
    """Nobody looked between ``since`` and the next row: the machine slept, or we stood still."""

    since: Seconds


class Shape(msgspec.Struct, array_like=True, frozen=True, tag="s"):
    """The samples of a reading but for their values. Shapes of a chunk are counted from 0."""

    probe: str
    subject: Subject | None
    samples: tuple[tuple[Subject, str, Labels], ...]


class Look(msgspec.Struct, array_like=True, frozen=True, tag="r"):
    """A reading: its shape, and the places and values that differ from the last of that shape."""

    shape: int
    at: Seconds
    took: Seconds
    generation: str
    error: str | None
    unread: tuple[Unread, ...]
    places: tuple[int, ...]
    values: tuple[Value, ...]
    came: Seconds | None
    decisions: tuple[Decision, ...]


class Happened(msgspec.Struct, array_like=True, frozen=True, tag="e"):
    """Any other event, as its own fields."""

    kind: str
    event: msgspec.Raw
    decisions: tuple[Decision, ...]


Row = Header | Again | Gap | Shape | Look | Happened

_KINDS: Mapping[str, type[Event]] = {
    "tick": Tick,
    "spawned": EngineSpawned,
    "exited": EngineExited,
    "finished": ActionFinished,
    "commanded": Commanded,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {name: msgspec.msgpack.Decoder(kind) for name, kind in _KINDS.items()}
_ROWS = msgspec.msgpack.Decoder(tuple[Row, ...])
_NOTHING: Value = ""


def _packed(value: object) -> bytes:
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(_legible(value))


def _legible(value: Any) -> Any:  # noqa: ANN401 - the same again, whatever it is
    """``value`` with lone surrogates in its texts as escapes."""
    if type(value) is str:
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, tuple):
        return tuple(map(_legible, value))
    if isinstance(value, Mapping):
        return {_legible(key): _legible(one) for key, one in value.items()}
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return type(value)(**{name: _legible(getattr(value, name)) for name in names})
    if is_dataclass(value) and not isinstance(value, type):
        told = {one.name: _legible(getattr(value, one.name)) for one in fields(value) if one.init}
        return type(value)(**told)
    return value


class Writing:
    """Turns events into rows, relative to the rows since ``reset``."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, Subject | None, int], list[_Known]] = {}
        self._count = 0

    def reset(self) -> None:
        """The next row begins a chunk."""
        self._shapes.clear()
        self._count = 0

    def rows(
        self, event: Event, decisions: tuple[Decision, ...], gap_since: Seconds | None = None
    ) -> list[Row]:
        """The rows that stand for ``event`` and what was decided then."""
        before: list[Row] = [] if gap_since is None else [Gap(gap_since)]
        return before + self._event(event, decisions)

    def _event(self, event: Event, decisions: tuple[Decision, ...]) -> list[Row]:
        if isinstance(event, ReadingTaken):
            return self._look(event, decisions)
        raw = msgspec.Raw(_packed(event))
        return [Happened(_NAMES[type(event)], raw, decisions)]

    def _look(self, event: ReadingTaken, decisions: tuple[Decision, ...]) -> list[Row]:
        reading = event.reading
        rows: list[Row] = []
        known = self._known(reading)
        if known is None:
            known = self._learn(reading)
            rows.append(known.shape)
        places = known.changed(reading.samples)
        rows.append(
            Look(
                shape=known.number,
                at=reading.at,
                took=reading.took,
                generation=reading.generation,
                error=reading.error,
                unread=reading.unread,
                places=places,
                values=tuple(reading.samples[place].value for place in places),
                came=None if event.at == reading.at else event.at,
                decisions=decisions,
            )
        )
        return rows

    def _known(self, reading: Reading) -> _Known | None:
        key = (reading.probe, reading.subject, len(reading.samples))
        found = self._shapes.get(key, ())
        return next((one for one in found if one.fits(reading.samples)), None)

    def _learn(self, reading: Reading) -> _Known:
        known = _Known(self._count, reading)
        self._count += 1
        key = (reading.probe, reading.subject, len(reading.samples))
        self._shapes.setdefault(key, []).append(known)
        return known


class _Known:
    """A shape with the last values that were written of it."""

    def __init__(self, number: int, reading: Reading) -> None:
        self.number = number
        keys = tuple((one.subject, one.sample, one.labels) for one in reading.samples)
        self.shape = Shape(reading.probe, reading.subject, keys)
        self._last: Sequence[Sampled] = reading.samples
        self._fresh = True

    def fits(self, samples: Sequence[Sampled]) -> bool:
        return all(
            one.sample == other.sample
            and one.labels == other.labels
            and (one.subject is other.subject or one.subject == other.subject)
            for one, other in zip(samples, self._last, strict=True)
        )

    def changed(self, samples: Sequence[Sampled]) -> tuple[int, ...]:
        """The places whose values differ from the last ones; all of them at first."""
        before, self._last = self._last, samples
        if self._fresh:
            self._fresh = False
            return tuple(range(len(samples)))
        return tuple(
            place
            for place, (one, other) in enumerate(zip(samples, before, strict=True))
            if one.value != other.value or type(one.value) is not type(other.value)
        )


class Understanding:
    """Turns the rows of one chunk back into events. Raises what msgspec does, and LookupError."""

    def __init__(self) -> None:
        self._shapes: list[tuple[Shape, list[Sampled]]] = []

    def reset(self) -> None:
        """The next row begins a chunk."""
        self._shapes.clear()

    def event(self, row: Look | Happened) -> Event:
        """The event that ``row`` stands for."""
        if isinstance(row, Happened):
            event: Event = _DECODERS[row.kind].decode(row.event)
            return event
        shape, samples = self._shapes[row.shape]
        for place, value in zip(row.places, row.values, strict=True):
            samples[place] = Sampled(*shape.samples[place][:2], value, shape.samples[place][2])
        reading = Reading(
            probe=shape.probe,
            at=row.at,
            took=row.took,
            samples=tuple(samples),
            unread=row.unread,
            error=row.error,
            subject=shape.subject,
            generation=row.generation,
        )
        return ReadingTaken(row.at if row.came is None else row.came, reading)

    def learn(self, shape: Shape) -> None:
        """Take in a row that later ones are relative to."""
        self._shapes.append((shape, [Sampled(s, n, _NOTHING, ls) for s, n, ls in shape.samples]))


def encoded(row: Row) -> msgspec.Raw:
    """One row. Raises what msgspec does for values beyond msgpack.

    A text that is no UTF-8, as names of files and processes may be, is written with escapes.
    """
    return msgspec.Raw(_packed(row))


def joined(rows: Sequence[msgspec.Raw]) -> bytes:
    """Rows as they stand in a frame."""
    return _ENCODER.encode(rows)


def decoded(data: bytes) -> tuple[Row, ...]:
    """The rows again. Raises msgspec.MsgspecError, or RecursionError for what nests too deep."""
    return _ROWS.decode(data)
