"""How many files are open, and how many tasks there are, against the limits that bind."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import msgspec

from watchdog import procfs
from watchdog.contracts import (
    Box,
    EngineTarget,
    ProbeError,
    ProbeSpec,
    ProcessInfo,
    SampleSpec,
    of_engine,
)
from watchdog.core.model import HOST, Sampled, Seconds, SubjectKind, Unread

_MOST_COUNTED = 1 << 16
"""Names of a directory that are counted one by one: some 50 ms, on kernels older than 6.2."""
_LIMIT = "Max open files"
_DEAD = "ZX"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: the limits are the machine's."""


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a limit is used, and whose limit it is."""

    used: int
    limit: int
    whose: str = ""

    @property
    def percent(self) -> float:
        """Of the limit; a limit of nothing is full."""
        return 100.0 * self.used / self.limit if self.limit else 100.0


class Files:
    """Looks at the box, at ourselves and at every engine. ``root`` is where procfs is."""

    def __init__(self, box: Box, root: str = procfs.ROOT) -> None:
        self._box = box
        self._root = root

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:  # noqa: ARG002 - /proc does not wait
        """What is known. Raises ProbeError when that is nothing."""
        found = list(self._told())
        if not found:
            raise ProbeError(f"cannot read any limit of files and tasks below {self._root}")
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _told(self) -> Iterator[Sampled]:
        yield from _of_host("", self._of_box())
        yield from _of_host("own_", descriptors("self", self._root))
        yield from self._tasks()
        for engine in self._box.engines():
            yield from self._engine(engine)

    def _of_box(self) -> Use | None:
        numbers = _numbers(f"{self._root}/sys/fs/file-nr")
        return Use(numbers[0] - numbers[1], numbers[2]) if len(numbers) == 3 else None  # noqa: PLR2004

    def _tasks(self) -> Iterator[Sampled]:
        leaders = (engine.look().leader for engine in self._box.engines())
        pids = (os.getpid(), *(pid for pid in leaders if pid is not None))
        folders = {folder for pid in pids if (folder := task_folder(pid, self._root))}
        uses = [use for folder in sorted(folders) for use in cgroup_tasks(folder)]
        uses += kernel_tasks(self._root)
        if uses:
            fullest = max(uses, key=lambda use: use.percent)
            yield Sampled(HOST, "tasks", fullest.used)
            yield Sampled(HOST, "tasks_limit", fullest.limit)
            yield Sampled(HOST, "tasks_percent", fullest.percent)
            yield Sampled(HOST, "tasks_limited_by", fullest.whose)

    def _engine(self, engine: EngineTarget) -> Iterator[Sampled]:
        """Of the process that is nearest to its limit, of those that can be seen."""
        uses = [(use.percent, one.pid, use, one) for one, use in self._members(engine)]
        if not uses:
            return
        _, _, use, process = max(uses, key=lambda found: found[:2])
        yield of_engine(engine, "engine_open", use.used)
        yield of_engine(engine, "engine_limit", use.limit)
        yield of_engine(engine, "engine_used_percent", use.percent)
        yield of_engine(engine, "engine_fullest", f"{process.comm} (pid {process.pid})")
        yield of_engine(engine, "engine_fullest_pid", process.pid)

    def _members(self, engine: EngineTarget) -> Iterator[tuple[ProcessInfo, Use]]:
        for process in engine.processes():
            use = None if process.state in _DEAD else descriptors(process.pid, self._root)
            if use is not None:
                yield process, use


def descriptors(pid: int | str, root: str = procfs.ROOT) -> Use | None:
    """Open files of a process and its soft limit; None when either is not to be seen."""
    limit = open_limit(pid, root)
    used = None if limit is None else open_files(f"{root}/{pid}/fd")
    return None if used is None or limit is None else Use(used, limit)


def open_limit(pid: int | str, root: str = procfs.ROOT) -> int | None:
    """The soft limit on open files; None when it is not to be seen, or there is none."""
    for line in _text(f"{root}/{pid}/limits").splitlines():
        if line.startswith(_LIMIT):
            words = line.removeprefix(_LIMIT).split()
            return int(words[0]) if words and words[0].isdigit() else None
    return None


def open_files(folder: str, most: int = _MOST_COUNTED) -> int | None:
    """Names in a process's directory ``fd``; None when it is not to be seen.

    Kernels from 6.2 on say the number as the directory's size. Older ones say 0 there: then names
    are counted, and more than ``most`` are not known.
    """
    try:
        size = os.stat(folder).st_size  # noqa: PTH116 - a text, in a loop over processes
        return size or _counted(folder, most)
    except OSError:
        return None


def _counted(folder: str, most: int) -> int | None:
    count = 0
    with os.scandir(folder) as names:
        for _ in names:
            count += 1
            if count > most:
                return None
    return count


def task_folder(pid: int, root: str = procfs.ROOT) -> str | None:
    """The directory of the cgroup that counts the tasks of a process, of version 1 or 2."""
    for controller in ("pids", ""):
        folder = procfs.cgroup_folder(pid, controller, root)
        if folder is not None:
            return folder
    return None


def cgroup_tasks(folder: str) -> Iterator[Use]:
    """Tasks of this cgroup and of those above it that have a limit."""
    place = PurePath(folder)
    while limit := _text(str(place / "pids.max")):
        now = _numbers(str(place / "pids.current"))
        if limit.isdigit() and now:
            yield Use(now[0], int(limit), f"the cgroup {place}")
        place = place.parent


def kernel_tasks(root: str = procfs.ROOT) -> Iterator[Use]:
    """Tasks of the whole machine against the kernel's own limits."""
    tasks = _text(f"{root}/loadavg").partition("/")[2].split()
    if not tasks or not tasks[0].isdigit():
        return
    for name in ("threads-max", "pid_max"):
        limit = _numbers(f"{root}/sys/kernel/{name}")
        if limit:
            yield Use(int(tasks[0]), limit[0], f"kernel.{name}")


