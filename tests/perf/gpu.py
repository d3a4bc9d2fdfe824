"""What reading cards costs: one look of the 1 s set at 1 to 16 cards, in CPU time.

All workers are asked side by side once a second, as the probe does it, so that costly looks come as
seldom as they really do. A fake library stands for the driver, once with the times that an H200 was
recorded with and once without: waits below 100 µs are spun away in it, and are CPU that a driver
would spend; longer ones are slept.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from probes._nvml.client import NvmlClient
from probes.gpu import Gpu
from tests.gpu.measure import CARDS
from tests.gpu.measure import cpu as cpu_exactly
from tests.perf.table import head, line, pss
from tests.support import fake_nvml

WARM_UP = 3
SECONDS = 60
HOT = 60
_PATIENCE = 60.0
_PAUSE = 0.005
"""Seconds after a read in which its worker goes to sleep."""
_MS = 1000


@dataclass
class Asked:
    """One worker in front of so many cards, and what each second cost: CPU milliseconds."""

    cards: int
    slow: bool
    client: NvmlClient
    worker: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    before: float = 0.0

    def ask(self) -> None:
        """One read of the probe; books what the worker spent since the one before."""
        began = time.thread_time()
        read = list(Gpu(self.client).read(time.monotonic() + _PATIENCE))
        self.ours.append((time.thread_time() - began) * _MS)
        if len(read) < self.cards:
            raise RuntimeError("the fake library does not answer")

    def book(self) -> None:
        """Note what the worker has spent so far: after its pause, not while it still writes."""
        now = cpu_exactly(self.client.pids[0])
        self.worker.append((now - self.before) * _MS)
        self.before = now

    def forget(self) -> None:
        """Begin to count here."""
        self.worker.clear()
        self.ours.clear()

    @property
    def totals(self) -> list[float]:
        """Worker and client together, by second."""
        return [a + b for a, b in zip(self.worker, self.ours, strict=True)]

    @property
    def mean(self) -> float:
        """What a read costs over a long time, with its share of the costly looks."""
        return statistics.mean(self.totals)


def sweeps() -> None:
    """Measure and print the table of all numbers of cards."""
    with contextlib.ExitStack() as stack:
        pairs = [(cards, slow) for slow in (True, False) for cards in CARDS]
        everyone = [stack.enter_context(_asked(cards, slow=slow)) for cards, slow in pairs]
        _live(everyone)
        print(f"\nReading cards once a second, CPU ms, {SECONDS} reads after {WARM_UP} more;")
        print(f"hot: {HOT} reads {_PAUSE * _MS:.0f} ms apart. The fake library.\n")
        head("driver", "cards", "worker", "client", "both", "mean", "mean a card", "max", "hot")
        means = {(asked.cards, asked.slow): asked.mean for asked in everyone}
        for asked in everyone:
            _tell(asked)
        for slow in (True, False):
            _fit(slow, {cards: mean for (cards, its), mean in means.items() if its is slow})
        few, many = everyone[-len(CARDS)], everyone[-1]
        memory = " and ".join(f"{pss(one.client.pids):.1f}" for one in (few, many))
        print(f"\nPSS of the worker with {few.cards} and {many.cards} cards: {memory} MiB.\n")


def _tell(asked: Asked) -> None:
    totals = asked.totals
    figures = (
        statistics.median(asked.worker),
        statistics.median(asked.ours),
        statistics.median(totals),
        asked.mean,
        asked.mean / asked.cards,
        max(totals),
        _hot(asked),
    )
    line(_driver(asked.slow), asked.cards, *(f"{value:.2f}" for value in figures))


def _driver(slow: bool) -> str:  # noqa: FBT001 - which of two rows
    return "as recorded" if slow else "no latency"


def _hot(asked: Asked) -> float:
    """The median cost of reads that follow one another: caches are warm, the core is awake."""
    asked.forget()
    for _ in range(HOT):
        asked.ask()
        time.sleep(_PAUSE)
        asked.book()
    return statistics.median(asked.totals[1:])


def _fit(slow: bool, means: dict[int, float]) -> None:  # noqa: FBT001 - which of two rows
    """The straight line through the means, and how far they are from it."""
    slope, start = statistics.linear_regression(list(means), list(means.values()))
    off = max(abs(start + slope * cards - mean) / mean for cards, mean in means.items())
    print(f"\n{_driver(slow)}: {start:.2f} ms + {slope:.2f} ms a card; ", end="")
    print(f"no mean is further than {off:.0%} from that line.")


def _live(everyone: list[Asked]) -> None:
    """Ask all once a second; the first looks of all are not counted."""
    begin = time.monotonic()
    for second in range(WARM_UP + SECONDS + 1):
        time.sleep(max(0.0, begin + second - time.monotonic()))
        for asked in everyone:
            if second > 0:
                asked.book()
            if second == WARM_UP:
                asked.forget()
            if second < WARM_UP + SECONDS:
                asked.ask()


@contextlib.contextmanager
def _asked(cards: int, *, slow: bool) -> Iterator[Asked]:
    with tempfile.TemporaryDirectory() as folder:
        fake = fake_nvml.build(Path(folder))
        fake.cards = cards
        times = fake_nvml.from_recording(fake_nvml.RECORDINGS["load"], latencies=True)
        fake.set(times if slow else {})
        with fake_nvml.asking(fake.environment) as client:
            yield Asked(cards, slow, client)


if __name__ == "__main__":
    sweeps()
