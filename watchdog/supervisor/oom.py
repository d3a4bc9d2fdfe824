"""Evidence that the kernel's OOM killer ended a member of an engine: counted, or named in its log.

A kill is an engine's when its own cgroup counted it or the kernel's log names a pid of its set. The
memory cgroup that it shares with others is a witness only while the log cannot be read, only for an
engine of which something was ended by SIGKILL, and only for a short time. What the whole box counts
proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from watchdog import procfs
from watchdog.core.model import Seconds, Value
from watchdog.supervisor.cgroup import Cgroup

KERNEL_LOG = "/dev/kmsg"
RECENT: Seconds = 120.0
"""How long a leader may live on after the kernel ended a part of its engine."""

_BOOT_PIDS = "pid:[4026531836]"
"""The pid namespace whose pids the kernel's log names has had this number since Linux 3.8."""
_RECORD = 1 << 14
_MOST_RECORDS = 20_000
_KEPT_LOOKS = 64
_KEPT_KILLS = 256
"""A neighbour may be killed every few seconds for months."""
_UNLIMITED = 1 << 62
_GIB, _MIB, _KIB = 1 << 30, 1 << 20, 1 << 10
_ROUND_UP = 1000

_USAGE = re.compile(r"memory: usage (\d+)kB, limit (\d+)kB, failcnt")
_CHOSEN = re.compile(r"oom-kill:constraint=.*,task=(.*),pid=(\d+),uid=\d+$")
_KILLED = re.compile(r": Killed process (\d+) \((.*)\) total-vm:\d+kB, (.*-rss:.*)")
_RSS = re.compile(r"(?:anon|shmem)-rss:(\d+)kB")


class OomSource(StrEnum):
    """Who says so."""

    OWN_CGROUP = "own_cgroup"
    KERNEL_LOG = "kernel_log"
    MEMORY_CGROUP = "memory_cgroup"


@dataclass(frozen=True, slots=True)
class OomLook:
    """Kills so far: in the engine's own cgroup, its memory cgroup, the box; None: not counted."""

    own: int | None = None
    shared: int | None = None
    box: int | None = None


@dataclass(frozen=True, slots=True)
class OomKill:
    """One kill as the kernel's log tells it. Bytes; None where it does not say."""

    pid: int
    comm: str
    rss: int | None = None
    used: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class OomEvidence:
    """What the kernel ended, and how much memory was used of which limit. Bytes; None: unknown."""

    source: OomSource
    kills: int
    kill: OomKill | None = None
    used: int | None = None
    limit: int | None = None

    @property
    def explanation(self) -> str:
        """One sentence with the numbers."""
        if self.kill is not None:
            who = f"process {self.kill.pid} ({self.kill.comm})"
        else:
            number = f"{self.kills} process{'es' if self.kills > 1 else ''}"
            shared = self.source is OomSource.MEMORY_CGROUP
            who = f"{number} in the engine's {'memory cgroup' if shared else 'own cgroup'}"
        return f"the kernel's OOM killer ended {who}{self._numbers()}"

    @property
    def values(self) -> tuple[tuple[str, Value], ...]:
        """The same for who reads it by name; bytes."""
        kill = self.kill
        pairs: tuple[tuple[str, Value | None], ...] = (
            ("oom_source", str(self.source)),
            ("oom_kills", self.kills),
            ("oom_pid", kill.pid if kill is not None else None),
            ("oom_comm", kill.comm if kill is not None else None),
            ("oom_rss_bytes", kill.rss if kill is not None else None),
            ("oom_used_bytes", self.used),
            ("oom_limit_bytes", self.limit),
        )
        return tuple((name, value) for name, value in pairs if value is not None)

    def _numbers(self) -> str:
        if self.limit is not None and self.used is not None:
            return f": {_size(self.used)} used of a limit of {_size(self.limit)}"
        if self.limit is not None:
            return f": the limit is {_size(self.limit)}"
        if self.kill is not None and self.kill.rss is not None:
            return f": it held {_size(self.kill.rss)}, and the box had no memory left"
        return ""


