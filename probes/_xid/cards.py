"""Which card sits at a bus id: as NVML told, else as the driver's files say, else the bus id."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from probes._nvml.client import CardIdentity
from probes._xid.line import normalized
from watchdog.core.model import Labels, Subject, SubjectKind

ROOT = "/proc/driver/nvidia/gpus"
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", re.MULTILINE)
"""A card that was never used shows question marks instead of digits."""
_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,9})\s*$", re.MULTILINE)
"""The N of /dev/nvidiaN: what NVML's index is, too, unless cards are hidden or have changed."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card, or a place where one must be. ``index``, ``uuid``, ``minor`` are "" when unknown.

    ``index`` is NVML's; ``minor`` is the driver's number, which stands in for it.
    """

    bus_id: str
    index: str = ""
    uuid: str = ""
    minor: str = ""

    @property
    def subject(self) -> Subject:
        """By UUID, else by index, else by place."""
        numbered = f"index-{self.index}" if self.index else self._place
        return Subject(SubjectKind.GPU, self.uuid or numbered)

    @property
    def labels(self) -> Labels:
        """Number and UUID; without a UUID the place, or cards without a name were all the same."""
        unnamed = "" if self.index else self._place
        return (("gpu", self.index or self.minor), ("uuid", self.uuid or unnamed))

    @property
    def words(self) -> str:
        """What a sentence calls it."""
        return f"GPU {self.index}" if self.index else f"the GPU at {self.bus_id or 'unknown'}"

    @property
    def _place(self) -> str:
        return f"pci-{self.bus_id or 'unknown'}"


class Cards:
    """All cards that were ever named: one that NVML no longer lists is still what it was.

    ``root`` is the driver's directory of cards; it is looked at only for what NVML did not name.
    ``whole`` says that the machine is ours, and not a container's share of it.
    """

    def __init__(self, root: str = ROOT, *, whole: bool = False) -> None:
        self._root = Path(root)
        self._whole = whole
        self._told: dict[str, Card] = {}
        self._happened: dict[str, str] = {}
        self._read: dict[str, Card] = {}

    def learn(self, identities: Iterable[CardIdentity]) -> None:
        """Take over what NVML tells."""
        for one in identities:
            if one.bus_id:
                place = normalized(one.bus_id)
                self._told[place] = Card(place, str(one.index), one.uuid)

    def named(self, bus_id: str, uuid: str) -> None:
        """Take over a UUID that came with an event."""
        if bus_id and uuid:
            self._happened.setdefault(bus_id, uuid)

    @property
    def told(self) -> bool:
        """Whether NVML ever named a card here."""
        return bool(self._told)

    def here(self, bus_id: str) -> bool:
        """Whether NVML ever named a card there."""
        return bus_id in self._told

    def elsewhere(self, bus_id: str) -> bool:
        """Whether what happens there is another's: the log is the host's, the cards are ours.

        In a container, that is; of a whole machine a card that NVML cannot start is its own too.
        Only an event of NVML can be without a place, and NVML speaks of nobody else's cards.
        """
        if not bus_id or not self.told or self.here(bus_id):
            return False
        return not (self._whole and bus_id in self._places())

    def known(self) -> tuple[Card, ...]:
        """Every card, by bus id."""
        places = sorted(self._told) if self._told else self._places()
        return tuple(self.at(place) for place in places)

    def at(self, bus_id: str) -> Card:
        """The card there; only a place when nobody knows more."""
        return self._told.get(bus_id) or self._looked_up(bus_id)

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
        """What the driver's files say; the rest of a file is final when it has the UUID."""
        kept = self._read.get(bus_id)
        if kept is not None:
            return kept
        text = self._file(bus_id)
        uuid, minor = (_first(pattern, text) for pattern in (_UUID, _MINOR))
        card = Card(bus_id, uuid=uuid or self._happened.get(bus_id, ""), minor=minor)
        if uuid:
            self._read[bus_id] = card
        return card

    def _file(self, bus_id: str) -> str:
        try:
            return (self._root / bus_id / "information").read_text("ascii", errors="replace")
        except (OSError, ValueError):
            return ""


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return "" if found is None else found[1]
