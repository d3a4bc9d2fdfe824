"""The bytes of a recording: frames of one compressed stream after another.

    file:   MAGIC format  chunk  chunk ...
    chunk:  frame ("S")  frame ("C") ...      one zlib stream, flushed at the end of every frame
    frame:  MARK kind  length (4 bytes)  CRC-32 of kind and payload (4 bytes)  payload

A frame that was written whole can be read, whatever became of the next. A damaged frame costs the
rest of its chunk; reading goes on at the next frame that begins one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from watchdog.core.model import Seconds

MAGIC = b"vllm-watchdog recording\n"
_MARK = b"\xf5VW"
_START, _MORE = b"S", b"C"
_FRAME = struct.Struct("<3scII")
_FORMAT = struct.Struct("<H")
PREFIX_BYTES = len(MAGIC) + _FORMAT.size
_MOST_PAYLOAD = 4 << 20
MOST_PLAIN = 16 << 20
"""A frame that becomes longer than this was not written by us."""
_BLOCK = 1 << 16
CHUNK_SECONDS: Seconds = 300.0
"""A chunk ends after this long, so that damage costs minutes."""
CHUNK_BYTES = 256 << 10
"""A chunk ends after this many bytes before compression."""
Chunk = tuple[bool, bytes]
"""Whether it begins a chunk, and what its frame says."""


def prefix(version: int) -> bytes:
    """The first bytes of a file of that format."""
    return MAGIC + _FORMAT.pack(version)


class Framing:
    """Makes frames. ``plain`` counts the bytes of the present chunk before compression."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj()
        self._began = True
        self.plain = 0

    def reset(self) -> None:
        """The next frame begins a chunk."""
        self._stream = zlib.compressobj()
        self._began = True
        self.plain = 0

    def frame(self, data: bytes) -> bytes:
        """One frame with all of ``data``."""
        kind = _START if self._began else _MORE
        payload = self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)
        self._began = False
        self.plain += len(data)
        return _FRAME.pack(_MARK, kind, len(payload), zlib.crc32(kind + payload)) + payload


class Frames:
    """Iterates over the frames of a file, behind its prefix. ``damaged`` counts what was skipped.

    A file that ends within a frame was cut short, which is how a killed writer leaves it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stream: zlib._Decompress | None = None
        self.damaged = 0
        self.cut = False

    def __iter__(self) -> Iterator[Chunk]:
        """Each frame as what it says. Raises OSError when the file cannot be read."""
        place: int | None = PREFIX_BYTES
        while place is not None:
            self._file.seek(place)
            head = self._file.read(_FRAME.size)
            if len(head) < _FRAME.size:
                self.cut = self.cut or bool(head)
                return
            mark, kind, length, check = _FRAME.unpack(head)
            payload = self._payload(mark, kind, length)
            if payload is None or zlib.crc32(kind + payload) != check:
                place = self._next_mark(place)
                self._broken(ended=place is None)
                continue
            place += _FRAME.size + length
            plain = self._plain(kind, payload)
            if plain is not None:
                yield kind == _START, plain

    def spoil(self) -> None:
        """What the last frame said makes no sense: the rest of its chunk is skipped."""
        self._broken(ended=False)

    def _payload(self, mark: bytes, kind: bytes, length: int) -> bytes | None:
        if mark != _MARK or kind not in {_START, _MORE} or length > _MOST_PAYLOAD:
            return None
        payload = self._file.read(length)
        return payload if len(payload) == length else None

    def _broken(self, *, ended: bool) -> None:
        self._stream = None
        if ended:
            self.cut = True
        else:
            self.damaged += 1

    def _plain(self, kind: bytes, payload: bytes) -> bytes | None:
        if kind == _START:
            self._stream = zlib.decompressobj()
        if self._stream is None:
            return None  # the rest of a chunk that is damaged already
        try:
            plain = self._stream.decompress(payload, MOST_PLAIN)
        except zlib.error:
            self.spoil()
            return None
        if self._stream.unconsumed_tail:
            self.spoil()
            return None
        return plain

    def _next_mark(self, place: int) -> int | None:
        """Where the next frame may begin, behind ``place``."""
        place += 1
        self._file.seek(place)
        kept = b""
        while block := self._file.read(_BLOCK):
            data = kept + block
            found = data.find(_MARK)
            if found >= 0:
                return place + found
            kept = data[-(len(_MARK) - 1) :]
            place += len(data) - len(kept)
        return None


def format_of(file: BinaryIO) -> int | None:
    """The format of a recording; None for a file that is none."""
    file.seek(0)
    start = file.read(PREFIX_BYTES)
    if len(start) < PREFIX_BYTES or not start.startswith(MAGIC):
        return None
    number: int = _FORMAT.unpack(start[len(MAGIC) :])[0]
    return number
