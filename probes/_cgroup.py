"""The memory cgroups that hold processes, and which of their limits is the nearest to being met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from watchdog import memory_cgroup, procfs

_MOST_PLACES = 256
"""Every start of an engine may bring a cgroup with a new name."""


class Places:
    """Where processes are, remembered by what the kernel calls it: mounts are looked up once.

    ``proc`` is where procfs is mounted. Not safe from several threads at once.
    """

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._known: dict[tuple[str | None, str | None], tuple[str, ...]] = {}

    def of(self, pid: int) -> tuple[str, ...]:
        """The nearest folder that counts memory and those above it; none when out of sight."""
        names = procfs.cgroups(pid, self._proc)
        key = names.get("memory"), names.get("")
        if not names or key in self._known:
            return self._known.get(key, ())
        if len(self._known) >= _MOST_PLACES:
            self._known.clear()
        nearest = memory_cgroup.nearest(pid, self._proc)
        above = () if nearest is None else memory_cgroup.upwards(nearest)
        found = tuple(place for place in above if memory_cgroup.is_there(place))
        self._known[key] = found
        return found


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit and what is used of it, without page cache. Bytes."""

    folder: str
    limit: int
    used: int

    @property
    def percent(self) -> float:
        """Of the limit."""
        return 100.0 * self.used / self.limit if self.limit else 100.0

    @property
    def free(self) -> int:
        """Bytes until it is met."""
        return max(self.limit - self.used, 0)


def bounds(folders: Iterable[str], box: int | None) -> list[Bound]:
    """The limits of these cgroups, fullest first. None that is no less than ``box`` has (bytes)."""
    found = []
    for folder in folders:
        both = memory_cgroup.limit(folder), memory_cgroup.throttle(folder)
        limits = [one for one in both if one is not None and (box is None or one < box)]
        used = memory_cgroup.held(folder) if limits else None
        if used is not None:
            found.append(Bound(folder, min(limits), used))
    return sorted(found, key=lambda one: one.percent, reverse=True)