class OomWatch:
    """Of one generation, from its spawn to its end. Safe from any thread.

    ``pid`` is the leader, ``cgroup`` the generation's own. ``proc`` and ``kernel_log`` are where
    procfs and the log are; tests point them at files. What was seen more than ``recent`` seconds
    before an end does not explain it.
    """

    def __init__(
        self,
        pid: int,
        cgroup: Cgroup | None = None,
        *,
        proc: str = procfs.ROOT,
        kernel_log: str = KERNEL_LOG,
        recent: Seconds = RECENT,
    ) -> None:
        self._proc = proc
        self._recent = recent
        own = cgroup.path if cgroup is not None else None
        self._own = own if own is not None and (own / "memory.events").is_file() else None
        self._shared = _memory_folder(pid, proc)
        self._log = _KernelLog(kernel_log, proc)
        self._looks: deque[tuple[Seconds, OomLook]] = deque(maxlen=_KEPT_LOOKS)
        self._kills: dict[int, tuple[Seconds, OomKill]] = {}
        self._lock = threading.Lock()

    def look(self) -> OomLook:
        """The counts of now: once at the spawn, then as often as is convenient.

        Every further look dates the kills that came before it.
        """
        with self._lock:
            return self._look()

    def since(
        self, before: OomLook, pids: Iterable[int], *, killed: bool = False
    ) -> OomEvidence | None:
        """What the OOM killer did to the engine since ``before``, and not long before now.

        ``pids`` are all that its members ever had; ``killed`` says that the leader ended by
        SIGKILL or that a member went before it did. None when it did nothing.
        """
        with self._lock:
            now, until = self._look(), time.monotonic() - self._recent
            old = next((look for at, look in reversed(self._looks) if at <= until), before)
            kills = [kill for at, kill in self._kills.values() if at > until]
        ours = set(pids)
        named = [kill for kill in kills if kill.pid in ours]
        if (count := _more(old.own, now.own)) > 0:
            return self._evidence(OomSource.OWN_CGROUP, count, named, self._own)
        if named:
            return self._evidence(OomSource.KERNEL_LOG, len(named), named, None)
        count = _more(old.shared, now.shared)
        if count <= len(kills) or not killed:
            return None  # those that the log names are others'
        return self._evidence(OomSource.MEMORY_CGROUP, count, (), self._shared)

    def close(self) -> None:
        """Let go of the log."""
        with self._lock:
            self._log.close()

    def _look(self) -> OomLook:
        vmstat = Path(self._proc) / "vmstat"
        look = OomLook(_events(self._own), _events(self._shared), _counted(vmstat))
        now = time.monotonic()
        if not self._looks or self._looks[-1][1] != look:
            self._looks.append((now, look))
        for kill in self._log.new_kills():
            self._kills.pop(kill.pid, None)  # the latest go last
            self._kills[kill.pid] = now, kill
        while len(self._kills) > _KEPT_KILLS:
            del self._kills[next(iter(self._kills))]
        return look

    def _evidence(
        self, source: OomSource, count: int, named: Iterable[OomKill], folder: Path | None
    ) -> OomEvidence:
        kill = next(iter(named), None)
        used, limit = (kill.used, kill.limit) if kill is not None else (None, None)
        if limit is None and folder is not None:
            used, limit = _usage(folder)
        return OomEvidence(source, count, kill, used, limit)


