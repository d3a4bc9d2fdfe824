"""Continuous batching: which requests run, which wait, and who gets a token in a step. Pure."""

from collections import OrderedDict
from dataclasses import dataclass

MAX_RUNNING = 256
KV_CACHE_TOKENS = 65_536
PHANTOM_TOKENS = 256


@dataclass(slots=True)
class Request:
    """One generation; ``prefilled_at`` is on the clock of the caller, in seconds."""

    name: str
    prompt: int
    limit: int
    added_at: float
    prefilled_at: float
    made: int = 0

    def held(self, now: float) -> float:
        """Tokens of KV cache in use: a prefill fills it little by little."""
        if now >= self.prefilled_at:
            return self.prompt + self.made
        whole = max(self.prompt, KV_CACHE_TOKENS // 2)
        return whole * (now - self.added_at) / (self.prefilled_at - self.added_at)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the engine reports with a step; usage is a share of 1."""

    running: int
    waiting: int
    usage: float


Output = tuple[str, str | None]
"""Name of the request that got one token, and why it finished (None: it goes on)."""


class Batch:
    """The requests of one engine, in the order of their arrival."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """A new request."""
        self._requests[request.name] = request

    def abort(self, name: str) -> bool:
        """Forget a request; False when it is not known (any more)."""
        return self._requests.pop(name, None) is not None

    def step(self, now: float) -> list[Output]:
        """One token for every running request whose prefill is done."""
        return [self._advance(r) for r in self._running() if now >= r.prefilled_at]

    def gauges(self, now: float) -> Gauges:
        """The state after a step."""
        running = self._running()
        held = sum(request.held(now) for request in running)
        waiting = len(self._requests) - len(running)
        return Gauges(len(running), waiting, min(1.0, held / KV_CACHE_TOKENS))

    def _running(self) -> list[Request]:
        return list(self._requests.values())[:MAX_RUNNING]

    def _advance(self, request: Request) -> Output:
        request.made += 1
        if request.made < request.limit:
            return request.name, None
        del self._requests[request.name]
        return request.name, "length"
