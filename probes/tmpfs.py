"""File systems in memory: what is left of them, when it ends, and who takes it.

They run out of inodes with every byte free, and nothing says so but "no space left on device". What
they hold counts as memory and cannot be reclaimed. Only numbers are read that the kernel keeps
anyway; a culprit is looked for when half is gone, and at most once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from probes._mounts import (
    SHARED_MEMORY,
    TMPFS,
    Deleted,
    Eater,
    FileSystem,
    Search,
    Survey,
    Surveyor,
    deleted,
)
from probes._trend import Outlook
from watchdog import procfs
from watchdog.contracts import Box, ProbeSpec, SampleSpec
from watchdog.core.model import HOST, Sampled, Seconds, SubjectKind, Unread

_RESERVE: Seconds = 0.2
"""Between giving up on a mount and the probe's own deadline."""
_WINDOW: Seconds = 600.0
_LEAST: Seconds = 120.0
_HINT = 2
"""Inodes cost nothing until they are used: twice as many give time to find out who makes them."""
_HALF = 50.0
"""Percent above which it is worth a look who it is."""
_AGAIN: Seconds = 60.0


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: what the engines use is looked at."""


@dataclass(slots=True)
class _Hunt:
    """A search on a file system since ``at``; ``before`` is what the one before it found there."""

    at: Seconds
    device: int
    search: Search
    before: Eater | None = None


@dataclass(frozen=True, slots=True)
class _Held:
    """What was found of files without a name, and when."""

    at: Seconds
    device: int
    found: Deleted | None


class Tmpfs:
    """One look at every tmpfs that an engine uses. ``root`` is where procfs is."""

    def __init__(
        self,
        box: Box,
        root: str = procfs.ROOT,
        clock: Callable[[], Seconds] = time.monotonic,
    ) -> None:
        self._box, self._root, self._clock = box, root, clock
        self._surveyor = Surveyor(box, lambda place: place.grows, root)
        self._outlook = Outlook(_WINDOW, _LEAST)
        self._hunt: _Hunt | None = None
        self._held: _Held | None = None

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Numbers by mount, the fullest by bytes and by inodes, and who fills those."""
        return list(self._told(self._surveyor(deadline - _RESERVE)))

    def close(self) -> None:
        """Nothing is held."""

    def _told(self, survey: Survey) -> Iterator[Sampled]:
        systems = [one for one in survey.systems if one.mount.kind == TMPFS]
        for one in systems:
            yield from _by_mount(one)
        yield from self._inodes(systems)
        yield from self._bytes(systems)
        yield from self._ends(systems)
        yield Sampled(HOST, "shm_wanted_bytes", survey.shm_wanted)
        shared = [size for one in survey.systems if (size := _shm(one)) is not None]
        if shared:
            yield Sampled(HOST, "shm_bytes", min(shared))

    def _inodes(self, systems: Iterable[FileSystem]) -> Iterator[Sampled]:
        counted = [(p, one) for one in systems if (p := one.space.inodes_percent) is not None]
        if not counted:
            return
        percent, fullest = max(counted, key=lambda pair: pair[0])
        yield Sampled(HOST, "inodes_percent", percent)
        yield Sampled(HOST, "inodes_mount", fullest.label)
        yield Sampled(HOST, "inodes_free", fullest.space.free_inodes)
        yield Sampled(HOST, "suggested_inodes", (fullest.space.total_inodes or 0) * _HINT)
        found = self._eats(fullest) if percent > _HALF else None
        if found is not None:
            name = _shown(found.path.removeprefix(fullest.prefix))
            yield Sampled(HOST, "inodes_eater", f"{name} ({found.entries:,} entries)")

    def _bytes(self, systems: Iterable[FileSystem]) -> Iterator[Sampled]:
        limited = [(p, one) for one in systems if (p := one.space.percent) is not None]
        if not limited:
            return
        percent, fullest = max(limited, key=lambda pair: pair[0])
        yield Sampled(HOST, "percent", percent)
        yield Sampled(HOST, "mount", fullest.label)
        yield Sampled(HOST, "free_bytes", fullest.space.free_bytes)
        found = self._nameless(fullest, systems) if percent > _HALF else None
        if found is not None:
            yield Sampled(HOST, "deleted_bytes", found.size)
            yield Sampled(HOST, "deleted", _shown(found.words))

    def _ends(self, systems: Iterable[FileSystem]) -> Iterator[Sampled]:
        """The first thing that ends, when anything is about to."""
        left = dict(pair for one in systems for pair in one.left())
        first = self._outlook.first(self._clock(), left)
        yield Sampled(HOST, "outlook", "" if first is None else first[1])
        if first is not None:
            yield Sampled(HOST, "full_in_seconds", first[0])

    def _eats(self, one: FileSystem) -> Eater | None:
        """What is known so far: a search goes on a little at every look, and begins anew later."""
        hunt = self._hunt
        if hunt is None or hunt.device != one.space.device:
            hunt = _Hunt(self._clock(), one.space.device, Search(one.top))
        elif hunt.search.done and not self._is_fresh(hunt.at):
            hunt = _Hunt(self._clock(), hunt.device, Search(one.top), hunt.search.found)
        self._hunt = hunt
        if not hunt.search.done:
            hunt.search.step(one.space.used_inodes)
        return hunt.search.found if hunt.search.done or hunt.before is None else hunt.before

    def _nameless(self, one: FileSystem, systems: Iterable[FileSystem]) -> Deleted | None:
        held = self._held
        if held is None or held.device != one.space.device or not self._is_fresh(held.at):
            every = [member for engine in self._box.engines() for member in engine.processes()]
            devices = frozenset(other.space.device for other in systems)
            points = [other.mount.point for other in systems]
            found = deleted(every, points, devices, self._root)
            held = self._held = _Held(self._clock(), one.space.device, found)
        return held.found

    def _is_fresh(self, at: Seconds) -> bool:
        return self._clock() - at < _AGAIN


