"""How many bytes of weights a start would load from a folder, and what is wrong with the files.

vLLM takes Mistral's own files where they are, then those that the safetensors index names, then all
safetensors, ``.bin``, ``.pt``. Only names, sizes and headers are read.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from watchdog.model_files.small import small, status
from watchdog.preflight.safetensors import Header, header, total_size
from watchdog.preflight.words import plural, size

INDEX_LIMIT = 64 << 20
_MOST_ENTRIES = 10_000
_MOST_HEADERS = 64 << 20
"""Bytes of headers of one model; of files after them only the size is taken."""
_FAMILIES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_NO_WEIGHTS = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")
_INDICES = ("consolidated.safetensors.index.json", "model.safetensors.index.json")
_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.(safetensors|bin|gguf)")
_NAMED = 3
_LONGEST = 200
_ROUGHLY = 0.01
"""Share by which files may be smaller than the index says: some count shared tensors twice."""


@dataclass(frozen=True, slots=True)
class Weights:
    """``bytes`` of all tensors (of the files where those are not known), ``how`` in words.

    ``types`` are bytes by the name of their type as safetensors writes it, ``layers`` bytes by
    number of the layer; both empty when not known. ``output`` are bytes of the output layer.
    ``missing`` names files that are not there, "" for none; ``problems`` are about those that are.
    ``indexed``: the index says how many bytes there are, whatever lies here.
    """

    bytes: int
    how: str
    files: int = 1
    types: Counter[str] = field(default_factory=Counter)
    layers: Counter[int] = field(default_factory=Counter)
    output: int = 0
    missing: str = ""
    problems: tuple[str, ...] = ()
    indexed: bool = False
    gguf: bool = False

    @property
    def whole(self) -> bool:
        """Whether all of them are there, so that ``bytes`` are what would be loaded."""
        return not self.missing and not self.problems


def of_folder(folder: Path, load_format: str = "auto") -> Weights | None:
    """None when there are no weights, or the folder cannot be listed."""
    names = _names(folder)
    if names is None:
        return None
    own = fnmatch.filter(names, "consolidated*.safetensors")
    mistral = load_format == "mistral" or (load_format == "auto" and bool(own))
    named = _INDICES[0] if mistral else _INDICES[1]
    indexed = named in names and load_format != "pt"
    found = _indexed(folder, named) if indexed else None
    if found is not None:
        return found
    damage = (f"{named} is no whole index of weights",) if indexed else ()
    for family in ("consolidated*.safetensors",) if mistral else _FAMILIES:
        files = [n for n in fnmatch.filter(names, family) if not _is_any(n, _NO_WEIGHTS)]
        if files:
            whole = _with_parts(files)
            found = _counted(folder, whole, f"{plural(len(whole), 'file')} {family}")
            problems = (*damage, *found.problems)
            return replace(found, gguf=family == "*.gguf", problems=problems)
    return None


def _with_parts(names: Sequence[str]) -> list[str]:
    """``names``, and those of the parts that their numbers say there are."""
    found = dict.fromkeys(names)
    for name in names:
        found |= dict.fromkeys(_parts(name))
    return [*found]


def _parts(name: str) -> list[str]:
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    count = min(int(match[2]), _MOST_ENTRIES)
    return [f"{match[1]}-{n:05d}-of-{match[2]}.{match[3]}" for n in range(1, count + 1)]


def of_file(path: Path) -> Weights:
    """One file; with its other parts where its name says that it has some."""
    names = _parts(path.name)
    return _counted(path.parent, names, plural(len(names), "file"))


def _names(folder: Path) -> list[str] | None:
    try:
        with os.scandir(folder) as entries:
            found = list(islice((entry.name for entry in entries), _MOST_ENTRIES + 1))
    except (OSError, ValueError):
        return None
    return sorted(found) if len(found) <= _MOST_ENTRIES else None


def _is_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _indexed(folder: Path, name: str) -> Weights | None:
    """By an index; None when it is none, so that the files count as they are."""
    index = json_of(folder / name, INDEX_LIMIT)
    mapped = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(mapped, dict):
        return None
    named = sorted({file for file in mapped.values() if isinstance(file, str)})
    if not named or len(named) > _MOST_ENTRIES:
        return None
    files = [file for file in named if _is_inside(file)]
    counted = _counted(folder, files, f"{plural(len(named), 'file')} of {name}")
    outside = [file for file in named if not _is_inside(file)]
    if outside:
        line = f"{name} names weights outside of the model's folder: {_listed(outside)}"
        return replace(counted, problems=(line, *counted.problems))
    told = total_size(index)
    if told is None or (counted.whole and counted.bytes >= told * (1 - _ROUGHLY)):
        return counted
    problems = counted.problems
    if counted.whole:
        problems = (f"the weights are {size(counted.bytes)}, and {name} says {size(told)}",)
    return replace(counted, bytes=told, problems=problems, indexed=True)


def _is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts


def _counted(folder: Path, files: Sequence[str], how: str) -> Weights:
    amount, output, room = 0, 0, _MOST_HEADERS
    types: Counter[str] = Counter()
    layers: Counter[int] = Counter()
    missing: list[str] = []
    broken: list[str] = []
    for name in files:
        found = status(folder / name)
        if found is None or not stat.S_ISREG(found.st_mode):
            missing.append(name)
            continue
        read = header(folder / name, room) if name.endswith(".safetensors") else None
        if read is not None:
            room -= read.read
            types += read.types
            layers += read.layers
            output += read.output
            broken.extend(_wrong(name, read, found.st_size))
        elif not found.st_size:
            broken.append(f"{name} is empty")
        amount += found.st_size if read is None or read.broken else sum(read.types.values())
    if files and not (amount or missing or broken):
        broken.append(f"there are no weights in {_listed(files)}")
    return Weights(
        bytes=amount,
        how=how,
        files=len(files),
        types=types,
        layers=layers,
        output=output,
        missing=_missing(missing),
        problems=tuple(_problems(broken)),
    )


def _wrong(name: str, read: Header, length: int) -> Iterator[str]:
    if read.broken:
        yield f"{name} is no whole safetensors file: {read.broken}"
    elif length < read.length:
        yield f"{name} is cut off: {size(length)} of {size(read.length)}"


def _missing(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"{plural(len(names), 'file')} of weights missing: {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name[:_LONGEST] for name in names[:_NAMED]) + more


def _problems(broken: Sequence[str]) -> Iterator[str]:
    yield from broken[:_NAMED]
    if len(broken) > _NAMED:
        yield f"{len(broken) - _NAMED} more files of weights are broken"


def json_of(path: Path, limit: int) -> Any:  # noqa: ANN401 - whatever the file holds
    """The content of a regular JSON file of at most ``limit`` bytes; None of all else."""
    text = small(path, limit)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
