"""The numbers behind ``/metrics``: changed only when the engine reports, as in vLLM."""

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence

TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SECOND_BUCKETS = (0.001, 0.01, 0.04, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0, 640.0)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Cumulative buckets, sum and count."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.bounds = tuple(buckets)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """One observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counters:
    """One engine's numbers; hold ``lock`` to change or to read several."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.created = time.time()
        self.running = self.waiting = 0
        self.usage = 0.0
        self.prompt_tokens = self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.iteration_tokens = Histogram(TOKEN_BUCKETS)
        self.first_token = Histogram(SECOND_BUCKETS)
        self.between_tokens = Histogram(SECOND_BUCKETS)
        self.latency = Histogram(SECOND_BUCKETS)

    def set_gauges(self, gauges: Sequence[float]) -> None:
        """Running, waiting, KV cache usage."""
        self.running, self.waiting, self.usage = int(gauges[0]), int(gauges[1]), gauges[2]

    def iteration(self, prompt: int, generated: int) -> None:
        """A step that emitted output; a step of a long prefill emits none and is not counted."""
        self.prompt_tokens += prompt
        self.generation_tokens += generated
        self.iteration_tokens.observe(prompt + generated)
