"""A kernel log, cards and engines of a test's own making, around a real probe of Xids."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from probes._nvml.client import CardIdentity, NvmlUnavailableError
from probes._nvml.namespaces import FIRST_PID_NAMESPACE
from probes.xid import PROBE, Settings, Surroundings, XidProbe
from tests.support.engines import Engines
from watchdog.core.model import Event, ReadingTaken, Value
from watchdog.runner import ProbeRun

NO_CARDS = "/nonexistent"
ELSEWHERE = "pid:[4026532000]"
CLASSES = ("application", "reset", "reboot", "hardware", "ignored")
FAULT = (
    "NVRM: Xid (PCI:0000:00:06): 31, pid=1796, name=oob, channel 0x0000000a, intr 00000000. "
    "MMU Fault: ENGINE GRAPHICS GPC1 faulted"
)
GPU0 = ("gpu/GPU-0", "class_errors", "0", "GPU-0")
GPU1 = ("gpu/GPU-1", "class_errors", "1", "GPU-1")
ENGINE = ("engine/main", "engine_errors", "main")


@contextlib.contextmanager
def packets() -> Iterator[tuple[str, int]]:
    """The path of a pipe that hands out one write a read, as the kernel log does; and its end."""
    source, sink = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{source}", sink
    finally:
        os.close(source)
        os.close(sink)


TWO = (CardIdentity(0, "GPU-0", "0000:00:06.0"), CardIdentity(1, "GPU-1", "0000:00:07.0"))
NO_DRIVER = NvmlUnavailableError("cannot read any GPU: no driver")


@dataclass
class Told:
    """A client that hands out its events once, or its error every time.

    ``named`` is the answer to "cards": None is one that does not come in time.
    """

    cards: tuple[CardIdentity, ...] = TWO
    events: list[dict[str, Any]] = field(default_factory=list)
    supported: bool = True
    error: NvmlUnavailableError | None = None
    named: tuple[CardIdentity, ...] | None = None
    closed: int = 0
    given: float = 0.0
    asked: list[str] = field(default_factory=list)
    unanswered_since: float | None = None

    @property
    def trouble(self) -> str:
        """The error in words."""
        return "" if self.error is None else str(self.error)

    def ask(self, request: str, deadline: float) -> dict[str, Any]:
        """The answer to "events" or "cards"."""
        self.asked.append(request)
        self.given = deadline - time.monotonic()
        if self.error is not None:
            raise self.error
        if request == "cards":
            return self._cards()
        events, self.events = self.events, []
        return {"events": events, "supported": self.supported}

    def _cards(self) -> dict[str, Any]:
        if self.named is None:
            raise NvmlUnavailableError("cannot read any GPU: there is no time left")
        self.cards = self.named or self.cards
        return {"gpus": [dataclasses.asdict(card) for card in self.named]}

    def close(self) -> None:
        """Given back."""
        self.closed += 1

    def happens(self, xid: object, bus_id: str = "0000:00:06.0", **more: object) -> None:
        """An event."""
        uuid = next((card.uuid for card in self.cards if card.bus_id == bus_id), "")
        event = {"uuid": uuid, "bus_id": bus_id, "xid": xid, "gi": None, "ci": None}
        self.events.append(event | more)


@dataclass
class Clock:
    """Time as the test wants it."""

    now: float = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


Found = dict[tuple[str, ...], Value]
"""Subject, name and the values of all labels, to value."""


def classes(found: Found, *card: str) -> dict[str, Value]:
    """The classes that are not zero, and all of them are there."""
    counts = {kind: found[(*card, kind)] for kind in CLASSES}
    return {kind: count for kind, count in counts.items() if count}


@dataclass
class Desk:
    """A probe with everything around it at hand."""

    probe: XidProbe
    sink: int
    client: Told
    box: Engines
    clock: Clock
    seq: int = 0

    def says(self, text: str, facility: int = 0, skipped: int = 0) -> None:
        """A line in the kernel log, now."""
        self.seq += 1 + skipped
        prefix = f"{facility * 8 + 3},{self.seq},{int(self.clock.now * 1e6)},-;"
        os.write(self.sink, f"{prefix}{text}\n".encode())

    def read(self) -> Found:
        """One reading through the runner, which refuses what is not declared; a second passes."""
        posted: list[Event] = []
        run = ProbeRun(PROBE, self.probe, None, None, posted.append)
        run.run()
        self.clock.now += 1
        (event,) = posted
        assert isinstance(event, ReadingTaken)
        assert event.reading.error is None
        assert event.reading.unread == ()
        found = {}
        for one in event.reading.samples:
            key = (str(one.subject), one.sample, *(value for _, value in one.labels))
            assert key not in found
            found[key] = one.value
        return found


@contextlib.contextmanager
def desk(
    client: Told | None = None,
    box: Engines | None = None,
    settings: Settings | None = None,
    namespace: str = FIRST_PID_NAMESPACE,
    gpus: str = NO_CARDS,
    *,
    fresh: bool = False,
) -> Iterator[Desk]:
    """A probe on a pipe that keeps records apart; unless ``fresh``, it was read once before."""
    client, box, clock = client or Told(), box or Engines(), Clock()
    around = Surroundings(gpus=gpus, pid_namespace=lambda: namespace, clock=clock)
    with packets() as (path, sink):
        settings = settings or Settings()
        if settings.kmsg == Settings().kmsg:
            settings = Settings(settings.classes, path)
        probe = XidProbe(settings, box, client, around)
        try:
            at = Desk(probe, sink, client, box, clock)
            if not fresh:
                at.read()
            yield at
        finally:
            probe.close()
