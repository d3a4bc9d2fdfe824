"""Processors: how busy the box is, what the hypervisor takes, and what a cgroup's quota withholds.

An engine whose API server gets no processor answers late, whatever its GPU does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from watchdog import memory_cgroup, procfs
from watchdog.contracts import (
    Box,
    EngineTarget,
    Probe,
    ProbeError,
    ProbeSpec,
    SampleSpec,
    of_engine,
)
from watchdog.core.model import HOST, Sampled, Seconds, SubjectKind, Unread

_PRESSURE = re.compile(r"^some avg10=([\d.]+)", re.MULTILINE)
_THROTTLED = (("", "throttled_usec", 1e-6), ("cpu", "throttled_time", 1e-9))
"""By version: the controller as /proc names it, the key in ``cpu.stat``, seconds of one unit."""
_IDLE = ("idle", "iowait")
_TWICE = ("guest", "guest_nice")
"""The kernel counts them in ``user`` and ``nice`` too."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set."""


@dataclass(slots=True)
class Cpu:
    """What happened between two looks; the first one only begins. ``root`` is where procfs is."""

    box: Box
    root: str = procfs.ROOT
    _before: Mapping[str, Seconds] | None = None

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:  # noqa: ARG002 - no file waits
        """Yields what is known. Raises ProbeError when the times of the box cannot be read."""
        now = _times()
        before, self._before = self._before, now
        yield Sampled(HOST, "cores", len(os.sched_getaffinity(0)))
        if before is not None:
            yield from _shares(before, now)
        yield from self._pressure()
        ours = self._throttled(os.getpid())
        if ours is not None:
            yield Sampled(HOST, "throttled_seconds", ours[1])
        for engine in self.box.engines():
            yield from self._engine(engine, "" if ours is None else ours[0])

    def close(self) -> None:
        """Nothing is held."""

    def _pressure(self) -> Iterator[Sampled]:
        found = _PRESSURE.search(memory_cgroup.text(f"{self.root}/pressure/cpu"))
        if found:
            yield Sampled(HOST, "pressure_percent", float(found[1]))

    def _engine(self, engine: EngineTarget, ours: str) -> Iterator[Sampled]:
        """Its own cgroup, when it is not the one that we are in."""
        leader = engine.look().leader
        found = None if leader is None else self._throttled(leader)
        if found is not None and found[0] != ours:
            yield of_engine(engine, "engine_throttled_seconds", found[1])

    def _throttled(self, pid: int) -> tuple[str, Seconds] | None:
        """The process's cgroup, and for how long its quota has kept threads of it from running."""
        for controller, key, unit in _THROTTLED:
            folder = procfs.cgroup_folder(pid, controller, self.root)
            text = "" if folder is None else memory_cgroup.text(f"{folder}/cpu.stat")
            for line in text.splitlines():
                name, _, value = line.partition(" ")
                if name == key and value.isdecimal():
                    return folder or "", int(value) * unit
        return None


def _times() -> Mapping[str, Seconds]:
    """Seconds since boot by what they were spent on, of all processors together."""
    import psutil  # takes 20 ms, which no adoption has to wait for

    try:
        return dict(psutil.cpu_times()._asdict())
    except (OSError, ValueError, IndexError) as error:
        raise ProbeError(f"cannot read the processors' times: {error}") from error


def _shares(before: Mapping[str, Seconds], now: Mapping[str, Seconds]) -> Iterator[Sampled]:
    """Percent of the time of all processors. A counter may fall back a little: then it stood."""
    spent = {
        name: max(0.0, now[name] - before.get(name, now[name]))
        for name in now
        if name not in _TWICE
    }
    total = sum(spent.values())
    if not total:
        return
    busy = total - sum(spent.get(name, 0.0) for name in _IDLE)
    yield Sampled(HOST, "used_percent", 100.0 * busy / total)
    for name in ("iowait", "steal"):
        if name in spent:
            yield Sampled(HOST, f"{name}_percent", 100.0 * spent[name] / total)


def _build(_: Settings, box: Any) -> Probe:  # noqa: ANN401 - the contract
    return Cpu(box)


def _percent(name: str, text: str) -> SampleSpec:
    return SampleSpec(name, float, "percent", text)


PROBE = ProbeSpec(
    name="cpu",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        SampleSpec("cores", int, "", "Processors that we may run on."),
        _percent("used_percent", "Time that processors worked since the last look, of all time."),
        _percent("iowait_percent", "Time that they were idle while a disk was waited for."),
        _percent("steal_percent", "Time that the hypervisor gave to other machines."),
        _percent("pressure_percent", "Time of the last 10 s in which somebody waited for one."),
        SampleSpec(
            "throttled_seconds",
            float,
            "seconds",
            "Time that the quota of our cgroup kept it from running.",
            counter=True,
        ),
        SampleSpec(
            "engine_throttled_seconds",
            float,
            "seconds",
            "The same of the engine's cgroup, where that is another one.",
            counter=True,
            labels=("engine",),
            subject=SubjectKind.ENGINE,
        ),
    ),
    build=_build,
    period=5.0,
)
