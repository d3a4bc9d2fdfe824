"""Bundles on the disk: made whole or not at all, and never more than may be kept.

STATE_DIR/evidence/INCIDENT-NNN.part/    one that is being made; believed by nobody
STATE_DIR/evidence/INCIDENT-NNN/         meta.json names its other files with their bytes
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from watchdog.core.model import Seconds
from watchdog.evidence.blots import Clean

DIRECTORY = "evidence"
"""Below the state directory."""
META = "meta.json"
MOST_BYTES = 20_000_000
"""Of one bundle."""
MOST_BUNDLES = 50
_META_BYTES = 1 << 18
_SPARE = 64 << 20
"""Bytes that stay free for who needs them more."""
_SPARE_FILES = 64
_PART = ".part"
_NAME = re.compile(r"(?P<incident>inc-[0-9]{6,12}|no-incident)-(?P<number>[0-9]{3,6})")
"""Nothing else in the directory is ours to remove: not the copy that somebody made of a bundle."""
_UNNAMED = "no-incident"
_MOST_NUMBERS = 10_000


class EvidenceError(Exception):
    """A bundle cannot be made. One line."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A whole one. ``at`` is when it was made, in seconds since the epoch."""

    path: Path
    incident: str
    bytes: int
    at: Seconds


class Making:
    """One that is being made. Methods raise OSError; ``undo`` never does."""

    def __init__(self, part: Path) -> None:
        self.path = part.with_name(part.name.removesuffix(_PART))
        self.bytes = 0
        self.files: dict[str, int] = {}
        self._part = part

    def room(self) -> int:
        """Bytes that may still be added; something is left for the last file."""
        return MOST_BYTES - _META_BYTES - self.bytes

    def add(self, name: str, data: Clean) -> None:
        """Write one file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._part / name, flags, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        self.bytes += len(data)
        self.files[name] = len(data)

    def done(self) -> None:
        """All is there: from now on it is believed."""
        self._part.rename(self.path)

    def undo(self) -> None:
        """Leave nothing of it."""
        _remove(self._part)


def begin(directory: Path, incident: str) -> Making:
    """Begin the next bundle of an incident. Raises EvidenceError, and OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_room(directory)
    stem = incident if _NAME.fullmatch(f"{incident}-000") else _UNNAMED
    taken = [int(found["number"]) for _, found in _named(directory) if found["incident"] == stem]
    first = max(taken, default=0) + 1
    for number in range(first, first + _MOST_NUMBERS):
        part = directory / f"{stem}-{number:03}{_PART}"
        with contextlib.suppress(FileExistsError):
            part.mkdir(mode=0o700)
            making = Making(part)
            if not os.path.lexists(making.path):  # another one's that was done meanwhile
                return making
            making.undo()
    raise EvidenceError(f"{directory} has too many bundles of {stem}")


def _check_room(directory: Path) -> None:
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    if free < MOST_BYTES + _SPARE:
        raise EvidenceError(f"no room: {free >> 20} MiB are free on the disk of {directory}")
    if room.f_files and room.f_favail < _SPARE_FILES:
        raise EvidenceError(f"no room: {room.f_favail} inodes are free on the disk of {directory}")


def kept(directory: Path) -> tuple[Bundle, ...]:
    """The bundles that are whole, oldest first; those whose files are not as told are left out."""
    return _whole(_all(directory))


def _all(directory: Path) -> Mapping[Path, Bundle | None]:
    """What has the name of a bundle, and None where it is no whole one."""
    return {path: _read(path, name["incident"]) for path, name in _named(directory)}


def _whole(found: Mapping[Path, Bundle | None]) -> tuple[Bundle, ...]:
    whole = [bundle for bundle in found.values() if bundle is not None]
    return tuple(sorted(whole, key=lambda bundle: (bundle.at, bundle.path.name)))


def tidy(directory: Path) -> None:
    """Remove what was being made when its watchdog died. Only while no other one runs."""
    with contextlib.suppress(OSError):
        for path in tuple(directory.iterdir()):
            if path.name.endswith(_PART) and _NAME.fullmatch(path.name.removesuffix(_PART)):
                _remove(path)


def prune(directory: Path, most_bytes: int, max_age: Seconds, now: Seconds) -> tuple[Bundle, ...]:
    """Remove the oldest until the rest is within bounds; what is left. Never the last one made.

    What is no whole bundle and has the name of one goes too. ``now`` is wall time. The directory
    is listed once: what another thread has done since is not judged.
    """
    found = _all(directory)
    for path in (path for path, bundle in found.items() if bundle is None):
        _remove(path)
    left: list[Bundle] = []
    total = 0
    for bundle in reversed(_whole(found)):
        total += bundle.bytes
        old = now - bundle.at > max_age
        if left and (old or total > most_bytes or len(left) >= MOST_BUNDLES):
            _remove(bundle.path)
        else:
            left.append(bundle)
    return tuple(reversed(left))


def by_incident(bundles: tuple[Bundle, ...]) -> Mapping[str, tuple[str, ...]]:
    """The paths of the bundles of each incident, oldest first."""
    found: dict[str, tuple[str, ...]] = {}
    for bundle in bundles:
        found[bundle.incident] = (*found.get(bundle.incident, ()), str(bundle.path))
    return found


def _named(directory: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    with contextlib.suppress(OSError):
        for path in tuple(directory.iterdir()):
            found = _NAME.fullmatch(path.name)
            if found is not None and path.is_dir() and not path.is_symlink():
                yield path, found


class _Meta(msgspec.Struct):
    """What is read of meta.json."""

    taken_at_s: float
    files: dict[str, int]


def _read(path: Path, incident: str) -> Bundle | None:
    """None for what a full disk or a lost power supply has left."""
    try:
        raw = _meta(path / META)
        meta = msgspec.json.decode(raw, type=_Meta)
        sizes = {name: (path / Path(name).name).stat().st_size for name in meta.files}
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    if sizes != meta.files:
        return None
    return Bundle(path, incident, len(raw) + sum(sizes.values()), meta.taken_at_s)


def _meta(path: Path) -> bytes:
    """A regular file, and no more of it than we ever write. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return os.read(descriptor, MOST_BYTES)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
