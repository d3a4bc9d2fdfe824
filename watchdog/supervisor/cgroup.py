"""A cgroup v2 of one generation's own, where we may have one: the kernel itself keeps the set.

Nothing here fails a start: what cannot be had is a line of text. A generation's cgroup lies below
ours. A limit needs a controller, which the kernel gives to children only while no process sits in
their parent: then this process, and what it started, moves into a leaf next to the generations'.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from watchdog import procfs
from watchdog.core.model import Seconds

LEAF = "vllm-watchdog"
"""Our own leaf. Who starts us in a cgroup of this name saves us the move."""

_PREFIX = "vllm-watchdog-"
_PROCS = "cgroup.procs"
_ROUNDS = 8
_REMOVAL: Seconds = 0.2
"""The kernel unlinks a process a moment after it is gone; until then its cgroup is busy."""
_PAUSE: Seconds = 0.002


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the whole set: bytes of host memory, and how many processes and threads. None: none."""

    memory_max: int | None = None
    pids_max: int | None = None

    def files(self) -> Iterator[tuple[str, str, int]]:
        """Controller, file and value of each limit that is wanted."""
        if self.memory_max is not None:
            yield "memory", "memory.max", self.memory_max
        if self.pids_max is not None:
            yield "pids", "pids.max", self.pids_max


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One directory of cgroup v2 that holds one generation and nobody else."""

    path: Path

    @classmethod
    def at(cls, path: str | Path, generation: str) -> Cgroup | None:
        """The one that an earlier watchdog made; None when it is no longer there, or not that."""
        place = Path(path)
        with contextlib.suppress(OSError, ValueError):  # whatever a damaged store says
            if place.name == f"{_PREFIX}{generation}" and (place / _PROCS).is_file():
                return cls(place)
        return None

    def take(self, pid: int) -> bool:
        """Move a process and whatever it has forked already; whether the process is in it.

        Call it right after the spawn: who is forked by a member later is born a member.
        """
        for _ in range(_ROUNDS):
            inside = set(self.pids())
            missing = [one for one in _tree(pid) if one[0] not in inside]
            if not missing:
                break
            for one, start_ticks in missing:
                self._move(one, start_ticks)
        return pid in self.pids()

    def pids(self) -> tuple[int, ...]:
        """Who sits in it or below it: processes with a living thread, as we see their pids."""
        found: set[int] = set()
        for folder in (self.path, *_below(self.path)):
            found.update(int(word) for word in _words(folder / _PROCS) if word.isdigit())
        return tuple(sorted(found - {0}))  # 0 is who cannot be seen from our pid namespace

    def kill(self) -> bool:
        """SIGKILL to all of it at once, forks in progress too; False before Linux 5.14."""
        return not _write(self.path / "cgroup.kill", "1")

    def is_empty(self) -> bool:
        """Whether the kernel says that not one thread lives in it or below; True when it is gone.

        False when that cannot be read.
        """
        try:
            words = (self.path / "cgroup.events").read_text().split()
        except FileNotFoundError:
            return True
        except OSError:
            return not self.path.exists()
        return words[words.index("populated") + 1] == "0" if "populated" in words[:-1] else False

    def remove(self) -> bool:
        """Remove it and what was made below it; False while somebody lives in it."""
        until = time.monotonic() + _REMOVAL
        while not self._removed():
            if time.monotonic() >= until or not self.is_empty():
                return False
            time.sleep(_PAUSE)
        return True

    def _removed(self) -> bool:
        for folder in (*reversed(_below(self.path)), self.path):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not self.path.exists()

    def _move(self, pid: int, start_ticks: int) -> None:
        """Move a process; a stranger who got its pid in between goes back to where we sit."""
        if _write(self.path / _PROCS, str(pid)):
            return
        info = procfs.stat(pid)
        if info is not None and info.start_ticks != start_ticks:
            home = procfs.cgroup_folder(os.getpid(), "")
            _write(Path(home or self.path.parent) / _PROCS, str(pid))


@dataclass(frozen=True, slots=True)
class Made:
    """The cgroup, None when there is none; ``why`` says what could not be had, or is empty."""

    cgroup: Cgroup | None = None
    why: str = ""
    limits: tuple[str, ...] = field(default=())
    """Those that hold, as ``memory.max=68719476736``."""


def made(generation: str, limits: Limits | None = None, proc: str = procfs.ROOT) -> Made:
    """Make the cgroup of a generation, with as many of the limits as can be had.

    ``proc`` is where procfs is mounted; tests point it at a tree of files.
    """
    wanted = limits or Limits()
    place = place_of(generation, proc)
    if place is None:
        return Made(why=_lacking("no cgroup v2 is mounted where we sit", wanted))
    cgroup = Cgroup(place)
    try:
        cgroup.path.mkdir()
    except OSError as error:
        return Made(why=_lacking(f"cannot make {cgroup.path}: {_reason(error)}", wanted))
    if not (cgroup.path / _PROCS).exists():
        cgroup.remove()
        return Made(why=_lacking(f"{place.parent} is no cgroup", wanted))
    return limited(cgroup, wanted)


def place_of(generation: str, proc: str = procfs.ROOT) -> Path | None:
    """Where ``made`` makes it, to be recorded before; None where there can be none."""
    base = _base(proc)
    return None if base is None else base / f"{_PREFIX}{generation}"


def _base(proc: str) -> Path | None:
    """Below which the generations' cgroups lie: where we sit, or above our leaf."""
    folder = procfs.cgroup_folder(os.getpid(), "", proc)
    if folder is None:
        return None
    path = Path(folder)
    return path.parent if path.name == LEAF else path


