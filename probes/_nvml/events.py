"""The driver's own reports of Xid errors. Only what happened since they were asked for is told."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable
from typing import Any

import pynvml

from probes._nvml.card import Card
from probes._nvml.names import ALL_ONES_32

_XID = 0x8
_MOST = 64
_TIMEOUT = 10
_TRIES = 2


class Events:
    """One set of all cards that report. A broken set is dropped, and made anew when next asked."""

    def __init__(self) -> None:
        self._set: Any = None
        self._cards: dict[int | None, Card] = {}

    def drop(self) -> None:
        """Let go of the set. The library may have been shut down already."""
        events, self._set = self._set, None
        if events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)

    def drained(self, cards: Iterable[Card]) -> dict[str, Any]:
        """``{"events": [...], "supported": bool}``; waits for nothing."""
        listed = tuple(cards)
        for _ in range(_TRIES):
            if self._set is None:
                self._register(listed)
        if self._set is None:
            return {"events": [], "supported": False}
        return {"events": self._waiting(), "supported": True}

    def _register(self, cards: tuple[Card, ...]) -> None:
        """A set with every card that can; none when none can."""
        try:
            events = pynvml.nvmlEventSetCreate()
        except (pynvml.NVMLError, AttributeError):
            return
        self._cards = {}
        for card in cards:
            with contextlib.suppress(pynvml.NVMLError, AttributeError):
                if pynvml.nvmlDeviceGetSupportedEventTypes(card.handle) & _XID:
                    pynvml.nvmlDeviceRegisterEvents(card.handle, _XID, events)
                    self._cards[_address(card.handle)] = card
        self._set = events
        if not self._cards:
            self.drop()

    def _waiting(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for _ in range(_MOST):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError as error:
                if int(error.value) != _TIMEOUT:
                    self.drop()
                break
            if event.eventType == _XID:
                found.append({**self._who(event.device), "xid": int(event.eventData)})
                found[-1].update(gi=_instance(event.gpuInstanceId))
                found[-1].update(ci=_instance(event.computeInstanceId))
        return found

    def _who(self, device: object) -> dict[str, str]:
        """The card, "" when the driver reports one that was not asked about."""
        card = self._cards.get(_address(device))
        known = {} if card is None else card.identity
        return {key: known.get(key, "") for key in ("uuid", "bus_id")}


def _address(handle: Any) -> int | None:  # noqa: ANN401
    return ctypes.cast(handle, ctypes.c_void_p).value


def _instance(number: int) -> int | None:
    return None if number == ALL_ONES_32 else int(number)
