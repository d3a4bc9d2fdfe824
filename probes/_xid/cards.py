"""Which card sits at a bus id: as NVML told, else as the driver's files say, else the bus id."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from probes._xid.line import normalized
from watchdog.core.model import Labels, Subject, SubjectKind

ROOT = "/proc/driver/nvidia/gpus"
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", re.MULTILINE)
"""A card that was never used shows question marks instead of digits."""


class Identity(Protocol):
    """A card as NVML's client names it. ``uuid`` may be empty."""

    @property
    def index(self) -> int:
        """NVML's index."""
        ...

    @property
    def uuid(self) -> str:
        """``GPU-…``."""
        ...

    @property
    def bus_id(self) -> str:
        """``0000:00:06.0``."""
        ...


@dataclass(frozen=True, slots=True)
class Card:
    """A card, or a place where one must be. ``index`` and ``uuid`` are "" when unknown."""

    bus_id: str
    index: str = ""
    uuid: str = ""

    @property
    def subject(self) -> Subject:
        """By UUID, else by index, else by place."""
        place = f"index-{self.index}" if self.index else f"pci-{self.bus_id or 'unknown'}"
        return Subject(SubjectKind.GPU, self.uuid or place)

    @property
    def labels(self) -> Labels:
        """Index and UUID."""
        return (("gpu", self.index), ("uuid", self.uuid))

    @property
    def words(self) -> str:
        """What a sentence calls it."""
        return f"GPU {self.index}" if self.index else f"the GPU at {self.bus_id or 'unknown'}"


class Cards:
    """All cards that were ever named: one that NVML no longer lists is still what it was.

    ``root`` is the driver's directory of cards; it is looked at only while NVML named none.
    """

    def __init__(self, root: str = ROOT) -> None:
        self._root = Path(root)
        self._told: dict[str, Card] = {}
        self._read: dict[str, Card] = {}

    def learn(self, identities: Iterable[Identity]) -> None:
        """Take over what NVML tells."""
        for one in identities:
            if one.bus_id:
                place = normalized(one.bus_id)
                self._told[place] = Card(place, str(one.index), one.uuid)

    def named(self, bus_id: str, uuid: str) -> None:
        """Take over a UUID that came with an event."""
        if bus_id and uuid:
            self._read.setdefault(bus_id, Card(bus_id, uuid=uuid))

    def known(self) -> tuple[Card, ...]:
        """Every card, by bus id."""
        places = sorted(self._told) if self._told else self._places()
        return tuple(self.at(place) for place in places)

    def at(self, bus_id: str) -> Card:
        """The card there; only a place when nobody knows more."""
        return self._told.get(bus_id) or self._read.get(bus_id) or self._looked_up(bus_id)

    def place(self, uuid: str) -> str:
        """The bus id of a card; "" when unknown."""
        return next((card.bus_id for card in self._told.values() if uuid and card.uuid == uuid), "")

    def _places(self) -> list[str]:
        try:
            names = os.listdir(self._root)  # noqa: PTH208 - names are all that is wanted
        except OSError:
            return []
        return sorted(normalized(name) for name in names)

    def _looked_up(self, bus_id: str) -> Card:
        try:
            text = (self._root / bus_id / "information").read_text("ascii", errors="replace")
        except (OSError, ValueError):
            return Card(bus_id)
        found = _UUID.search(text)
        if found is None:
            return Card(bus_id)
        return self._read.setdefault(bus_id, Card(bus_id, uuid=found[1]))