def _lacking(why: str, wanted: Limits) -> str:
    names = ", ".join(f"{file}={value}" for _, file, value in wanted.files())
    return f"no cgroup of its own: {why}" + (f"; no limit {names}" if names else "")


# --- limits -----------------------------------------------------------------------------------


def limited(cgroup: Cgroup, wanted: Limits) -> Made:
    """Set as many of the limits as can be had on a cgroup that was made."""
    held, why = [], []
    for controller, file, value in wanted.files():
        problem = _enable(cgroup.path.parent, controller)
        problem = problem or _write(cgroup.path / file, str(value))
        if problem:
            why.append(f"no limit {file}={value}: {problem}")
        else:
            held.append(f"{file}={value}")
    return Made(cgroup, "; ".join(why), tuple(held))


def _enable(base: Path, controller: str) -> str:
    """Give the children of ``base`` a controller; why not, or nothing."""
    if controller not in _words(base / "cgroup.controllers"):
        return f"cgroup v2 has no {controller} controller in {base}"
    if controller in _words(base / "cgroup.subtree_control"):
        return ""
    is_root = not (base / "cgroup.type").exists()  # the root may hold processes and children
    if not is_root and (problem := _make_room(base)):
        return problem
    problem = _write(base / "cgroup.subtree_control", f"+{controller}")
    return f"cannot enable the {controller} controller in {base}: {problem}" if problem else ""


def _make_room(base: Path) -> str:
    """Move ourselves into the leaf, if nobody sits in ``base`` but us and what we started."""
    leaf, problem = base / LEAF, ""
    for _ in range(_ROUNDS):
        pids = [int(word) for word in _words(base / _PROCS) if word.isdigit()]
        if not pids:
            return ""
        strangers = [pid for pid in pids if not _is_ours(pid)]
        if strangers:
            return f"{len(strangers)} other processes sit in {base}, one is {strangers[0]}"
        try:
            leaf.mkdir(exist_ok=True)
        except OSError as error:
            return f"cannot make {leaf}: {_reason(error)}"
        problem = max(_write(leaf / _PROCS, str(pid)) for pid in pids) or problem
    return f"cannot move out of {base} into {leaf}: {problem or 'new processes keep coming'}"


def _is_ours(pid: int) -> bool:
    info = procfs.stat(pid)
    if info is None or pid == os.getpid():
        return True
    return any(above.pid == os.getpid() for above in procfs.ancestors(info))


# --- files ------------------------------------------------------------------------------------


def _tree(pid: int) -> list[tuple[int, int]]:
    """The process and its descendants, pids with start ticks."""
    found, frontier = [], [pid]
    while frontier:
        info = procfs.stat(frontier.pop())
        if info is not None and procfs.lives(info):
            found.append((info.pid, info.start_ticks))
            frontier += procfs.children(info.pid)
    return found


def _below(folder: Path) -> list[Path]:
    """Directories below, parents first."""
    found: list[Path] = []
    frontier = [folder]
    while frontier:
        with contextlib.suppress(OSError), os.scandir(frontier.pop()) as entries:
            new = [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
            found += new
            frontier += new
    return found


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _write(file: Path, text: str) -> str:
    """One write, as cgroupfs wants it, into what is there; why it failed, or nothing."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        return _reason(error)
    return ""


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
