"""The library, started; its cards; and the answers to the three requests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pynvml

from probes._nvml.card import AbsentError, Card, CodeError, Key
from probes._nvml.events import Events
from probes._nvml.looks import LOOKS, Look, Values, memory, mig
from probes._nvml.names import describe
from probes._nvml.processes import processes

_RESTART_EVERY = 60.0
"""Seconds between two fresh starts of the library: without persistence mode each costs seconds."""
_RETRY = 60.0
"""After so many seconds at most a reading that failed is asked for again."""
_GONE = 28
_LOST = 15
_NEEDS_RESET = 16
_MIG = "MIG mode"
_DOMAIN_DIGITS = 4
_UNTOLD = (pynvml.NVMLError, ValueError)
"""The latter for text that is not UTF-8, which the binding decodes itself."""


class Session:
    """Answers requests. What a card cannot do is remembered for that card until a fresh start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ready = False
        self._cards: dict[int, Card] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._facts: dict[str, str] = {}
        self._suspects: dict[str, set[Key]] = {}
        self._sources: dict[str, dict[str, str]] = {}
        self._events = Events()
        self._restart_wanted = False
        self._restart_at = 0.0

    def answer(self, request: str) -> dict[str, Any]:
        """The answer to one request, or ``{"error": …, "code": …}`` when nothing can be read."""
        try:
            self._start()
            count = int(pynvml.nvmlDeviceGetCount())
            if request == "cards":
                return {**self._facts, "gpus": self._told(count, self._sweep)}
            if request == "processes":
                driver = {key: self._facts[key] for key in self._facts.keys() & {"driver"}}
                return {**driver, "gpus": self._told(count, self._holders)}
            if request == "events":
                return self._happened(count)
        except pynvml.NVMLError as error:
            self._ready = False
            return {"error": describe(int(error.value)), "code": int(error.value)}
        raise ValueError(request)

    def _start(self) -> None:
        """Start the library, or start it afresh when something asked for that."""
        now = self._clock()
        if self._ready and not (self._restart_wanted and now >= self._restart_at):
            return
        if self._ready:
            self._stop(now)
        pynvml.nvmlInit()
        self._ready = True
        self._facts = _driver()

    def _stop(self, now: float) -> None:
        self._ready, self._restart_wanted = False, False
        self._restart_at = now + _RESTART_EVERY
        self._events.drop()
        for card in self._cards.values():
            self._suspects.setdefault(card.identity["uuid"], set()).update(card.doubted)
        self._cards = {}
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _told(
        self, count: int, tell: Callable[[Card, dict[str, Any]], None]
    ) -> list[dict[str, Any]]:
        """What each card says. One that is lost does not say who it is, but it is who it was."""
        found = []
        for index in range(count):
            said: dict[str, Any] = {"index": index, "errors": {}}
            try:
                self._one(index, tell, said)
            except CodeError as error:
                said["errors"] = {"": error.words}
                self._restart_wanted = True
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this card's alone
                known = self._cards.get(index)
                said = {"index": index, "errors": {"": _unexpected(error)}}
                said.update({} if known is None else known.identity)
            found.append(said)
        return self._remembered(found)

    def _one(
        self, index: int, tell: Callable[[Card, dict[str, Any]], None], said: dict[str, Any]
    ) -> None:
        card = self._card(index)
        said.update(card.identity)
        tell(card, said)
        self._restart_wanted |= card.wants_restart
        card.wants_restart = False

    def _remembered(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Give lost cards their names back, and add those that are not even counted any more."""
        present = {said["uuid"] for said in found if "uuid" in said}
        missing = [one for uuid, one in self._known.items() if uuid not in present]
        for said in found:
            if "uuid" not in said:
                was = next((one for one in missing if one["index"] == said["index"]), None)
                if was is not None:
                    missing.remove(was)
                    said.update(was)
        gone = ({**one, "errors": {"": describe(_GONE)}} for one in missing)
        return [*found, *gone]

    def _card(self, index: int) -> Card:
        """The card with that index now: another one may have taken it."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            self._cards.pop(index, None)
            raise CodeError(int(error.value)) from None
        except ValueError:  # who it is cannot be read
            self._cards.pop(index, None)
            raise
        card = self._cards.get(index)
        if card is None or card.identity["uuid"] != uuid:
            card = self._new_card(uuid)
            card.identity = {"uuid": uuid, **_described(handle)}
            self._cards[index] = card
            self._known[uuid] = {"index": index, **card.identity}
        card.handle = handle
        return card

    def _new_card(self, uuid: str) -> Card:
        return Card(self._suspects.get(uuid, ()), self._sources.setdefault(uuid, {}))

    def _sweep(self, card: Card, said: dict[str, Any]) -> None:
        """All that is due. A card that fails in everything has the error that it gave."""
        failed: dict[str, CodeError] = {}
        told = False
        now = self._clock()
        for look in _due(card, now):
            values = dict(card.kept.get(_MIG, {})) if look.period == 0 else {}
            try:
                look.read(card, values)
            except AbsentError:
                values = {}
            except CodeError as error:
                failed[look.name] = error
                values = values if look.period == 0 else {}
                if error.code == _LOST:
                    break
            told |= look.period == 0 and len(values) > len(card.kept.get(_MIG, {}))
            _keep(card, look, values, now, again=look.name in failed)
            said.update(values)
        codes = [error.code for error in failed.values()]
        if _LOST in codes or (codes and not told):
            worst = next((code for code in (_LOST, _NEEDS_RESET) if code in codes), codes[0])
            self._disown(card, said, describe(worst))
            return
        said["errors"] = {name: error.words for name, error in failed.items()}
        for values in card.kept.values():
            said.update(values)

    @staticmethod
    def _disown(card: Card, said: dict[str, Any], words: str) -> None:
        """Nothing that it said before counts any more."""
        card.kept, card.due, card.utilization = {}, {}, None
        index = said["index"]
        said.clear()
        said.update({"index": index, "errors": {"": words}, **card.identity})

    @staticmethod
    def _holders(card: Card, said: dict[str, Any]) -> None:
        """The processes on the card, and the memory they are part of."""
        rows: Values = {"mig": False}
        for name, read in (
            (_MIG, mig),
            ("memory", memory),
            ("processes", _processes),
        ):
            try:
                read(card, rows)
            except AbsentError:
                continue
            except CodeError as error:
                said["errors"][name] = error.words
        said.update(rows)

    def _happened(self, count: int) -> dict[str, Any]:
        return self._events.drained(self._usable(count))

    def _usable(self, count: int) -> Iterator[Card]:
        for index in range(count):
            with contextlib.suppress(Exception):  # one card's alone, and told with "cards"
                yield self._card(index)


def _processes(card: Card, values: Values) -> None:
    values["processes"] = processes(card)


def _due(card: Card, now: float) -> list[Look]:
    """Everything cheap, what is late by a period or was never read, and the longest due of more."""
    found, longest = [], None
    since = now
    for look in LOOKS:
        due = card.due.get(look.name, -inf)
        if now >= due + look.period:
            found.append(look)
        elif since > due:
            longest, since = look, due
    return found if longest is None else [longest, *found]


def _keep(card: Card, look: Look, values: Values, now: float, *, again: bool) -> None:
    card.due[look.name] = now + (min(look.period, _RETRY) if again else look.period)
    if look.period:
        card.kept[look.name] = values


def _described(handle: object) -> dict[str, str]:
    """Name and address, as far as they are told."""
    found: dict[str, str] = {}
    with contextlib.suppress(*_UNTOLD):
        found["name"] = _text(pynvml.nvmlDeviceGetName(handle))
    with contextlib.suppress(*_UNTOLD):
        domain, _, rest = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower().partition(":")
        found["bus_id"] = f"{domain[-_DOMAIN_DIGITS:]}:{rest}"
    return found


def _driver() -> dict[str, str]:
    """Versions, as far as they are told: nothing else depends on them."""
    facts: dict[str, str] = {}
    with contextlib.suppress(*_UNTOLD):
        facts["driver"] = _text(pynvml.nvmlSystemGetDriverVersion())
    with contextlib.suppress(*_UNTOLD):
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        facts["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    return facts


def _unexpected(error: Exception) -> str:
    """Its kind only: the words of a binding's error may call into the library again."""
    return f"cannot be understood: {type(error).__name__}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
