"""Asks the worker for everybody, and walks away from it when it hangs.

Two processes at most ever hang in a dead driver: one that was left behind, and the present worker.
The latter is kept when it hangs too: its late answer is awaited and thrown away, and until it has
come nothing more is asked. Every further process could hold one more lock in the driver.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from probes._nvml.process import DeadError, NoAnswerError, Worker
from watchdog.core.model import Seconds

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("worker.py")))
"""The command line of the worker: a file, and no import from wherever the daemon was started."""

_LONG_REST: Seconds = 60.0
"""After "no driver" nothing is started for this long: it costs CPU, and drivers do not appear."""
_SHORT_REST: Seconds = 5.0
"""After any other error at the start, which may pass by itself."""
_NO_DRIVER = frozenset({9, 12})
"""NVML's codes for "driver not loaded" and "library not found"."""
_ATTACH: Seconds = 20.0
"""How long the first answer may take, in all: without persistence mode every card is initialised
first, which takes seconds a card, and a new worker would begin again. The next one has longer."""
_LONGER = 2
_LONGEST = 3
"""How many times ``_ATTACH`` that may grow to: a slow box gets through in the end, and one whose
driver has recovered meanwhile is not kept waiting for minutes."""
_GRACE: Seconds = 0.5
_MOST_HUNG = 2
PREFIX = "cannot read any GPU: "
"""What every error begins with; NVML's own words follow."""
_NO_TIME = f"{PREFIX}there is no time left"
_LATE = f"{PREFIX}no answer in time"
_SILENT = f"{PREFIX}the driver does not respond"


class NvmlUnavailableError(Exception):
    """NVML cannot be read at all. One line."""


class NvmlHungError(NvmlUnavailableError):
    """The driver did not answer in time."""


@dataclass(frozen=True, slots=True)
class CardIdentity:
    """Which card it is; ``bus_id`` as the kernel writes it: ``0000:00:06.0``."""

    index: int
    uuid: str
    bus_id: str


class Asks(Protocol):
    """What probes use of ``NvmlClient``, which says what each of it means."""

    @property
    def trouble(self) -> str:
        """Why the last request was not answered, "" when it was."""
        ...

    @property
    def unanswered_since(self) -> Seconds | None:
        """When the first of the present row of hanging requests began."""
        ...

    @property
    def cards(self) -> tuple[CardIdentity, ...]:
        """The cards that were named last."""
        ...

    def ask(self, request: str, deadline: Seconds) -> dict[str, Any]:
        """The answer to one request; raises NvmlUnavailableError."""
        ...

    def close(self) -> None:
        """Give the client back."""
        ...


@dataclass(frozen=True, slots=True)
class _Standing:
    """How it went last; replaced as a whole, so that the two always belong together."""

    trouble: str = ""
    unanswered_since: Seconds | None = None


def _identities(answer: Mapping[str, Any]) -> tuple[CardIdentity, ...]:
    return tuple(
        CardIdentity(int(said["index"]), str(said["uuid"]), str(said["bus_id"]))
        for said in answer.get("gpus", ())
        if "uuid" in said and "bus_id" in said
    )


