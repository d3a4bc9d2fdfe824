"""The header of a safetensors file: how long the file must be, and in which types it holds what.

Eight bytes with the header's length, the header in JSON, the tensors one after the other.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

_PREFIX = 8
_POINTER = b"version "
"""How the file begins that a checkout has when Git LFS did not fetch the content."""
_LAYER = re.compile(r"^model\.layers\.([0-9]{1,5})\.")
LARGEST_HEADER = 32 << 20
"""Bytes. DeepSeek's files have under 1 MiB; the format allows 100 MB."""


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Header:
    """``length`` is what the whole file must have, in bytes; ``types`` are bytes by type name.

    ``layers`` are bytes by the number of the layer, of tensors that are of one; ``output`` bytes of
    the output layer. ``read`` counts the bytes that were read. ``broken`` says in words why it
    cannot be one.
    """

    length: int = 0
    types: Counter[str] = field(default_factory=Counter)
    layers: Counter[int] = field(default_factory=Counter)
    output: int = 0
    read: int = 0
    broken: str = ""


def header(path: Path, limit: int = LARGEST_HEADER) -> Header | None:
    """Of a regular file that ``path`` is; None when it cannot be read or is over ``limit``."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            start = file.read(_PREFIX)
            size = int.from_bytes(start, "little")
            broken = _impossible(start, size)
            text = file.read(size) if not broken and size <= limit else None
    except (OSError, ValueError):
        return None
    if broken:
        return Header(broken=broken)
    if text is None:
        return None
    return _parsed(text) if len(text) == size else Header(read=len(text), broken="it is cut off")


def _impossible(start: bytes, size: int) -> str:
    """Why no header of ``size`` bytes follows; "" when one may."""
    if len(start) < _PREFIX:
        return "it is cut off"
    if start == _POINTER:
        return "it is a pointer of Git LFS"
    return "its header has no sane length" if size > LARGEST_HEADER else ""


def _parsed(text: bytes) -> Header:
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(one, type=_Tensor) for name, one in raw.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Header(read=len(text), broken="its header cannot be read")
    types: Counter[str] = Counter()
    layers: Counter[int] = Counter()
    end = output = 0
    for name, tensor in tensors.items():
        begin, stop = tensor.data_offsets
        if not 0 <= begin <= stop:
            return Header(read=len(text), broken="its header cannot be read")
        types[tensor.dtype] += stop - begin
        end = max(end, stop)
        if (match := _LAYER.search(name)) is not None:
            layers[int(match[1])] += stop - begin
        if name.endswith("lm_head.weight"):
            output += stop - begin
    return Header(_PREFIX + len(text) + end, types, layers, output, len(text))


def total_size(index: Any) -> int | None:  # noqa: ANN401 - whatever the file holds
    """What an index says of the bytes of all tensors; None when it does not."""
    metadata = index.get("metadata") if isinstance(index, dict) else None
    told = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(told, int | float) and not isinstance(told, bool) and 0 < told < 1 << 60:
        return int(told)
    return None
