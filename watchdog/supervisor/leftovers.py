"""What dead engines leave behind, swept when it is proven that no process holds it.

vLLM after a SIGKILL leaves its ring buffers, semaphores and offloaded KV cache in /dev/shm, and
after every end its sockets where ``VLLM_RPC_BASE_PATH`` points. What others may still want is worse
to remove than anything is to keep: every doubt keeps.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from watchdog.core.model import Seconds
from watchdog.supervisor import holders, sockets, tempdirs
from watchdog.supervisor.holders import Holders

SHM = Path("/dev/shm")  # noqa: S108 - where the kernel's shared memory is
MIN_AGE: Seconds = 60.0
"""What is younger may be between its creation and its first use by somebody else."""
TIME: Seconds = 2.0
"""A sweep takes no longer: a start waits for it."""

_SHOWN = 3
_USED, _BOUND, _LATE = "a process uses it", "somebody is bound to it", "no time"
_SET = "the clock was set a moment ago, and how old things are is not known"
_STEP: Seconds = 1.0
"""The wall clock is only ever this far from the monotonic one when somebody set it, or we slept."""
_HOLD = frozenset({_USED, _BOUND})
_REMEMBERED: Seconds = 600.0
"""What was held is not looked for again in all of /proc at the next start, so long."""
_PERIOD: Seconds = 3600.0
"""Sockets and private directories cost inodes and harm no start, and to look for them among
thousands of other entries, or at every recorded start, takes milliseconds: so rarely."""
_NAMES = re.compile(
    r"psm_[0-9a-f]{8}"  # Python's shared memory: the ring buffers
    r"|sem\.mp-[a-z0-9_]{8}"  # its semaphores
    r"|vllm_offload_.+\.mmap|vllm_ec_.+\.mmap|vllm_engram_.+"
    r"|nccl-[A-Za-z0-9]{6}"
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one sweep does, and for how many seconds: what is left is left to the next one.

    ``entries`` of one folder are looked through; 4,096 take 2 ms.
    """

    time: Seconds = TIME
    files: int = 256
    entries: int = 4096


SHORT = Limits()
LONG = Limits(time=20.0, files=100_000, entries=2_000_000)
"""For who has asked for it and waits: a file system of a million entries is looked through."""

Identity = tuple[int, int, int]
"""Device, inode, and time of the last change: another file in the same place differs."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What became of it: paths, and for those that were kept the reason.

    ``why`` says why nothing but the directories of ended starts could be removed. ``spared`` are
    named as leftovers are, and not even looked for in /proc: too young, or of somebody else.
    """

    removed: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    why: str = ""
    spared: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def undone(self) -> tuple[tuple[str, str], ...]:
        """Those of the kept that nobody is known to hold, and that another sweep may remove."""
        return tuple((path, why) for path, why in self.kept if why not in _HOLD)

    def lines(self) -> tuple[str, ...]:
        """It in words, for the journal; none when nothing was found."""
        done = f"swept {len(self.removed)} leftovers: {_some(self.removed)}"
        paths = tuple(path for path, _ in self.kept)
        let = f"{len(paths)} possible leftovers are kept: {self.why}: {_some(paths)}"
        return (*((done,) if self.removed else ()), *((let,) if self.why else ()))


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    identity: Identity
    is_socket: bool = False


@dataclass(slots=True)
class _Ages:
    """Whether the wall clock, by which files are dated, went as time did.

    After a jump forward what is new looks old.
    """

    wall: Callable[[], Seconds]
    _ahead: Seconds = field(init=False)
    _jumped_at: Seconds | None = None

    def __post_init__(self) -> None:
        self._ahead = self.wall() - time.monotonic()

    def are_known(self, span: Seconds) -> bool:
        """Look; False for ``span`` seconds from the look on that has found a jump forward."""
        now = time.monotonic()
        before, self._ahead = self._ahead, self.wall() - now
        if self._ahead - before > _STEP:
            self._jumped_at = now
        return self._jumped_at is None or now - self._jumped_at > span


