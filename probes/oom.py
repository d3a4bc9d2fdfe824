"""The kernel's OOM killer: how often it came, in which cgroup, for whom.

Three witnesses: a counter of the whole box, the counters of memory cgroups, and the kernel's log,
which alone has names. A kill is an engine's when the log names a process of its set, or when a
memory cgroup in which nobody but the engine sits has counted it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from probes._cgroup import Places
from probes._kmsg import KERNEL, PATH, KernelLog, KernelLogError
from watchdog import memory_cgroup, procfs
from watchdog.contracts import Box, EngineTarget, Probe, ProbeError, ProbeSpec, SampleSpec
from watchdog.core.model import (
    HOST,
    Sampled,
    Seconds,
    SubjectKind,
    Unread,
    engine_subject,
)
from watchdog.kernel_log import OomKill, OomLines, names_our_pids

_BATCH = 128
_RESERVE: Seconds = 0.2
"""Seconds between the last look at the log and the probe's own deadline."""
_MEMORY: Seconds = 60.0
"""Who was killed is gone before the log is read: so long it is remembered whose it was."""
_DEAD = "ZX"
_ELSEWHERE = "cannot tell whom the kernel log names: its pids are of another pid namespace"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``kmsg`` is the kernel log's device."""

    kmsg: str = PATH


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where procfs is, and the clock."""

    proc: str = procfs.ROOT
    clock: Callable[[], Seconds] = time.monotonic


@dataclass(slots=True)
class _Tally:
    """Kills of one engine since the watchdog started, as the two witnesses have it.

    Each may miss some: the log is not always readable, and a cgroup goes with its start.
    """

    named: int = 0
    counted: int = 0
    folder: str = ""
    last: int = 0
    """What ``folder`` had counted at the last look."""

    def look(self, folder: str, kills: int) -> None:
        """What the cgroup of nobody else has counted."""
        if folder == self.folder:
            self.counted += max(kills - self.last, 0)
        self.folder, self.last = folder, kills


class Oom:
    """Counts of the kernel as they are; those of engines begin with the watchdog."""

    def __init__(
        self, settings: Settings, box: Box, surroundings: Surroundings | None = None
    ) -> None:
        around = surroundings or Surroundings()
        self._box, self._proc, self._clock = box, around.proc, around.clock
        self._places = Places(around.proc)
        self._log = KernelLog(settings.kmsg)
        self._lines = OomLines()
        self._pids_are_ours = names_our_pids(around.proc)
        self._members: dict[int, tuple[str, Seconds]] = {}
        self._tallies: dict[str, _Tally] = {}
        self._last: OomKill | None = None

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Yields what is known. Raises ProbeError when nobody counts and the log is closed."""
        engines = self._box.engines()
        self._tallies = {one.name: self._tallies.get(one.name, _Tally()) for one in engines}
        sets = {one.name: _living(one) for one in engines}
        self._remember(sets)
        trouble = self._drained(deadline - _RESERVE)
        found = [*self._of_host(), *self._of_engines(sets, is_log_read=not trouble)]
        if trouble and not found:
            raise ProbeError(trouble)
        yield from found
        yield Sampled(HOST, "source_trouble", trouble)
        if self._last is not None:
            yield Sampled(HOST, "last", self._last.words)

    def close(self) -> None:
        """Let go of the log."""
        self._log.close()

    def _of_host(self) -> Iterator[Sampled]:
        kills = memory_cgroup.count(f"{self._proc}/vmstat", "oom_kill")
        if kills is not None:
            yield Sampled(HOST, "kills", kills)
        for folder in self._places.of(os.getpid())[:1]:
            for event, count in memory_cgroup.events(folder).items():
                yield Sampled(HOST, "events", count, (("event", event),))
                if event == "oom_kill":
                    yield Sampled(HOST, "cgroup_kills", count)

    # --- the log ------------------------------------------------------------------------------

    def _remember(self, sets: dict[str, tuple[int, ...]]) -> None:
        """Whose each process is, while it can be seen."""
        now = self._clock()
        for name, pids in sets.items():
            self._members.update(dict.fromkeys(pids, (name, now)))
        self._members = {pid: of for pid, of in self._members.items() if now - of[1] <= _MEMORY}

    def _drained(self, until: Seconds) -> str:
        """Take what the log has of kills; the trouble of reading it, or ""."""
        try:
            while entries := self._log.read(_BATCH):
                for entry in entries:
                    kill = self._lines.found(entry.text) if entry.facility == KERNEL else None
                    if kill is not None and kill.rss is not None:
                        self._count(kill)
                if time.monotonic() >= until:
                    break
        except KernelLogError as error:
            return str(error)
        return "" if self._pids_are_ours else _ELSEWHERE

    def _count(self, kill: OomKill) -> None:
        self._last = kill
        engine = self._members.get(kill.pid, ("", 0.0))[0] if self._pids_are_ours else ""
        if engine in self._tallies:
            self._tallies[engine].named += 1

    # --- engines ------------------------------------------------------------------------------

    def _of_engines(
        self, sets: dict[str, tuple[int, ...]], *, is_log_read: bool
    ) -> Iterator[Sampled]:
        for name, tally in self._tallies.items():
            folder = self._own(sets[name]) if sets[name] else tally.folder
            kills = memory_cgroup.kills(folder) if folder else None
            if kills is not None:
                tally.look(folder, kills)
            if is_log_read or kills is not None:
                told = max(tally.named, tally.counted)
                yield Sampled(engine_subject(name), "engine_kills", told, (("engine", name),))

    def _own(self, pids: tuple[int, ...]) -> str:
        """The memory cgroup in which members of the set sit and nobody else; "" without one.

        One that holds us too, from above, may count what is none of the engine's.
        """
        folder = next(iter(self._places.of(pids[0])), "")
        if not folder or folder in self._places.of(os.getpid()):
            return ""
        inside = {
            int(word)
            for word in memory_cgroup.text(f"{folder}/cgroup.procs").split()
            if word.isdigit()
        }
        return folder if inside and inside <= set(pids) else ""


def _living(engine: EngineTarget) -> tuple[int, ...]:
    return tuple(one.pid for one in engine.processes() if one.state not in _DEAD)


def _build(settings: Settings, box: Box) -> Probe:
    return Oom(settings, box)


def _count(name: str, text: str) -> SampleSpec:
    return SampleSpec(name, int, "", text, counter=True)


def _words(name: str, text: str) -> SampleSpec:
    return SampleSpec(name, str, "", text)


PROBE = ProbeSpec(
    name="oom",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        _count("kills", "Processes that the OOM killer ended on the whole machine since its boot."),
        _count("cgroup_kills", "Of those, the ones in the memory cgroup that holds us."),
        SampleSpec(
            "events",
            int,
            "",
            "What that cgroup counts of its memory, by the kernel's names.",
            counter=True,
            labels=("event",),
        ),
        _words("last", "The last kill that the kernel log has told of."),
        _words("source_trouble", "Why the kernel log tells nothing; empty when it does."),
        SampleSpec(
            "engine_kills",
            int,
            "",
            "Processes of the engine that the OOM killer ended since the watchdog started.",
            counter=True,
            labels=("engine",),
            subject=SubjectKind.ENGINE,
        ),
    ),
    build=_build,
    period=5.0,
)
