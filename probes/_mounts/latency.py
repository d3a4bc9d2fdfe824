"""How long a disk takes for one request, from counters that its block device keeps anyway."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from probes._mounts.mountinfo import Mount
from watchdog.core.model import Seconds

_FIELDS = 9


@dataclass(frozen=True, slots=True)
class _Counters:
    at: Seconds
    done: int
    milliseconds: int
    in_flight: int


class Latency:
    """The mean of reads and writes between two looks, by device. ``root`` is the file system's."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._before: dict[str, _Counters] = {}

    def of(self, mount: Mount, at: Seconds) -> Seconds | None:
        """Since the look before; None at the first, without a device, and when nothing was asked.

        When requests wait and none has ended in all that time, it is that time: at least so long.
        """
        numbers = self._numbers(mount)
        now = None if numbers is None else self._counters(numbers, at)
        if numbers is None or now is None:
            return None
        before = self._before.get(numbers)
        if before is not None and before.at == at:
            return None
        self._before[numbers] = now
        return None if before is None else _mean(before, now)

    def keep(self, mounts: list[Mount]) -> None:
        """Forget the devices of all others."""
        wanted = {self._numbers(mount) for mount in mounts}
        self._before = {key: one for key, one in self._before.items() if key in wanted}

    def _numbers(self, mount: Mount) -> str | None:
        """``254:0``; what is no block device has major 0, and may name one as its source."""
        if os.major(mount.device):
            return mount.numbers
        if not mount.source.startswith("/dev/"):
            return None
        try:
            device = Path(self._root, mount.source[1:]).stat().st_rdev
        except OSError:
            return None
        return f"{os.major(device)}:{os.minor(device)}" if device else None

    def _counters(self, numbers: str, at: Seconds) -> _Counters | None:
        try:
            text = Path(self._root, f"sys/dev/block/{numbers}/stat").read_text(encoding="ascii")
            words = [int(word) for word in text.split()]
        except (OSError, ValueError):
            return None
        if len(words) < _FIELDS:
            return None
        return _Counters(at, words[0] + words[4], words[3] + words[7], words[8])


def _mean(before: _Counters, now: _Counters) -> Seconds | None:
    done = now.done - before.done
    if done > 0 and now.milliseconds >= before.milliseconds:
        return (now.milliseconds - before.milliseconds) / done / 1000
    stands = done == 0 and before.in_flight > 0 and now.in_flight > 0
    return now.at - before.at if stands else None
