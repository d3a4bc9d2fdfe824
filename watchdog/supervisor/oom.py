"""Evidence that the kernel's OOM killer ended a member of an engine: counted, or named in its log.

A kill is an engine's when its own cgroup counted it or the kernel's log names a pid of its set. The
memory cgroup that it shares with others is a witness only while the log cannot be read, only for an
engine of which something was ended by SIGKILL, and only for a short time. What the whole box counts
proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from watchdog import memory_cgroup, procfs
from watchdog.core.model import Seconds, Value
from watchdog.kernel_log import DEVICE, OomKill, OomLines, names_our_pids, size
from watchdog.supervisor.cgroup import Cgroup

RECENT: Seconds = 120.0
"""How long a leader may live on after the kernel ended a part of its engine."""

_RECORD = 1 << 14
_MOST_RECORDS = 20_000
_KEPT_LOOKS = 64
_KEPT_KILLS = 256
"""A neighbour may be killed every few seconds for months."""


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
            return f": {size(self.used)} used of a limit of {size(self.limit)}"
        if self.limit is not None:
            return f": the limit is {size(self.limit)}"
        if self.kill is not None and self.kill.rss is not None:
            where = (
                "at its cgroup's limit" if self.kill.capped else "and the box had no memory left"
            )
            return f": it held {size(self.kill.rss)}, {where}"
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
        kernel_log: str = DEVICE,
        recent: Seconds = RECENT,
    ) -> None:
        self._proc = proc
        self._recent = recent
        own = cgroup.path if cgroup is not None else None
        counts = own is not None and (own / "memory.events").is_file()
        self._own = str(own) if counts else None
        self._shared = memory_cgroup.nearest(pid, proc)
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
            folder = self._shared if named[0].capped else None  # of many kills no limit is logged
            return self._evidence(OomSource.KERNEL_LOG, len(named), named, folder)
        count = _more(old.shared, now.shared)
        if count <= len(kills) or not killed:
            return None  # those that the log names are others'
        return self._evidence(OomSource.MEMORY_CGROUP, count, (), self._shared)

    def close(self) -> None:
        """Let go of the log."""
        with self._lock:
            self._log.close()

    def _look(self) -> OomLook:
        look = OomLook(_kills(self._own), _kills(self._shared), _of_box(self._proc))
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
        self, source: OomSource, count: int, named: Iterable[OomKill], folder: str | None
    ) -> OomEvidence:
        kill = next(iter(named), None)
        used, limit = (kill.used, kill.limit) if kill is not None else (None, None)
        if limit is None and folder is not None:
            used, limit = _usage(folder)
        return OomEvidence(source, count, kill, used, limit)


class _KernelLog:
    """The kernel's log from now on, as far as it may be read and its pids are ours."""

    def __init__(self, path: str, proc: str) -> None:
        self._lines = OomLines()
        self._descriptor: int | None = None
        if names_our_pids(proc):
            with contextlib.suppress(OSError):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._descriptor, 0, os.SEEK_END)

    def new_kills(self) -> tuple[OomKill, ...]:
        """The kills that were logged since the last call; one of them again when more is known."""
        kills = [kill for kill in map(self._lines.found, self._new()) if kill is not None]
        return tuple({kill.pid: kill for kill in kills}.values())

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


_KERNELS_OWN = frozenset(b"%d" % level for level in range(8))
"""Facility 0. Anybody who may write to the device can add records, but only with another one."""


def _kills(folder: str | None) -> int | None:
    return None if folder is None else memory_cgroup.kills(folder)


def _of_box(proc: str) -> int | None:
    """The kills of the whole box; None when they are not counted."""
    return memory_cgroup.count(f"{proc}/vmstat", "oom_kill")


def _more(before: int | None, now: int | None) -> int:
    """What was not counted before tells nothing: it may have happened long ago."""
    return 0 if now is None or before is None else now - before


def _usage(folder: str) -> tuple[int | None, int | None]:
    """The most bytes ever used, and the limit, of the cgroup upwards that has the lowest limit."""
    places = memory_cgroup.upwards(folder)
    found = [
        (limit, place) for place in places if (limit := memory_cgroup.limit(place)) is not None
    ]
    if not found:
        return None, None
    limit, place = min(found, key=lambda pair: pair[0])
    return memory_cgroup.peak(place), limit