@dataclass(slots=True)
class Sweeper:
    """Sweeps for all engines of a daemon. Safe from any thread: two at once find less.

    ``ended`` are the private directories of starts that are recorded as ended; ``shm`` is where
    shared memory lives; ``look`` looks at all processes until a time; ``wall`` is the clock by
    which files are dated. A jump of that is noticed when it comes after the sweeper was made.
    """

    ended: Callable[[], Iterable[str]] = tuple
    shm: Path = SHM
    look: Callable[[Seconds], Holders] = holders.look
    min_age: Seconds = MIN_AGE
    wall: Callable[[], Seconds] = time.time
    _ages: _Ages = field(init=False)
    _kept: dict[Identity, Seconds] = field(default_factory=dict)
    _thorough_at: Seconds | None = None

    def __post_init__(self) -> None:
        self._ages = _Ages(self.wall)

    def sweep(
        self,
        folders: Iterable[str] = (),
        *,
        before: Seconds | None = None,
        dry_run: bool = False,
        quick: bool = False,
        limits: Limits = SHORT,
    ) -> Swept:
        """Remove what nobody holds; with ``dry_run`` only say it. Never raises for a file.

        ``folders`` are where engines may have left sockets. ``before`` (seconds since the epoch)
        keeps what is younger: with an engine that lives, when it was started. With ``quick`` all
        of /proc is read only for something that was not found to be held minutes ago, and sockets
        and private directories are looked for once an hour.
        """
        deadline = time.monotonic() + limits.time
        thorough = not quick or self._is_time()
        look = _Look(self.min_age, before, self.wall(), deadline, limits)
        found = tuple(islice(look.at(self.shm, folders if thorough else ()), limits.files))
        recorded = self.ended() if thorough else ()
        ended = tuple(islice(filter(_is_private, recorded), limits.files))
        self._forget()
        removed: list[str] = []
        kept: list[tuple[str, str]] = []
        doubt = ""
        if not self._ages.are_known(self.min_age) and found:
            doubt = _SET
            kept, found = [(one.path, doubt) for one in found], ()
        if not ended and all(quick and one.identity in self._kept for one in found):
            return Swept(kept=tuple(kept), why=doubt, spared=tuple(look.spared))
        held = self.look(deadline)
        for path in ended:
            why = _USED if held.below(path) else _LATE if _late(deadline) else ""
            gone = not why and (dry_run or _remove_folder(path))
            removed += [path] * gone
            kept += [(path, why or "it cannot be removed")] * (not gone)
        for one in found:
            why = held.unseen or _held(one, held) or (_LATE if _late(deadline) else "")
            why = why or ("" if dry_run else _remove(one))
            removed += [one.path] * (not why)
            if why:
                kept.append((one.path, why))
                self._kept[one.identity] = time.monotonic()
        why = held.unseen if found else doubt
        return Swept(tuple(removed), tuple(kept), why, tuple(look.spared))

    def _is_time(self) -> bool:
        now, last = time.monotonic(), self._thorough_at
        if last is not None and now - last < _PERIOD:
            return False
        self._thorough_at = now
        return True

    def _forget(self) -> None:
        now = time.monotonic()
        self._kept = {one: at for one, at in tuple(self._kept.items()) if now - at < _REMEMBERED}


def socket_folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where vLLM leaves its sockets, when it is not told our directory or was started by others."""
    named = (environment.get(name) for name in ("VLLM_RPC_BASE_PATH", "TMPDIR"))
    return tuple(dict.fromkeys((*filter(None, named), str(tempdirs.base()))))


class _Look:
    """One look at folders for what is named as leftovers are; ``spared`` is what is let be."""

    def __init__(
        self,
        min_age: Seconds,
        before: Seconds | None,
        now: Seconds,
        deadline: Seconds,
        limits: Limits,
    ) -> None:
        self.spared: list[tuple[str, str]] = []
        self._min_age, self._before = min_age, before
        self._now = now
        self._deadline, self._limits = deadline, limits

    def at(self, shm: Path, folders: Iterable[str]) -> Iterator[_Found]:
        """Shared memory in ``shm``, and sockets in ``folders``."""
        wanted: Mapping[str, tuple[re.Pattern[str], Callable[[int], bool]]] = {
            **dict.fromkeys(folders, (_UUID, stat.S_ISSOCK)),
            str(shm): (_NAMES, stat.S_ISREG),
        }
        for folder, (names, is_kind) in wanted.items():
            for path, info in self._entries(folder, names):
                if not is_kind(info.st_mode):
                    continue
                why = self._let_be(info)
                if not why:
                    yield _Found(path, _identity(info), stat.S_ISSOCK(info.st_mode))
                elif len(self.spared) < self._limits.files:
                    self.spared.append((path, why))

    def _let_be(self, info: os.stat_result) -> str:
        """Why it is not even asked who holds it; "" when it is."""
        if info.st_uid != os.geteuid():
            return "it belongs to another user"
        if info.st_nlink != 1:
            return "it has another name too"
        changed = max(info.st_mtime, info.st_ctime)
        if changed >= self._now - self._min_age:
            return f"it is younger than {self._min_age:g} s"
        is_young = self._before is not None and changed >= self._before
        return "it is younger than an engine that lives" if is_young else ""

    def _entries(self, folder: str, names: re.Pattern[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Entries with such names as they are themselves: no link is followed."""
        try:
            with os.scandir(folder) as entries:
                for entry in islice(entries, self._limits.entries):
                    if names.fullmatch(entry.name):
                        if _late(self._deadline):
                            return
                        try:
                            yield entry.path, entry.stat(follow_symlinks=False)
                        except OSError:
                            continue
        except OSError:
            return


def _some(paths: tuple[str, ...]) -> str:
    more = " …" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


def _identity(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino, info.st_ctime_ns


def _held(one: _Found, held: Holders) -> str:
    if one.is_socket:
        return "" if sockets.is_dead(one.path) else _BOUND
    name = one.path.rpartition("/")[2]
    return _USED if name in held.names or one.identity[1] in held.inodes else ""


def _remove(one: _Found) -> str:
    """Remove it if it is still what was looked at; else the reason why not."""
    try:
        if _identity(os.lstat(one.path)) != one.identity:
            return "it has changed"
        os.unlink(one.path)  # noqa: PTH108 - of a link it would remove the link
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _is_private(path: str) -> bool:
    """Whether it is there, named as ours are, a directory of our user, and no link."""
    try:
        info = os.lstat(path)
    except (OSError, ValueError):
        return False
    ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()
    return ours and tempdirs.is_private(path)


def _remove_folder(path: str) -> bool:
    return tempdirs.remove(path) and not os.path.lexists(path)


def _late(deadline: Seconds) -> bool:
    return time.monotonic() > deadline
