"""Memory: of the box, of the cgroups that limit us and the engines, and of each engine's own set.

What counts is what cannot be given back: page cache is no use of memory, so of a cgroup it is
anonymous and shared memory. Forecasts are of a quarter of an hour, the growth of an engine of six
hours: a leak that takes a week is a line only then.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from probes._cgroup import Bound, Places, bounds
from probes._trend import Trend, words
from watchdog import memory_cgroup, procfs
from watchdog.contracts import (
    Box,
    EngineTarget,
    Probe,
    ProbeError,
    ProbeSpec,
    ProcessInfo,
    SampleSpec,
    of_engine,
)
from watchdog.core.model import (
    HOST,
    Sampled,
    Seconds,
    SubjectKind,
    Unread,
    Value,
)
from watchdog.kernel_log import size

_HOUR: Seconds = 3600.0
_KIB = 1 << 10
_BOX = ""
"""The box among the cgroups: it has no folder."""
_ENGINE = ("engine",)
_STUCK = "D"
_DEAD = "ZX"
_FIELD = re.compile(
    r"\n(MemTotal|MemAvailable|SwapTotal|SwapFree|Shmem|RssAnon|VmSwap|Pss):\s+(\d+) kB"
)
"""What is wanted of the fifty fields of a file: to make them all costs more than to read it, and
"^" is four times as slow as the character itself."""
_STALLS = re.compile(r"^(some|full) avg10=([\d.]+)", re.MULTILINE)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When proportional memory is summed up, which walks the page tables of an engine."""

    pss_interval: float = 600.0
    """Seconds; 0: never."""
    pss_most_bytes: int = 2 << 30
    """Resident, of any one process of the set. The walk stops every thread of it that maps memory,
    for 10 to 35 ms a GiB (measured); page faults go on since Linux 6.4."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where procfs is, and over which times trends are looked for: window and least, in seconds."""

    proc: str = procfs.ROOT
    clock: Callable[[], Seconds] = time.monotonic
    soon: tuple[Seconds, Seconds] = (900.0, 300.0)
    """A start that takes memory for its weights is over in most cases before this is believed."""
    growth: tuple[Seconds, Seconds] = (6 * _HOUR, 2 * _HOUR)


@dataclass(slots=True)
class _Set:
    """What was seen of one start of an engine."""

    generation: str
    growth: Trend
    pss: int | None = None
    pss_at: Seconds | None = None


@dataclass(slots=True)
class _Look:
    """What one reading found: totals of the box by the kernel's names, and who is where."""

    at: Seconds
    box: dict[str, int]
    ours: tuple[str, ...]
    bounds: dict[str, tuple[str, Bound]] = field(default_factory=dict)
    """By folder; with whom it limits."""
    folders: list[str] = field(default_factory=list)
    """The nearest cgroup of us and of each engine."""

    @property
    def available(self) -> int | None:
        """Bytes that the box can still give without swapping."""
        return self.box.get("MemAvailable")

    def room(self, folders: Iterable[str]) -> int | None:
        """Bytes that somebody in these cgroups can still get; None: unknown."""
        free = [self.bounds[one][1].free for one in folders if one in self.bounds]
        free += [] if self.available is None else [self.available]
        return min(free, default=None)