def _numbers(path: str) -> tuple[int, ...]:
    words = _text(path).split()
    return tuple(map(int, words)) if all(word.isdigit() for word in words) else ()


def _text(path: str) -> str:
    try:
        return Path(path).read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _of_host(prefix: str, use: Use | None) -> Iterator[Sampled]:
    if use is not None:
        yield Sampled(HOST, f"{prefix}open", use.used)
        yield Sampled(HOST, f"{prefix}limit", use.limit)
        yield Sampled(HOST, f"{prefix}used_percent", use.percent)


def _build(_: Settings, box: Box) -> Files:
    return Files(box)


def _engine_spec(
    name: str, kind: type[int | float | str], text: str, *, unit: str = "", exported: bool = True
) -> SampleSpec:
    return SampleSpec(
        name,
        kind,
        unit,
        text,
        labels=("engine",),
        exported=exported,
        subject=SubjectKind.ENGINE,
    )


PROBE = ProbeSpec(
    name="files",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        SampleSpec("open", int, "", "Files that are open on the whole machine."),
        SampleSpec("limit", int, "", "Files that may be open on the whole machine."),
        SampleSpec("used_percent", float, "percent", "Share of the files that may be open."),
        SampleSpec("own_open", int, "", "Files that the watchdog has open."),
        SampleSpec("own_limit", int, "", "Files that the watchdog may have open."),
        SampleSpec("own_used_percent", float, "percent", "Share of what the watchdog may open."),
        SampleSpec("tasks", int, "", "Processes and threads that count for the tightest limit."),
        SampleSpec("tasks_limit", int, "", "The tightest limit on processes and threads."),
        SampleSpec("tasks_percent", float, "percent", "Share of the tightest limit on tasks."),
        SampleSpec("tasks_limited_by", str, "", "Whose limit on tasks is the tightest."),
        _engine_spec("engine_open", int, "Open files of its process nearest to the limit."),
        _engine_spec("engine_limit", int, "Files that this process may have open."),
        _engine_spec(
            "engine_used_percent", float, "Share of what this process may open.", unit="percent"
        ),
        _engine_spec("engine_fullest", str, "Which process of the engine that is."),
        _engine_spec("engine_fullest_pid", int, "Its pid.", exported=False),
    ),
    build=_build,
    period=10.0,
    timeout=5.0,
)
