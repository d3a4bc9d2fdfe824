"""What the kernel's log says of its OOM killer: lines put together into kills, and into words."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from watchdog import procfs

DEVICE = "/dev/kmsg"

_BOOT_PIDS = "pid:[4026531836]"
"""The pid namespace whose pids the kernel's log names has had this number since Linux 3.8."""
_KEPT_KILLS = 256
"""A neighbour may be killed every few seconds for months."""
_GIB, _MIB, _KIB = 1 << 30, 1 << 20, 1 << 10
_ROUND_UP = 1000

_USAGE = re.compile(r"memory: usage (\d+)kB, limit (\d+)kB, failcnt")
_CHOSEN = re.compile(r"oom-kill:constraint=.*,task=(.*),pid=(\d+),uid=\d+$")
_PLACE = re.compile(r",oom_memcg=(.*),task_memcg=")
_KILLED = re.compile(r": Killed process (\d+) \((.*)\) total-vm:\d+kB, (.*-rss:.*)")
_CAPPED = "Memory cgroup out of memory"
_RSS = re.compile(r"(?:anon|shmem)-rss:(\d+)kB")


@dataclass(frozen=True, slots=True)
class OomKill:
    """One kill as the kernel's log tells it. Bytes; None where it does not say.

    ``capped``: the limit of a cgroup was reached, ``place`` where it says which; otherwise the
    whole box had no more. ``rss`` is known once the process was killed, not while it was chosen.
    """

    pid: int
    comm: str
    rss: int | None = None
    used: int | None = None
    limit: int | None = None
    place: str = ""
    capped: bool = False

    @property
    def words(self) -> str:
        """``python3 (pid 4242) in /box, 31.0 GiB``."""
        where = f" in {self.place or 'a cgroup'}" if self.capped else ""
        held = f", {size(self.rss)}" if self.rss is not None else ""
        return f"{self.comm} (pid {self.pid}){where}{held}"


class OomLines:
    """Puts kills together from the texts of the log, which has one in several records."""

    def __init__(self) -> None:
        self._chosen: dict[int, OomKill] = {}
        self._usage: tuple[int, int] | None = None

    def found(self, text: str) -> OomKill | None:
        """What a record says of a kill: first who was chosen, then how much memory that had.

        So most kills are told twice, the second time with more; of more than ten in five seconds
        the kernel writes only the second. None for any other record.
        """
        if found := _USAGE.search(text):
            self._usage = int(found[1]) * _KIB, int(found[2]) * _KIB
            return None
        kill = self._kill(text)
        if kill is not None and kill.rss is None:
            self._chosen[kill.pid] = kill
            while len(self._chosen) > _KEPT_KILLS:
                del self._chosen[next(iter(self._chosen))]
        return kill

    def _kill(self, text: str) -> OomKill | None:
        if found := _CHOSEN.search(text):
            used, limit = self._usage or (None, None)
            self._usage = None  # the next kill may be for the whole box
            place = _PLACE.search(text)
            where = place[1] if place is not None else ""
            return OomKill(int(found[2]), found[1], None, used, limit, where, place is not None)
        if found := _KILLED.search(text):
            rss = sum(int(part) for part in _RSS.findall(found[3])) * _KIB
            chosen = self._chosen.pop(int(found[1]), OomKill(int(found[1]), found[2]))
            capped = text.startswith(_CAPPED)
            return replace(chosen, comm=found[2], rss=rss, capped=chosen.capped or capped)
        return None


def names_our_pids(proc: str = procfs.ROOT) -> bool:
    """Whether the pids of the log are those that we see: not in a pid namespace of our own."""
    with contextlib.suppress(OSError):
        return (Path(proc) / "self/ns/pid").readlink() == Path(_BOOT_PIDS)
    return False


def size(count: int) -> str:
    """Bytes for people; a MiB that is nearly a GiB is one."""
    if count < _ROUND_UP * _MIB:
        return f"{count / _MIB:.1f} MiB"
    return f"{count / _GIB:.1f} GiB"
