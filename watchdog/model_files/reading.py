"""Reads a model's fingerprint: hashes of small files, names and sizes of weights.

The contents of weights are never read. Everything is bounded: entries, bytes, and what is hashed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from watchdog.model_files.asking import Asked
from watchdog.model_files.fingerprint import Fingerprint, Part
from watchdog.model_files.places import Place, places
from watchdog.model_files.small import small, status

_MOST_ENTRIES = 10_000
"""Of a folder. One with more is no model's; DeepSeek's largest have under two hundred."""
_MOST_PARTS = 2_000
_LARGEST = 64 << 20
"""Bytes of a file that is hashed: tokenizers and indices of large models have 10 to 30 MiB."""
_MOST_HASHED = 512 << 20
"""Bytes of one look; of what comes after them only the size is taken."""
_HEX = frozenset("0123456789abcdef")
_BLOB_LENGTHS = frozenset({40, 64})

_SMALL = (
    *("config.json", "generation_config.json", "params.json", "*.index.json", "*.py"),
    *("tokenizer*", "tekken.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.tiktoken", "*.model", "chat_template*"),
    *("*processor_config.json", "*quant*_config.json", "modules.json"),
)
"""What decides how weights are understood, and how text becomes tokens."""
_TOKENIZER = ("tokenizer*", "tekken.json", "*.tiktoken", "*.model", "vocab.*", "merges.txt")
_WEIGHTS = (("*.safetensors",), ("*.bin", "*.pt", "*.pth"), ("*.gguf",))
"""Families: the first that is there is what is loaded."""
_NO_WEIGHTS = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")
"""What a training leaves behind."""

_Stamp = tuple[int, int, int, int, int]


class Reader:
    """Remembers the hashes of files that did not change since. For one thread at a time."""

    def __init__(self) -> None:
        self._hashes: dict[str, tuple[_Stamp, str]] = {}
        self._room = _MOST_HASHED

    def read(
        self, asked: Asked, environment: Mapping[str, str], cwd: str | None = None
    ) -> Fingerprint | None:
        """The files that a start would load now; None when they cannot be told."""
        found = places(asked, environment, cwd)
        if not found:
            return None
        self._room = _MOST_HASHED
        own = [place for place in found if not place.label]
        parts: dict[str, Part] = {}
        for place in found:
            more = self._parts(place)
            if more is None:
                return None
            parts = more | parts
        if not parts:
            return None
        return Fingerprint(_shown(str(own[0].path)), own[0].commit, dict(sorted(parts.items())))

    def _parts(self, place: Place) -> dict[str, Part] | None:
        """None for a folder that cannot be listed, or has too much in it."""
        if place.is_file:
            return {_shown(place.path.name): _sized(place.path)}
        names = _names(place.path)
        if names is None:
            return None
        tokenizer = place.label.startswith("tokenizer")
        wanted = [n for n in names if _is_any(n, _TOKENIZER if tokenizer else _SMALL)]
        weights = [] if place.label else _weights(names)
        if len(wanted) + len(weights) > _MOST_PARTS:
            return None
        parts = {n: self._hashed(place.path / n) for n in wanted}
        parts |= {n: _sized(place.path / n) for n in weights if n not in parts}
        return {f"{place.label}{_shown(name)}": part for name, part in parts.items()}

    def _hashed(self, path: Path) -> Part:
        """With its hash, unless it is too large; without anything when it cannot be read."""
        found = status(path)
        if found is None or not stat.S_ISREG(found.st_mode):
            return Part()
        if found.st_size > min(_LARGEST, self._room):
            return _sized(path)
        stamp = (
            *(found.st_dev, found.st_ino, found.st_size),
            *(found.st_mtime_ns, found.st_ctime_ns),
        )
        known = self._hashes.get(str(path))
        if known is not None and known[0] == stamp:
            return Part(found.st_size, known[1])
        self._room -= found.st_size
        content = small(path, _LARGEST)
        if content is None:
            return Part()
        digest = hashlib.sha256(content).hexdigest()
        if len(self._hashes) >= _MOST_PARTS:
            self._hashes.clear()
        self._hashes[str(path)] = (stamp, digest)
        return Part(len(content), digest)


def _names(folder: Path) -> list[str] | None:
    try:
        with os.scandir(folder) as entries:
            found = list(islice((entry.name for entry in entries), _MOST_ENTRIES + 1))
    except (OSError, ValueError):
        return None
    return sorted(found) if len(found) <= _MOST_ENTRIES else None


def _weights(names: Sequence[str]) -> list[str]:
    for family in _WEIGHTS:
        found = [n for n in names if _is_any(n, family) and not _is_any(n, _NO_WEIGHTS)]
        if found:
            return found
    return []


def _is_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _sized(path: Path) -> Part:
    found = status(path)
    if found is None or not stat.S_ISREG(found.st_mode):
        return Part()
    return Part(found.st_size, blob=next(_blob(path), ""))


def _blob(path: Path) -> Iterator[str]:
    """A hub's cache keeps each content under its hash, and links to it from snapshots."""
    try:
        name = path.readlink().name
    except (OSError, ValueError):
        return
    if len(name) in _BLOB_LENGTHS and _HEX.issuperset(name):
        yield name


def _shown(name: str) -> str:
    """A name need not be UTF-8, nor of one line."""
    text = name.encode(errors="backslashreplace").decode()
    return text.replace("\n", "\\n").replace("\r", "\\r")
