"""The leader's end of one engine: requests out, tokens in, and the news of its death."""

import os
import select
import signal
import threading
import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from watchdog.simulator.counters import Counters
from watchdog.simulator.faults import Value
from watchdog.simulator.wire import Channel, Message

DEAD = "dead"
"""The item that ends a ticket whose engine died; other items: None (a token) or a reason."""


@dataclass(slots=True)
class Ticket:
    """One request that the leader waits for; items come in the order of the tokens."""

    name: str
    prompt: int
    client: "EngineClient"
    arrived: float = field(default_factory=time.monotonic)
    last: float = 0.0
    items: SimpleQueue[str | None] = field(default_factory=SimpleQueue)


class OnDeath(Protocol):
    """Called once; ``announced`` when the engine said so itself, as after a worker's death."""

    def __call__(self, engine: "EngineClient", /, *, announced: bool) -> None:
        """The engine is dead."""


class EngineClient:
    """One EngineCore as the leader sees it."""

    def __init__(self, rank: int, pid: int, channel: Channel) -> None:
        self.rank, self.pid = rank, pid
        self.pidfd = os.pidfd_open(pid)
        self.worker_pidfds: list[int] = []
        self.counters = Counters()
        self.dead = False
        self._channel = channel
        self._tickets: dict[str, Ticket] = {}
        self._on_death: OnDeath | None = None

    def wait_ready(self, seconds: float) -> bool | None:
        """True when ready, None when not yet, False when it died instead."""
        readable, _, _ = select.select([self._channel.fileno(), self.pidfd], [], [], seconds)
        if not readable:
            return None
        if self._channel.fileno() not in readable:
            return False
        try:
            messages = self._channel.receive()
        except EOFError:
            return False
        for message in messages:
            if "workers" in message:
                self.worker_pidfds = [os.pidfd_open(pid) for pid in message["workers"]]
                return True
        return False

    def watch(self, on_death: OnDeath) -> None:
        """Start the threads that read what the engine reports and that wait for its end."""
        self._on_death = on_death
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    # --- requests -----------------------------------------------------------------------------

    def submit(self, name: str, prompt: int, limit: int) -> Ticket:
        """Hand a request to the engine."""
        ticket = Ticket(name, prompt, self)
        self._tickets[name] = ticket
        self._channel.send({"do": "add", "name": name, "prompt": prompt, "limit": limit})
        return ticket

    def abort(self, ticket: Ticket) -> None:
        """The client is gone."""
        self._tickets.pop(ticket.name, None)
        self._channel.send({"do": "abort", "name": ticket.name})

    def outstanding(self) -> int:
        """Requests that are not finished."""
        return len(self._tickets)

    def set_fault(self, name: str, value: Value) -> None:
        """Pass a fault on."""
        self._channel.send({"do": "set", "name": name, "value": value})

    def clear_fault(self, name: str) -> None:
        """Clear a fault; a stopped process needs SIGCONT to hear of it."""
        if name == "hang":
            self.signal(signal.SIGCONT)
        if name == "hang_worker":
            for pidfd in self.worker_pidfds:
                _send(pidfd, signal.SIGCONT)
        self._channel.send({"do": "clear", "name": name})

    # --- processes ----------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        """Signal EngineCore, if it lives."""
        _send(self.pidfd, number)

    def kill(self) -> None:
        """SIGKILL to EngineCore and its workers."""
        for pidfd in (self.pidfd, *self.worker_pidfds):
            _send(pidfd, signal.SIGKILL)

    def wait_gone(self, seconds: float) -> None:
        """Wait until EngineCore and its workers have ended; does not reap."""
        deadline = time.monotonic() + seconds
        for pidfd in (self.pidfd, *self.worker_pidfds):
            select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))

    def _wait_for_end(self) -> None:
        select.select([self.pidfd], [], [])
        self._died(announced=False)

    def _died(self, *, announced: bool) -> None:
        if self.dead:
            return
        self.dead = True
        if self._on_death:
            self._on_death(self, announced=announced)

    def fail_all(self) -> None:
        """End every ticket: nobody will answer."""
        for ticket in list(self._tickets.values()):
            ticket.items.put(DEAD)

    # --- reports ------------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            try:
                messages = self._channel.receive()
            except EOFError:
                return
            for message in messages:
                if "dead" in message:
                    self._died(announced=True)
                elif "out" in message:
                    self._account(message)

    def _account(self, message: Message) -> None:
        prompt = tokens = 0
        done: list[tuple[Ticket, str | None]] = []
        with self.counters.lock:
            self.counters.set_gauges(message["gauges"])
            for name, reason in message["out"]:
                if reason == "abort":
                    self.counters.finished["abort"] += 1
                    continue
                tokens += 1
                if (ticket := self._tickets.get(name)) is not None:
                    prompt += 0 if ticket.last else ticket.prompt
                    self._observe(ticket, reason)
                    done.append((ticket, reason))
            phantom = message["phantom"]
            if tokens or phantom:
                self.counters.iteration(prompt + phantom // 16, tokens + phantom)
                self.counters.finished["length"] += phantom // 16
        for ticket, reason in done:
            ticket.items.put(reason)

    def _observe(self, ticket: Ticket, reason: str | None) -> None:
        now = time.monotonic()
        if ticket.last:
            self.counters.between_tokens.observe(now - ticket.last)
        else:
            self.counters.first_token.observe(now - ticket.arrived)
        ticket.last = now
        if reason is not None:
            self._tickets.pop(ticket.name, None)
            self.counters.finished[reason] += 1
            self.counters.latency.observe(now - ticket.arrived)


def _send(pidfd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
