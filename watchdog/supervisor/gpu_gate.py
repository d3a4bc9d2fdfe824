"""The gate's GPU step: nothing is started while its memory is still held, and it is said by whom.

On an H200 the memory of a killed process is back the moment its exit is seen. So the first look
passes when all is well, and only a card that is still held is looked at again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from watchdog.contracts import Owner
from watchdog.core.model import Cause, Seconds
from watchdog.supervisor.gate import GateVerdict, Refusal, Step

SLACK = 512 << 20
"""Bytes by which unaccounted memory may grow without a reason: contexts, the driver's own."""

_FIRST_REST: Seconds = 0.05
_LONGEST_REST: Seconds = 1.0
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Holder:
    """A process with memory on a card. ``bytes`` None is unknown, ``comm`` "" is out of sight.

    ``engine`` names the engine of its own process and of its orphan.
    """

    pid: int
    comm: str
    bytes: int | None
    owner: Owner
    engine: str = ""


@dataclass(frozen=True, slots=True)
class CardMemory:
    """One card at one moment. None where the card does not tell.

    With ``mig`` the totals are of the whole card and say nothing about room in an instance.
    """

    index: int
    uuid: str
    used_bytes: int | None
    total_bytes: int | None
    holders: tuple[Holder, ...] = ()
    mig: bool = False

    @property
    def unaccounted(self) -> int | None:
        """Used bytes that no listed process holds; None when either is unknown."""
        sizes = [holder.bytes for holder in self.holders]
        if self.used_bytes is None or None in sizes:
            return None
        return max(0, self.used_bytes - sum(size or 0 for size in sizes))

    def lacks(self, fraction: float | None) -> int:
        """Bytes missing until ``fraction`` of the card is free; 0 when it is, or nobody knows."""
        if fraction is None or not self.tells_room(fraction):
            return 0
        total, used = self.total_bytes or 0, self.used_bytes or 0
        return max(0, round(fraction * total) - (total - used))

    def tells_room(self, fraction: float | None) -> bool:
        """Whether it can be said if ``fraction`` of the card is free."""
        sizes = (fraction, self.used_bytes, self.total_bytes)
        return not self.mig and None not in sizes


GpuMemoryLook = Callable[[], tuple[CardMemory, ...] | None]
"""Looks at all cards, bounded in time; None when the GPUs cannot be read. Never raises."""

Wait = Callable[[Seconds], bool]
"""Waits so long; True when there is no more time for that, as ``threading.Event.wait`` says."""


class Baselines:
    """The least unaccounted memory that every card ever had. Shared by all engines of a daemon.

    Safe from any thread. Only looks without a living engine of ours count: then what is left is
    the driver's, and the memory of programs that NVML lists for nobody, a desktop for instance.
    """

    def __init__(self) -> None:
        self._least: dict[str, int] = {}
        self._lock = threading.Lock()

    def see(self, card: CardMemory) -> None:
        """Learn from a look."""
        ours = any(h.owner in {Owner.ENGINE, Owner.ORPHAN} for h in card.holders)
        if card.unaccounted is not None and not ours:
            with self._lock:
                least = self._least.get(card.uuid, card.unaccounted)
                self._least[card.uuid] = min(least, card.unaccounted)

    def accept(self, card: CardMemory) -> None:
        """What is held now is normal: it did not go, and there is room in spite of it."""
        if card.unaccounted is not None:
            with self._lock:
                self._least[card.uuid] = card.unaccounted

    def excess(self, card: CardMemory) -> int:
        """Bytes that nobody accounts for and that were not there before; 0 when all is normal.

        Of a card that was never seen idle everything unaccounted is normal.
        """
        held = card.unaccounted
        with self._lock:
            least = self._least.get(card.uuid, held)
        if held is None or least is None or held <= least + SLACK:
            return 0
        return held - least


