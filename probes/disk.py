"""Disks where models, caches, logs and our own state live: room, speed, and whether they answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from probes._mounts import STATE, TMPFS, FileSystem, Latency, Survey, Surveyor, Use
from probes._trend import Outlook
from watchdog import procfs
from watchdog.contracts import Box, ProbeSpec, SampleSpec
from watchdog.core.model import HOST, Sampled, Seconds, SubjectKind, Unread

_RESERVE: Seconds = 0.2
"""Between giving up on a mount and the probe's own deadline."""
_WINDOW: Seconds = 3600.0
_LEAST: Seconds = 600.0
_IN_MEMORY = frozenset({TMPFS, "ramfs", "devtmpfs"})


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: what the engines use is looked at."""


class Disk:
    """One look at every disk that is used. ``root`` is where the file system begins.

    ``patience`` is how long a mount may take to answer, in seconds.
    """

    def __init__(
        self,
        box: Box,
        root: str = "/",
        clock: Callable[[], Seconds] = time.monotonic,
        patience: Seconds = 1.0,
    ) -> None:
        self._clock = clock
        proc = procfs.ROOT if root == "/" else f"{root}/proc"
        self._surveyor = Surveyor(box, lambda _: True, proc, patience)
        self._latency = Latency(root)
        self._outlook = Outlook(_WINDOW, _LEAST)

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Numbers by mount, the fullest and slowest, and what does not answer or take files."""
        return list(self._told(self._surveyor(deadline - _RESERVE)))

    def close(self) -> None:
        """Nothing is held."""

    def _told(self, survey: Survey) -> Iterator[Sampled]:
        systems = [one for one in survey.systems if one.mount.kind not in _IN_MEMORY]
        for one in systems:
            yield from _by_mount(one)
        yield from _fullest([one for one in systems if one.may_fill])
        yield from self._ends([one for one in systems if one.may_fill])
        yield from self._slowest(systems)
        yield Sampled(HOST, "hung", ", ".join(survey.hung))
        yield Sampled(HOST, "read_only", "; ".join(_refused(survey.systems)))

    def _ends(self, systems: Iterable[FileSystem]) -> Iterator[Sampled]:
        """The first thing that ends, when anything is about to."""
        left = dict(pair for one in systems for pair in one.left())
        first = self._outlook.first(self._clock(), left)
        yield Sampled(HOST, "outlook", "" if first is None else first[1])
        if first is not None:
            yield Sampled(HOST, "full_in_seconds", first[0])

    def _slowest(self, systems: list[FileSystem]) -> Iterator[Sampled]:
        at, found = self._clock(), []
        for one in systems:
            took = self._latency.of(one.mount, at)
            if took is not None:
                found.append((took, one.label))
                yield Sampled(HOST, "request_seconds", took, (("mount", one.label),))
        self._latency.keep([one.mount for one in systems])
        if found:
            took, label = max(found)
            yield Sampled(HOST, "latency_seconds", took)
            yield Sampled(HOST, "slow_mount", label)


def _by_mount(one: FileSystem) -> Iterator[Sampled]:
    labels, space = (("mount", one.label),), one.space
    if space.total_bytes is not None:
        yield Sampled(HOST, "used_bytes", space.used_bytes, labels)
        yield Sampled(HOST, "available_bytes", space.free_bytes, labels)
    if space.total_inodes is not None:
        yield Sampled(HOST, "inodes_free", space.free_inodes, labels)


def _fullest(systems: Iterable[FileSystem]) -> Iterator[Sampled]:
    """By bytes and by inodes; what nobody writes to may be full."""
    every = list(systems)
    full = [(p, one) for one in every if (p := one.space.percent) is not None]
    if full:
        percent, fullest = max(full, key=lambda pair: pair[0])
        yield Sampled(HOST, "percent", percent)
        yield Sampled(HOST, "mount", fullest.label)
        yield Sampled(HOST, "free_bytes", fullest.space.free_bytes)
    counted = [(p, one) for one in every if (p := one.space.inodes_percent) is not None]
    if counted:
        percent, fullest = max(counted, key=lambda pair: pair[0])
        yield Sampled(HOST, "inodes_percent", percent)
        yield Sampled(HOST, "inodes_mount", fullest.label)


def _refused(systems: Iterable[FileSystem]) -> Iterator[str]:
    """Places that must be written and cannot be, each with the reason."""
    for one in systems:
        for use in one.uses:
            why = _refusal(use, one)
            if why:
                yield f"{use.site.place.path} ({use.place.purpose}) {why}"


def _refusal(use: Use, one: FileSystem) -> str:
    if one.space.read_only:
        return "is read-only" if use.place.written else ""
    if use.place.purpose != STATE:
        return ""
    if not use.is_there:
        return "is gone"
    return "" if os.access(use.site.path, os.W_OK) else "is not ours to write"


def _build(_: Settings, box: Box) -> Disk:
    return Disk(box)


def _of_mount(name: str, kind: type[int | float], unit: str, text: str) -> SampleSpec:
    return SampleSpec(name, kind, unit, text, labels=("mount",))


def _words(name: str, text: str) -> SampleSpec:
    return SampleSpec(name, str, "", text)


PROBE = ProbeSpec(
    name="disk",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        _of_mount("used_bytes", int, "bytes", "Used bytes of a disk that is used here."),
        _of_mount("available_bytes", int, "bytes", "Bytes that are left to who is not root."),
        _of_mount("inodes_free", int, "", "Inodes that are left to who is not root."),
        _of_mount("request_seconds", float, "seconds", "Mean time of a request of the last while."),
        SampleSpec("percent", float, "percent", "Used bytes of the fullest disk."),
        _words("mount", "Which one that is."),
        SampleSpec("free_bytes", int, "bytes", "What it has left."),
        SampleSpec("inodes_percent", float, "percent", "Used inodes of the disk with fewest left."),
        _words("inodes_mount", "Which one that is."),
        SampleSpec("full_in_seconds", float, "seconds", "Until the first is full, when it fills."),
        _words("outlook", "The same in words; empty when none fills."),
        SampleSpec("latency_seconds", float, "seconds", "Mean time of a request of the slowest."),
        _words("slow_mount", "Which one that is."),
        _words("hung", "Mounts that do not answer; empty when all do."),
        _words("read_only", "Places that must be written and cannot be, and why."),
    ),
    build=_build,
    period=30.0,
)