class Memory:
    """A few small files a look; the trends are all that is kept."""

    def __init__(
        self, settings: Settings, box: Box, surroundings: Surroundings | None = None
    ) -> None:
        self._settings, self._box = settings, box
        self._around = surroundings or Surroundings()
        self._places = Places(self._around.proc)
        self._sets: dict[str, _Set] = {}
        self._free: dict[str, Trend] = {}

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:  # noqa: ARG002 - see _pss
        """Yields what is known. Raises ProbeError when not even the box's memory is."""
        proc = self._around.proc
        box = _fields(memory_cgroup.text(f"{proc}/meminfo"))
        if "MemTotal" not in box:
            raise ProbeError(f"cannot read {proc}/meminfo")
        look = _Look(self._around.clock(), box, self._places.of(os.getpid()))
        look.folders += look.ours[:1]
        yield from _totals(box)
        yield from self._our_limit(look)
        for engine in self._box.engines():
            yield from self._engine(engine, look)
        yield from self._pressure(look)
        yield from self._forecast(look)
        self._forget({engine.name for engine in self._box.engines()})

    def close(self) -> None:
        """Nothing is held."""

    def _our_limit(self, look: _Look) -> Iterator[Sampled]:
        """The fullest of the limits that hold for us, and so for all that we start."""
        found = bounds(look.ours, look.box["MemTotal"])
        for bound in found:
            look.bounds[bound.folder] = "", bound
        if found:
            yield Sampled(HOST, "limit_bytes", found[0].limit)
            yield Sampled(HOST, "used_bytes", found[0].used)
            yield Sampled(HOST, "used_percent", found[0].percent)
            yield Sampled(HOST, "limited_by", found[0].folder)

    # --- engines ------------------------------------------------------------------------------

    def _engine(self, engine: EngineTarget, look: _Look) -> Iterator[Sampled]:
        living = [one for one in engine.processes() if one.state not in _DEAD]
        places = self._places.of(living[0].pid) if living else ()
        own = self._own_limit(engine, places, look)
        if own is not None:
            yield of_engine(engine, "engine_limit_bytes", own.limit)
            yield of_engine(engine, "engine_used_percent", own.percent)
        of = self._set(engine)
        private = self._private(living)
        if private is not None:
            yield of_engine(engine, "engine_bytes", private)
            yield from self._growth(engine, of, private, look.room(places), look)
        pss = self._pss(of, living, look.at)
        if pss is not None:
            yield of_engine(engine, "engine_pss_bytes", pss)

    def _set(self, engine: EngineTarget) -> _Set:
        generation = engine.look().generation
        known = self._sets.get(engine.name)
        if known is None or known.generation != generation:
            known = self._sets[engine.name] = _Set(generation, Trend(*self._around.growth))
        return known

    def _private(self, living: Iterable[ProcessInfo]) -> int | None:
        """Bytes of anonymous memory, in RAM or swapped out; None when nobody's could be read."""
        texts = (memory_cgroup.text(f"{self._around.proc}/{one.pid}/status") for one in living)
        fields = (_fields(text) for text in texts)
        found = [one["RssAnon"] + one.get("VmSwap", 0) for one in fields if "RssAnon" in one]
        return sum(found) if found else None

    def _own_limit(
        self, engine: EngineTarget, places: tuple[str, ...], look: _Look
    ) -> Bound | None:
        """The fullest of the limits that hold for the engine and not for us."""
        look.folders += places[:1]
        own = [place for place in places if place not in look.ours]
        found = bounds(own, look.box["MemTotal"])
        for bound in found:
            look.bounds[bound.folder] = engine.name, bound
        return found[0] if found else None

    def _growth(
        self, engine: EngineTarget, of: _Set, private: int, room: int | None, look: _Look
    ) -> Iterator[Sampled]:
        """How fast it grows for hours. Zero is a set that was watched for long and does not."""
        of.growth.add(look.at, look.box["MemTotal"] - private)
        slope = of.growth.slope()
        if slope is None:
            return
        pace = -slope if slope < 0 and of.growth.empty_in() is not None else 0.0
        yield of_engine(engine, "engine_growth_bytes_per_hour", pace * _HOUR)
        if pace and room is not None:
            told = f"{size(private)}, {size(int(pace * _HOUR))} more every hour"
            yield of_engine(engine, "engine_full_in_seconds", room / pace)
            yield of_engine(engine, "engine_outlook", f"{told}: memory {words(room / pace)}")

    def _pss(self, of: _Set, living: list[ProcessInfo], now: Seconds) -> int | None:
        """The last sum; a new one when it is time."""
        every = self._settings.pss_interval
        if every and (of.pss_at is None or now - of.pss_at >= every):
            of.pss_at = now
            of.pss = self._summed(living)
        return of.pss

    def _summed(self, living: list[ProcessInfo]) -> int | None:
        """Of the whole set; None when the walk would take too long, or could not be done.

        Not while somebody is in uninterruptible sleep, who may hold the lock that we would wait
        for.
        """
        most, proc = self._settings.pss_most_bytes, self._around.proc
        if any(one.state == _STUCK or one.rss_bytes > most for one in living):
            return None
        found = [
            _fields(memory_cgroup.text(f"{proc}/{one.pid}/smaps_rollup")).get("Pss")
            for one in living
        ]
        known = [one for one in found if one is not None]
        return sum(known) if known and len(known) == len(found) else None

    # --- what holds for all of it -------------------------------------------------------------

    def _pressure(self, look: _Look) -> Iterator[Sampled]:
        """Of the box or of a cgroup of ours or an engine's, whichever is worse.

        A cgroup at its limit stalls those in it alone, which the figures of a large box hide.
        """
        files = [f"{self._around.proc}/pressure/memory"]
        files += [f"{folder}/memory.pressure" for folder in dict.fromkeys(look.folders)]
        stalls = [pair for file in files for pair in _STALLS.findall(memory_cgroup.text(file))]
        for kind in ("some", "full"):
            found = [float(percent) for name, percent in stalls if name == kind]
            if found:
                yield Sampled(HOST, f"pressure_{kind}_percent", max(found))

    def _forecast(self, look: _Look) -> Iterator[Sampled]:
        """What is full first, if anything fills up."""
        free = {folder: bound.free for folder, (_, bound) in look.bounds.items()}
        if look.available is not None:
            free[_BOX] = look.available
        self._free = {place: self._free.get(place) or Trend(*self._around.soon) for place in free}
        soon: list[tuple[Seconds, str]] = []
        for place, trend in self._free.items():
            trend.add(look.at, free[place])
            left = trend.empty_in()
            if left is not None:
                soon.append((left, place))
        if soon:
            left, place = min(soon)
            yield Sampled(HOST, "full_in_seconds", left)
            yield Sampled(HOST, "outlook", f"{_named(place, look)}: {words(left)}")

    def _forget(self, names: set[str]) -> None:
        self._sets = {name: of for name, of in self._sets.items() if name in names}