class Conversation:
    """One worker at a time, replaced when it must be. Safe from any thread; one request at a time.

    ``rest`` is the pause after "no driver", and the longest after any other error; ``attach`` is
    how long the first worker may take to answer at all.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        env: Mapping[str, str] | None,
        rest: Seconds,
        left: tuple[Worker, ...] = (),
        attach: Seconds = _ATTACH,
    ) -> None:
        self._argv, self._env, self._rest = argv, env, rest
        self._worker: Worker | None = None
        self._left = left
        self._rest_until: Seconds = 0.0
        self._attach = self._patience = attach
        self._turn = threading.Lock()
        self._closed = False
        self._telling = threading.Lock()
        self._standing = _Standing()
        self._answered_at: Seconds = 0.0
        self.cards: tuple[CardIdentity, ...] = ()

    def ask(self, request: str, deadline: Seconds) -> dict[str, Any]:
        """See NvmlClient."""
        began = time.monotonic()
        if not self._turn.acquire(timeout=max(0.0, deadline - began)):
            self._hung(_LATE, began)
        try:
            began = time.monotonic()
            if began < self._rest_until:
                raise NvmlUnavailableError(self.trouble)
            if self._closed or began >= deadline:
                raise NvmlUnavailableError(_NO_TIME)
            answer = self._answered(request, deadline, began)
            self._settle("")
            self.cards = _identities(answer) or self.cards
            return answer
        finally:
            self._turn.release()

    def _answered(self, request: str, deadline: Seconds, began: Seconds) -> dict[str, Any]:
        worker = self._running(began)
        try:
            answer = worker.request(request, deadline)
        except NoAnswerError:
            self._late(worker, began)
        except DeadError:
            self._died(worker)
        self._patience = self._attach
        if "error" in answer:
            long = answer.get("code") in _NO_DRIVER
            self._pause(str(answer["error"]), self._rest if long else min(self._rest, _SHORT_REST))
        return answer

    def _running(self, began: Seconds) -> Worker:
        self._look_back()
        if len(self._left) >= _MOST_HUNG:
            self._hung(_SILENT, began)
        if self._worker is not None and not self._worker.alive():
            self._discard()
        if self._worker is None:
            try:
                self._worker = Worker(self._argv, self._env)
            except OSError as error:
                self._fail(f"cannot start the NVML worker: {error.strerror}")
        if self._closed:  # meanwhile: ``close`` may not have seen the one just started
            self._discard()
            raise NvmlUnavailableError(_NO_TIME)
        return self._worker

    def _look_back(self) -> None:
        """Reap what was left behind; the driver may have let go of it, and something else not."""
        for worker in self._left:
            worker.kill()
        self._left = tuple(worker for worker in self._left if worker.alive())

    def _late(self, worker: Worker, began: Seconds) -> NoReturn:
        """Keep one that still attaches or would be the second to hang, else be rid of it."""
        self._look_back()
        waited = time.monotonic() - worker.started_at
        attaching = not worker.proven and waited < self._patience
        words = _SILENT if self._left else _LATE
        second = bool(self._left) and worker.in_driver()
        if self._closed or not (attaching or second):
            if not worker.proven:
                self._patience = min(self._patience * _LONGER, self._attach * _LONGEST)
            self._discard()
        self._hung(words, began)

    def _discard(self) -> None:
        """End the worker, and remember it if it cannot be ended."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()
            if worker.alive():
                self._left = (*self._left, worker)

    def _died(self, worker: Worker) -> NoReturn:
        """Start another at the next request, unless this one never got as far as an answer."""
        if not worker.proven:
            self._pause("the NVML worker dies at once", min(self._rest, _SHORT_REST))
        self._discard()
        self._fail(f"{PREFIX}the NVML worker died")

    def _pause(self, why: str, rest: Seconds) -> NoReturn:
        """The worker ends, and nothing is tried for a while."""
        self._discard()
        self._rest_until = time.monotonic() + rest
        self._fail(f"{PREFIX}{why}")

    def _fail(self, words: str) -> NoReturn:
        self._settle(words)
        raise NvmlUnavailableError(words)

    def _settle(self, trouble: str) -> None:
        """Something was said, be it an error: nobody waits in vain any more."""
        with self._telling:
            self._answered_at = time.monotonic()
            self._standing = _Standing(trouble)

    def _hung(self, words: str, began: Seconds) -> NoReturn:
        """Who waited for a turn while others were answered has nothing to say about the driver."""
        with self._telling:
            if self._answered_at <= began:
                since = self._standing.unanswered_since
                self._standing = _Standing(words, began if since is None else since)
        raise NvmlHungError(words)

    @property
    def trouble(self) -> str:
        """See NvmlClient."""
        return self._standing.trouble

    @property
    def unanswered_since(self) -> Seconds | None:
        """See NvmlClient."""
        return self._standing.unanswered_since

    @property
    def pids(self) -> tuple[int, ...]:
        """The worker and the one that was left behind, as far as they live."""
        worker = self._worker
        known = self._left if worker is None else (worker, *self._left)
        return tuple(child.pid for child in known if child.alive())

    @property
    def survivors(self) -> tuple[Worker, ...]:
        """After ``close``: those that could not be ended."""
        return self._left if self._worker is None else (*self._left, self._worker)

    def close(self) -> None:
        """End the worker, for good. Takes a second at most."""
        self._closed = True
        worker = self._worker
        if worker is not None:
            worker.kill()
        if self._turn.acquire(timeout=_GRACE):  # its pipes belong to the thread that reads them
            self._discard()
            self._turn.release()


class NvmlClient:
    """What probes ask. Safe from any thread.

    ``env`` None hands on the environment as it is. ``retry`` is the rest in seconds after "no
    driver", ``attach`` how long the first worker may take to answer at all. ``shared`` is for
    ``lease``: then the worker is not this client's alone.
    """

    def __init__(
        self,
        argv: tuple[str, ...] = WORKER,
        env: Mapping[str, str] | None = None,
        retry: Seconds = _LONG_REST,
        shared: Conversation | None = None,
        attach: Seconds = _ATTACH,
    ) -> None:
        self._leased = shared is not None
        self._talk = shared or Conversation(argv, env, retry, attach=attach)
        self._closed = False

    def ask(self, request: str, deadline: Seconds) -> dict[str, Any]:
        """The answer to "cards", "processes" or "events" before ``deadline`` (CLOCK_MONOTONIC).

        One request at a time: waiting for one's turn counts. Raises NvmlHungError when nothing
        came in time, its base NvmlUnavailableError for everything else.
        """
        if self._closed:
            raise NvmlUnavailableError(_NO_TIME)
        return self._talk.ask(request, deadline)

    @property
    def trouble(self) -> str:
        """Why the last request of anybody was not answered, one line; "" when it was."""
        return self._talk.trouble

    @property
    def unanswered_since(self) -> Seconds | None:
        """When the first of the present row of hanging requests began; None when NVML answers.

        An error of NVML's is an answer too. CLOCK_MONOTONIC.
        """
        return self._talk.unanswered_since

    @property
    def cards(self) -> tuple[CardIdentity, ...]:
        """The cards of the last answer of anybody that named any, lost ones included."""
        return self._talk.cards

    @property
    def pids(self) -> tuple[int, ...]:
        """The living worker, and the one that was left behind in the driver: two at most."""
        return self._talk.pids

    def close(self) -> None:
        """Give it back, for good; the last one ends the worker. Takes a second at most."""
        closed, self._closed = self._closed, True
        if not self._leased:
            self._talk.close()
        elif not closed:
            _LEASES.give_back()


class _Leases:
    """The worker that all probes of this process share, as long as one of them uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._talk: Conversation | None = None

    def lend(self) -> NvmlClient:
        with self._lock:
            if self._talk is None or not self._count:
                left = () if self._talk is None else self._talk.survivors
                self._talk = Conversation(WORKER, None, _LONG_REST, left)
            self._count += 1
            return NvmlClient(shared=self._talk)

    def give_back(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._talk is not None:
                self._talk.close()


_LEASES = _Leases()


def lease() -> NvmlClient:
    """The client that all probes of this process share. Each holder closes the one it got."""
    return _LEASES.lend()