def memory_released(  # noqa: PLR0913 - every condition of one start
    look: GpuMemoryLook,
    engine: str,
    cards: Sequence[str] | None,
    wanted_fraction: float | None,
    baselines: Baselines,
    *,
    patience: Seconds = 60.0,
    wait: Wait | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Step:
    """The step for one engine: nothing when its memory is there, else who holds it.

    ``cards`` are NVML indices or UUIDs (or beginnings of one) of the engine's cards, None for all
    of them. ``wanted_fraction`` is what the engine wants free of each card, None when unknown:
    then only memory of earlier starts matters. Waits ``patience`` seconds at most, and before each
    wait tells what for.

    Refused is a start whose own earlier processes hold memory, and one that is known not to fit for
    another reason than an engine of ours. Everything else is waited for once, and then let be.
    """
    judge = _Judge(engine, wanted_fraction, baselines)
    wait = wait or _slept

    def step() -> Refusal | None:
        deadline = time.monotonic() + patience
        rest = _FIRST_REST
        while True:
            found = look()
            if found is None:
                return None
            mine = [card for card in found if _among(card, cards)]
            for card in mine:
                baselines.see(card)
            hopeless = judge.first(mine, judge.hopeless)
            if hopeless is not None:
                return hopeless
            held = next(filter(judge.held, mine), None)
            if held is None:
                return None
            tell(judge.waits_for(held))
            left = deadline - time.monotonic()
            if left <= 0 or wait(min(rest, left)):
                return judge.verdict(mine)
            rest = min(rest * 2, _LONGEST_REST)

    return step


@dataclass(frozen=True, slots=True)
class _Judge:
    """What the memory of a card means for the start of one engine."""

    engine: str
    fraction: float | None
    baselines: Baselines

    @staticmethod
    def first(
        cards: Iterable[CardMemory], judge: Callable[[CardMemory], Refusal | None]
    ) -> Refusal | None:
        return next((found for card in cards if (found := judge(card))), None)

    def held(self, card: CardMemory) -> bool:
        """Whether waiting may help: our own dead hold it, or nobody, or there is no room."""
        if self._leftovers(card) or self.baselines.excess(card):
            return True
        return 0 < card.lacks(self.fraction) <= self._may_go(card)

    def waits_for(self, card: CardMemory) -> str:
        """What has to go from a card that is held, in words without a verb at their beginning."""
        where = f"GPU {card.index}"
        for holder in self._leftovers(card):
            who = _named(holder)
            return f"{where}: {_size(holder)} still held by {who} of an older start"
        nobodys = self._nobodys(card)
        if nobodys:
            return f"{where}: {_gib(nobodys)} still held by no visible process"
        for holder in card.holders:
            if holder.owner is Owner.ORPHAN:
                who = f"{_named(holder)} of an older start of {holder.engine}"
                return f"{where}: {_size(holder)} still held by {who}"
        return f"{where}: {_gib(card.lacks(self.fraction))} of room"

    def hopeless(self, card: CardMemory) -> Refusal | None:
        """Only a stranger's going could make room.

        Where not even that could, another engine of ours holds the card, and vLLM will say so.
        """
        missing = card.lacks(self.fraction) - self._may_go(card)
        strangers = [h for h in card.holders if h.owner is Owner.FOREIGN]
        if not strangers or not 0 < missing <= _held(card, strangers):
            return None
        largest = max(strangers, key=lambda h: h.bytes or 0)
        text = self._says(card, largest, "is no engine's and", self._room(card))
        return _short(text, GateVerdict.FOREIGN_OWNER)

    def verdict(self, cards: Iterable[CardMemory]) -> Refusal | None:
        """Nothing went any more. What leaves enough room is let be."""
        cards = tuple(cards)
        refusal = self.first(cards, self._refused)
        if refusal is None:
            for card in filter(self.baselines.excess, cards):
                self.baselines.accept(card)
        return refusal

    def _refused(self, card: CardMemory) -> Refusal | None:
        for holder in self._leftovers(card):
            text = self._says(card, holder, f"of an older start of {self.engine} still")
            return _short(text, GateVerdict.ORPHAN_OF_OURS)
        if 0 < card.lacks(self.fraction) <= self._may_go(card):
            return self._other_orphans(card) or self._unseen(card)
        return None

    def _leftovers(self, card: CardMemory) -> list[Holder]:
        """Processes of this engine: it is about to start, so all of them are of an older start."""
        ours = [h for h in card.holders if h.engine == self.engine]
        return sorted(ours, key=lambda h: h.owner is not Owner.ORPHAN)

    def _may_go(self, card: CardMemory) -> int:
        """Bytes that may come back by themselves."""
        going = [h for h in card.holders if h.owner in {Owner.ORPHAN, Owner.UNKNOWN}]
        going += [h for h in card.holders if h.owner is Owner.ENGINE and h.engine == self.engine]
        return _held(card, going) + self._nobodys(card)

    def _nobodys(self, card: CardMemory) -> int:
        """Held by no process: what is new, or more than slack on a card that lacks room."""
        held = card.unaccounted or 0
        return self.baselines.excess(card) or (held if held > SLACK else 0)

    def _other_orphans(self, card: CardMemory) -> Refusal | None:
        for holder in card.holders:
            if holder.owner is Owner.ORPHAN:
                text = self._says(card, holder, f"of an older start of {holder.engine}")
                return _short(text, GateVerdict.ORPHAN_OF_OURS)
        return None

    def _unseen(self, card: CardMemory) -> Refusal | None:
        for holder in card.holders:
            if holder.owner is Owner.UNKNOWN:
                text = self._says(card, holder, "is not visible from here and")
                return _short(text, GateVerdict.UNSEEN_OWNER)
        size = self._nobodys(card)
        if not size:
            return None
        text = (
            f"cannot start {self.engine}: no visible process holds {_gib(size)} of GPU "
            f"{card.index}: the driver does, until a reset of the GPU or a reboot, or a process "
            "in another PID namespace"
        )
        return _short(text, GateVerdict.NO_VISIBLE_OWNER)

    def _says(self, card: CardMemory, holder: Holder, what: str, more: str = "") -> str:
        return (
            f"cannot start {self.engine}: {_named(holder)} {what} holds {_size(holder)} of GPU "
            f"{card.index}{more}"
        )

    def _room(self, card: CardMemory) -> str:
        total, used = card.total_bytes or 0, card.used_bytes or 0
        wanted = (self.fraction or 0) * total
        return f": {_gib(total - used)} are free, {_gib(wanted)} are wanted"


def _short(text: str, verdict: GateVerdict) -> Refusal:
    return Refusal(Cause.GPU_MEMORY_SHORT, text, verdict)


def _named(holder: Holder) -> str:
    return f"process {holder.pid}" + (f" ({holder.comm})" if holder.comm else "")


def _size(holder: Holder) -> str:
    return "memory" if holder.bytes is None else _gib(holder.bytes)


def _held(card: CardMemory, holders: Iterable[Holder]) -> int:
    """Bytes of these; the whole card when those of one are unknown."""
    sizes = [holder.bytes for holder in holders]
    return card.total_bytes or 0 if None in sizes else sum(size or 0 for size in sizes)


def _slept(seconds: Seconds) -> bool:
    time.sleep(seconds)
    return False


def _among(card: CardMemory, cards: Sequence[str] | None) -> bool:
    """As CUDA_VISIBLE_DEVICES names cards: by index, or by a UUID or its beginning."""
    if cards is None:
        return True
    return any(
        name == str(card.index) if name.isdigit() else bool(name) and card.uuid.startswith(name)
        for name in cards
    )


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"