def _named(place: str, look: _Look) -> str:
    if place == _BOX:
        return "memory of the box"
    engine, bound = look.bounds[place]
    whose = f"engine {engine}, " if engine else ""
    return f"{whose}limit of {size(bound.limit)} in {place}"


def _totals(box: dict[str, int]) -> Iterator[Sampled]:
    total, available, shared = (box.get(key) for key in ("MemTotal", "MemAvailable", "Shmem"))
    swap, swap_free = box.get("SwapTotal"), box.get("SwapFree")
    values: dict[str, Value | None] = {
        "total_bytes": total,
        "available_bytes": available,
        "available_percent": 100.0 * available / total if available is not None and total else None,
        "swap_total_bytes": swap,
        "swap_used_bytes": swap - swap_free if swap is not None and swap_free is not None else None,
        "shared_bytes": shared,
    }
    for name, value in values.items():
        if value is not None:
            yield Sampled(HOST, name, value)


def _fields(text: str) -> dict[str, int]:
    """Bytes by name, of a file of procfs."""
    return {name: int(number) * _KIB for name, number in _FIELD.findall(f"\n{text}")}


def _build(settings: Settings, box: Box) -> Probe:
    return Memory(settings, box)


def _bytes(name: str, text: str) -> SampleSpec:
    return SampleSpec(name, int, "bytes", text)


def _of_engine(name: str, kind: type[int | float | str], unit: str, text: str) -> SampleSpec:
    return SampleSpec(name, kind, unit, text, labels=_ENGINE, subject=SubjectKind.ENGINE)


PROBE = ProbeSpec(
    name="memory",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        _bytes("total_bytes", "Memory of the box."),
        _bytes("available_bytes", "What can be had without swapping, page cache included."),
        SampleSpec("available_percent", float, "percent", "The same, of the box's memory."),
        _bytes("swap_total_bytes", "Swap of the box; 0 when it has none."),
        _bytes("swap_used_bytes", "Swap in use."),
        _bytes("shared_bytes", "Shared memory and tmpfs files of the box."),
        SampleSpec(
            "pressure_some_percent",
            float,
            "percent",
            "Time of the last 10 s in which somebody waited for memory, of box or cgroup.",
        ),
        SampleSpec(
            "pressure_full_percent",
            float,
            "percent",
            "Time of the last 10 s in which everybody waited for memory, of box or cgroup.",
        ),
        _bytes("limit_bytes", "Limit of the fullest cgroup that holds us."),
        _bytes("used_bytes", "What is used of that limit, without page cache."),
        SampleSpec("used_percent", float, "percent", "The same, of the limit."),
        SampleSpec("limited_by", str, "", "The cgroup that has this limit."),
        SampleSpec(
            "full_in_seconds",
            float,
            "seconds",
            "When box or cgroup has no memory left; absent when nothing fills up.",
            exported=False,
        ),
        SampleSpec("outlook", str, "", "The same in words."),
        _of_engine("engine_bytes", int, "bytes", "Private memory of the engine's whole set."),
        _of_engine(
            "engine_pss_bytes",
            int,
            "bytes",
            "Memory of the set with its share of what others use too; of small sets, and rarely.",
        ),
        _of_engine(
            "engine_growth_bytes_per_hour",
            float,
            "bytes",
            "Growth of private memory that has gone on for hours; 0 when there is none.",
        ),
        SampleSpec(
            "engine_full_in_seconds",
            float,
            "seconds",
            "When that growth has taken all memory there is; absent when there is none.",
            labels=_ENGINE,
            subject=SubjectKind.ENGINE,
            exported=False,
        ),
        _of_engine("engine_outlook", str, "", "That growth in words."),
        _of_engine("engine_limit_bytes", int, "bytes", "Limit of the engine's own cgroup."),
        _of_engine("engine_used_percent", float, "percent", "What is used of it."),
    ),
    build=_build,
    period=5.0,
)
