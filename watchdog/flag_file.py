"""The file that an engine's ``--config`` names: flags in simple YAML, read with bounds.

Top-level scalars and lists are understood. What is deeper is named and passed over.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from watchdog.core.model import Seconds

_LIMIT = 1 << 20
_PATIENCE: Seconds = 3.0
"""So long it may take: the mount that it is on may be dead."""
_READERS: dict[Path, threading.Thread] = {}
"""Who waits for a file without an end: not more than one, however often it is asked for."""
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class FlagFile:
    """``values`` by flag, names without dashes in front. ``odd`` are keys not understood."""

    values: Mapping[str, tuple[str, ...]]
    odd: tuple[str, ...] = ()


def read(path: Path) -> FlagFile | None:
    """None of what is no regular file of text, or too long.

    Raises TimeoutError, whose message is one line, when the file system does not answer.
    """
    found: list[str | None] = []
    reader = _READERS.get(path)
    if reader is None or not reader.is_alive():
        reader = threading.Thread(
            target=lambda: found.append(_text(path)), name="flag-file", daemon=True
        )
        reader.start()
        reader.join(_PATIENCE)
    if reader.is_alive():
        _READERS[path] = reader
        raise TimeoutError(
            f"cannot read the engine's --config file {str(path)[:_SHOWN]!r} within {_PATIENCE:g} s:"
            " does the mount that it is on answer?"
        )
    _READERS.pop(path, None)
    text = found[0] if found else None
    return None if text is None else _parsed(text)


def _text(path: Path) -> str | None:
    """A pipe by that name is not opened for long: without a writer it would never answer."""
    try:
        if not path.is_file():
            return None
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)) as file:
            text = file.read(_LIMIT + 1)
    except (OSError, ValueError):
        return None
    return text if len(text) <= _LIMIT else None


def _parsed(text: str) -> FlagFile:
    found: dict[str, tuple[str, ...]] = {}
    odd: set[str] = set()
    key = ""
    for line in text.splitlines():
        if match := re.match(r"([A-Za-z][\w.-]*)\s*:(?:\s+(.*))?$", line):
            key, value = match.group(1).replace("_", "-"), _scalar(match.group(2) or "")
            odd = odd | {key} if _is_odd(value) else odd - {key}
            listed = value[1:-1].split(",") if value.startswith("[") else [value]
            found[key] = tuple(filter(None, map(_scalar, listed)))
        elif key and (match := re.match(r"\s*-\s+(.*)$", line)):
            found[key] = (*found[key], _scalar(match.group(1)))
        elif key and _scalar(line):
            odd.add(key)
    values = {name: told for name, told in found.items() if told and name not in odd}
    return FlagFile(values, tuple(name for name in found if name in odd))


def _is_odd(value: str) -> bool:
    """Whether it takes more than this to read it; JSON is what the flag itself would take."""
    if not value.startswith("{"):
        return value[:1] in {"|", ">", "&", "*", "!"}
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return True
    return False


def _scalar(text: str) -> str:
    text = text.strip()
    if text[:1] in {'"', "'"} and (end := text.find(text[0], 1)) > 0:
        return text[1:end]
    return "" if text.startswith("#") else re.sub(r"\s+#.*$", "", text)
