"""Whose memory is on the cards, for the release gate: one read of the probe ``gpu_processes``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from watchdog.contracts import Owner, Probe, ProbeError
from watchdog.core.model import Sampled, Seconds, Unread
from watchdog.supervisor.gpu_gate import CardMemory, Holder

PROBE = "gpu_processes"
"""The probe's name in the registry."""

_TIMEOUT: Seconds = 3.0
"""A driver that hangs may hold up a start for so long, once: then the gate passes."""

_REST: Seconds = 10.0
"""So long after a look that failed there is none: starts in a row wait for a dead driver once."""

_SIZES = ("memory_used_bytes", "memory_total_bytes")


class GpuLook:
    """A ``GpuMemoryLook`` on a probe of its own, so that no schedule is in its way.

    Safe from any thread as far as the probe is, which keeps nothing between two reads.
    """

    def __init__(self, probe: Probe, timeout: Seconds = _TIMEOUT, rest: Seconds = _REST) -> None:
        self._probe = probe
        self._timeout = timeout
        self._rest = rest
        self._failed_at: Seconds | None = None

    def __call__(self) -> tuple[CardMemory, ...] | None:
        """All cards whose processes could be listed; None when no GPU can be read.

        After a look that failed there is none for ``rest`` seconds, and None at once.
        """
        now, failed_at = time.monotonic(), self._failed_at
        if failed_at is not None and now - failed_at < self._rest:
            return None
        try:
            read = list(self._probe.read(now + self._timeout))
        except ProbeError:
            self._failed_at = time.monotonic()
            return None
        self._failed_at = None
        return cards_of(read)

    def close(self) -> None:
        """Give the probe back."""
        self._probe.close()


@dataclass(slots=True)
class _Card:
    uuid: str
    sizes: dict[str, int] = field(default_factory=dict)
    holders: list[Holder] = field(default_factory=list)
    mig: bool = False

    def take(self, one: Sampled, labels: dict[str, str]) -> None:
        if one.sample == "mig":
            self.mig = bool(one.value)
        elif one.sample in _SIZES:
            self.sizes[one.sample] = int(one.value)
        elif one.sample in {"holder_bytes", "holder_unmeasured"}:
            size = int(one.value) if one.sample == "holder_bytes" else None
            owner = Owner(labels["owner"])
            holder = Holder(int(labels["pid"]), labels["comm"], size, owner, labels["engine"])
            self.holders.append(holder)


def cards_of(read: Iterable[Sampled | Unread]) -> tuple[CardMemory, ...]:
    """What a read of the probe says, which brings nothing of a card without a list."""
    cards: dict[str, _Card] = {}
    for one in read:
        labels = dict(one.labels) if isinstance(one, Sampled) else {}
        if isinstance(one, Sampled) and "gpu" in labels:
            cards.setdefault(labels["gpu"], _Card(labels["uuid"])).take(one, labels)
    return tuple(
        CardMemory(
            int(index),
            card.uuid,
            card.sizes.get("memory_used_bytes"),
            card.sizes.get("memory_total_bytes"),
            tuple(card.holders),
            card.mig,
        )
        for index, card in cards.items()
    )
