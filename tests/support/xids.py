"""A kernel log, cards and engines of a test's own making, around a real probe of Xids."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from probes._nvml.client import NvmlUnavailableError
from probes.xid import FIRST_PID_NAMESPACE, PROBE, Settings, Surroundings, XidProbe
from tests.support.engines import Engines
from watchdog.core.model import Event, ReadingTaken, Value
from watchdog.runner import ProbeRun

NO_CARDS = "/nonexistent"


@contextlib.contextmanager
def packets() -> Iterator[tuple[str, int]]:
    """The path of a pipe that hands out one write a read, as the kernel log does; and its end."""
    source, sink = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{source}", sink
    finally:
        os.close(source)
        os.close(sink)


@dataclass(frozen=True)
class Identity:
    """A card as the client names it."""

    index: int
    uuid: str
    bus_id: str


TWO = (Identity(0, "GPU-0", "0000:00:06.0"), Identity(1, "GPU-1", "0000:00:07.0"))


@dataclass
class Told:
    """A client that hands out its events once, or its trouble every time."""

    cards: tuple[Identity, ...] = TWO
    events: list[dict[str, Any]] = field(default_factory=list)
    supported: bool = True
    trouble: NvmlUnavailableError | None = None
    closed: int = 0
    given: float = 0.0

    def ask(self, request: str, deadline: float) -> dict[str, Any]:
        """The answer to "events"."""
        assert request == "events"
        self.given = deadline - time.monotonic()
        if self.trouble is not None:
            raise self.trouble
        events, self.events = self.events, []
        return {"events": events, "supported": self.supported}

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
) -> Iterator[Desk]:
    """A probe on a pipe that keeps records apart."""
    client, box, clock = client or Told(), box or Engines(), Clock()
    around = Surroundings(gpus=gpus, pid_namespace=lambda: namespace, clock=clock)
    with packets() as (path, sink):
        settings = settings or Settings()
        if settings.kmsg == Settings().kmsg:
            settings = Settings(settings.classes, path)
        probe = XidProbe(settings, box, client, around)
        try:
            yield Desk(probe, sink, client, box, clock)
        finally:
            probe.close()
