"""What a GGUF file says of its model: a few numbers out of its key-value table, read with bounds.

Layout: magic, version, counts of tensors and of pairs, the pairs. Strings carry their length. At
the vocabulary, whose arrays have an entry a token, reading ends.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

_MAGIC = b"GGUF"
_VERSIONS = frozenset({2, 3})
_LIMIT = 4 << 20
"""Bytes that are looked at: the numbers come before the vocabulary, in the first few KiB."""
_MOST_PAIRS = 4096
_MOST_KEPT = 1024
"""Entries of an array that is kept, one a layer; and of strings that are passed over."""
_LONGEST = 256
_SCALARS = {
    0: "B",
    1: "b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
Value = int | float | bool | str | list[int | float | bool]


class _EndError(Exception):
    """The file ends, or goes on for longer than anybody would read."""


def metadata(path: Path) -> Mapping[str, Value] | None:
    """The pairs before the vocabulary, as far as they could be read; None of what is no GGUF."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            text = file.read(_LIMIT)
    except (OSError, ValueError):
        return None
    if text[:4] != _MAGIC:
        return None
    found: dict[str, Value] = {}
    try:
        cursor = _Cursor(text)
        if cursor.number("<I") not in _VERSIONS:
            return None
        cursor.number("<Q")
        for _ in range(min(int(cursor.number("<Q")), _MOST_PAIRS)):
            key = cursor.string()
            if key.startswith("tokenizer."):
                break
            value = cursor.value(int(cursor.number("<I")))
            if value is not None:
                found[key] = value
    except _EndError:
        pass
    return found


class _Cursor:
    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = len(_MAGIC)

    def number(self, form: str) -> int | float | bool:
        size = struct.calcsize(form)
        (value,) = struct.unpack(form, self._take(size))
        found: int | float | bool = value
        return found

    def string(self) -> str:
        return self._take(int(self.number("<Q"))).decode(errors="replace")

    def value(self, kind: int) -> Value | None:
        """None of what is passed over."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            text = self.string()
            return text if len(text) <= _LONGEST else None
        if kind != _ARRAY:
            raise _EndError
        return self._array()

    def _array(self) -> Value | None:
        kind, count = int(self.number("<I")), int(self.number("<Q"))
        if kind == _STRING and count <= _MOST_KEPT:
            for _ in range(count):
                self.string()
            return None
        if kind not in _SCALARS:
            raise _EndError
        form = _SCALARS[kind]
        if count <= _MOST_KEPT:
            return [self.number(form) for _ in range(count)]
        self._take(count * struct.calcsize(form))
        return None

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._text):
            raise _EndError
        taken = self._text[self._at : end]
        self._at = end
        return taken
