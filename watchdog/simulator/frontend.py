"""What the HTTP threads and the leader's main thread share: engines, faults, phase, counts."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from watchdog.simulator.engine_client import EngineClient, Ticket
from watchdog.simulator.faults import CORE_FAULTS, Board, When, checked
from watchdog.simulator.log_lines import Log
from watchdog.simulator.options import Options


class Phase(StrEnum):
    """Where the leader is in its life."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    CLOSING = "closing"


class EngineDeadError(Exception):
    """The engine is dead: completions answer 500, /health 503."""


class NotAcceptingError(Exception):
    """The server drains: a new request answers 500."""


class Frontend:
    """The state of the API server."""

    def __init__(self, options: Options, log: Log) -> None:
        self.options, self.log = options, log
        self.board = Board(options.faults)
        self.engines: list[EngineClient] = []
        self.phase = Phase.LOADING
        self.on_fault: Callable[[str], None] = lambda _: None
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._open_requests = self._load = 0

    @property
    def dead(self) -> bool:
        """Whether any engine died."""
        return any(engine.dead for engine in self.engines)

    @property
    def load(self) -> int:
        """``server_load``: unfinished generations, 0 unless tracking was asked for."""
        return self._load if self.options.track_load else 0

    @property
    def open_requests(self) -> int:
        """HTTP requests that have no complete answer yet."""
        return self._open_requests

    @contextmanager
    def open_request(self, *, generation: bool) -> Iterator[None]:
        """Count a request while it is answered."""
        self._count(1, generation=generation)
        try:
            yield
        finally:
            self._count(-1, generation=generation)

    def _count(self, change: int, *, generation: bool) -> None:
        with self._lock:
            self._open_requests += change
            self._load += change * generation

    def submit(self, prompt: int, limit: int) -> Ticket:
        """A new generation on the engine with the fewest; raises when there is none."""
        if self.phase is not Phase.SERVING:
            raise NotAcceptingError
        if self.dead:
            raise EngineDeadError
        with self._lock:
            number = next(self._numbers)
            start = number % len(self.engines)
            order = self.engines[start:] + self.engines[:start]
        engine = min(order, key=EngineClient.outstanding)
        return engine.submit(f"cmpl-{number:016x}", prompt, limit)

    def outstanding(self) -> int:
        """Generations that are not finished."""
        return sum(engine.outstanding() for engine in self.engines)

    def put_fault(self, name: str, value: object) -> None:
        """Set a fault at run time; raises FaultError."""
        name, number = checked(name, value, When.RUN)
        self.board.put(name, number)
        if name in CORE_FAULTS:
            for engine in self.engines:
                engine.set_fault(name, number)
        self.on_fault(name)

    def drop_fault(self, name: str) -> bool:
        """Clear a fault; False when it was not in force."""
        if self.board.drop(name) is None:
            return False
        if name in CORE_FAULTS:
            for engine in self.engines:
                engine.clear_fault(name)
        return True