class _KernelLog:
    """The kernel's log from now on, as far as it may be read and its pids are ours."""

    def __init__(self, path: str, proc: str) -> None:
        self._chosen: dict[int, OomKill] = {}
        self._usage: tuple[int, int] | None = None
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            if (Path(proc) / "self/ns/pid").readlink() == Path(_BOOT_PIDS):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._descriptor, 0, os.SEEK_END)

    def new_kills(self) -> tuple[OomKill, ...]:
        """The kills that were logged since the last call; one of them again when more is known."""
        found = {}
        for text in self._new():
            kill = self._kill(text)
            if kill is not None:
                found[kill.pid] = self._chosen[kill.pid] = kill
        while len(self._chosen) > _KEPT_KILLS:
            del self._chosen[next(iter(self._chosen))]
        return tuple(found.values())

    def close(self) -> None:
        """Let go of the device."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _new(self) -> Iterator[str]:
        for _ in range(_MOST_RECORDS if self._descriptor is not None else 0):
            try:
                record = os.read(self._descriptor or 0, _RECORD)
            except BrokenPipeError:
                continue  # overwritten before it was read: the next read goes on behind the gap
            except OSError:
                return
            if not record:
                return
            prefix, _, text = record.partition(b";")
            if prefix.split(b",")[0] in _KERNELS_OWN:
                yield text.partition(b"\n")[0].decode(errors="replace")

    def _kill(self, text: str) -> OomKill | None:
        """What a record says of a kill: first who was chosen, then how much memory that had."""
        if found := _USAGE.search(text):
            self._usage = int(found[1]) * _KIB, int(found[2]) * _KIB
        elif found := _CHOSEN.search(text):
            used, limit = self._usage or (None, None)
            self._usage = None  # the next kill may be for the whole box
            return OomKill(int(found[2]), found[1], used=used, limit=limit)
        elif found := _KILLED.search(text):
            rss = sum(int(part) for part in _RSS.findall(found[3])) * _KIB
            chosen = self._chosen.get(int(found[1]), OomKill(int(found[1]), found[2]))
            return OomKill(chosen.pid, found[2], rss, chosen.used, chosen.limit)
        return None


_KERNELS_OWN = frozenset(b"%d" % level for level in range(8))
"""Facility 0. Anybody who may write to the device can add records, but only with another one."""


# --- cgroup files -----------------------------------------------------------------------------


def _memory_folder(pid: int, proc: str) -> Path | None:
    """The nearest cgroup of the process that counts memory, of version 1 or 2."""
    if (folder := procfs.cgroup_folder(pid, "memory", proc)) is not None:
        return Path(folder)
    folder = procfs.cgroup_folder(pid, "", proc)
    places = [Path(folder), *Path(folder).parents] if folder is not None else []
    return next((place for place in places if (place / "memory.events").is_file()), None)


def _events(folder: Path | None) -> int | None:
    if folder is None:
        return None
    count = _counted(folder / "memory.events")
    return _counted(folder / "memory.oom_control") if count is None else count


def _counted(file: Path) -> int | None:
    """The number behind the word ``oom_kill``; None when there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = file.read_text().split()
        return int(words[words.index("oom_kill") + 1])
    return None


def _more(before: int | None, now: int | None) -> int:
    """What was not counted before tells nothing: it may have happened long ago."""
    return 0 if now is None or before is None else now - before


def _usage(folder: Path) -> tuple[int | None, int | None]:
    """The most bytes ever used, and the limit, of the cgroup upwards that has the lowest limit."""
    found = []
    for place in (folder, *folder.parents):
        limit = _number(place, "memory.max", "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED:
            used = _number(place, "memory.peak", "memory.max_usage_in_bytes")
            found.append((limit, used))
    if not found:
        return None, None
    limit, used = min(found, key=lambda pair: pair[0])
    return used, limit


def _number(folder: Path, *files: str) -> int | None:
    for name in files:
        with contextlib.suppress(OSError, ValueError):
            return int((folder / name).read_text())
    return None


def _size(count: int) -> str:
    """Bytes for people; a MiB that is nearly a GiB is one."""
    if count < _ROUND_UP * _MIB:
        return f"{count / _MIB:.1f} MiB"
    return f"{count / _GIB:.1f} GiB"