def _by_mount(one: FileSystem) -> Iterator[Sampled]:
    labels, space = (("mount", one.label),), one.space
    if space.total_bytes is not None:
        yield Sampled(HOST, "bytes_used", space.used_bytes, labels)
        yield Sampled(HOST, "size_bytes", space.total_bytes, labels)
    if space.total_inodes is not None:
        yield Sampled(HOST, "inodes_used", space.used_inodes, labels)
        yield Sampled(HOST, "inodes", space.total_inodes, labels)


def _shm(one: FileSystem) -> int | None:
    """Its size when somebody's shared memory is there: not when that directory is missing."""
    is_it = any(use.is_there and use.place.purpose == SHARED_MEMORY for use in one.uses)
    return one.space.total_bytes if is_it else None


def _shown(text: str) -> str:
    return text.encode(errors="replace").decode()


def _build(_: Settings, box: Box) -> Tmpfs:
    return Tmpfs(box)


def _of_mount(name: str, unit: str, text: str) -> SampleSpec:
    return SampleSpec(name, int, unit, text, labels=("mount",))


def _words(name: str, text: str) -> SampleSpec:
    return SampleSpec(name, str, "", text)


PROBE = ProbeSpec(
    name="tmpfs",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        _of_mount("bytes_used", "bytes", "Used bytes of a tmpfs that engines use."),
        _of_mount("size_bytes", "bytes", "Its size."),
        _of_mount("inodes_used", "", "Used inodes of a tmpfs that engines use."),
        _of_mount("inodes", "", "All its inodes."),
        SampleSpec(
            "inodes_percent", float, "percent", "Used inodes of the tmpfs with fewest left."
        ),
        _words("inodes_mount", "Which one that is."),
        SampleSpec("inodes_free", int, "", "How many it has left."),
        SampleSpec("suggested_inodes", int, "", "Twice as many as it has.", exported=False),
        _words("inodes_eater", "The directory with most entries there, when half is gone."),
        SampleSpec("percent", float, "percent", "Used bytes of the fullest tmpfs."),
        _words("mount", "Which one that is."),
        SampleSpec("free_bytes", int, "bytes", "What it has left."),
        SampleSpec("full_in_seconds", float, "seconds", "Until the first is full, when it fills."),
        _words("outlook", "The same in words; empty when none fills."),
        SampleSpec("shm_bytes", int, "bytes", "Size of the smallest shared memory of an engine."),
        SampleSpec("shm_wanted_bytes", int, "bytes", "What an engine's workers want of it."),
        SampleSpec("deleted_bytes", int, "bytes", "Held by engines in files without a name."),
        _words("deleted", "The largest of those files."),
    ),
    build=_build,
    period=10.0,
)
