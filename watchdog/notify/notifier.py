"""Finds the news in what the core did, and hands them to the receivers."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Protocol

from watchdog.config import Config, NotifySettings, listen_address
from watchdog.core.model import Event, Incident, Seconds, SubjectKind
from watchdog.core.state import State, Step
from watchdog.notify.notices import Notice, first, following
from watchdog.notify.receiver import Receiver, Tally

_PARTING: Seconds = 2.0
"""For what is told last. A shutdown does not wait longer for somebody who does not listen."""

_PLACED_IN: Seconds = 60.0
"""By then a card that is there has been read; an alert outlives that unrepeated."""


class Log(Protocol):
    """``Journal.log``."""

    def __call__(self, level: str, event: str, /, **keys: object) -> None:
        """Write one line."""
        ...


class Notifier:
    """``observe`` is called by the loop after each step and only compares and enqueues.

    All of it is for the loop's thread, or for that of the daemon before and after the loop runs.
    ``instance`` names this daemon among others: ``HOST:PORT``. With ``use({})``, as at first,
    nobody is told anything.
    """

    def __init__(self, log: Log, tally: Tally, instance: str) -> None:
        self._log = log
        self._tally = tally
        self._instance = instance
        self._receivers: dict[str, Receiver] = {}
        self._seen: tuple[Incident, ...] = ()
        self._known: dict[str, tuple[Incident, Notice]] = {}
        self._unplaced: dict[str, Incident] = {}
        self._place_by: Seconds = 0.0

    @classmethod
    def begun(cls, config: Config, log: Log, tally: Tally, state: State) -> Notifier:
        """One with the receivers of ``config``, who are told of what is open in ``state``."""
        _, port = listen_address(config.watchdog.listen)
        one = cls(log, tally, f"{socket.gethostname()}:{port}")
        one.use(config.notify)
        one.recall(state)
        return one

    def use(self, settings: Mapping[str, NotifySettings]) -> None:
        """The receivers from now on; those that stay as they are keep what waits for them."""
        for name, one in tuple(self._receivers.items()):
            if settings.get(name) != one.settings:
                one.end(time.monotonic() + _PARTING)
                del self._receivers[name]
        for name, wanted in settings.items():
            if name not in self._receivers:
                self._receivers[name] = Receiver(name, wanted, self._log, self._tally)
                self._bring_up_to_date(self._receivers[name])

    def recall(self, state: State) -> None:
        """Take over incidents of an earlier watchdog: a webhook was told of them by that one.

        Whose a card is shows with its first reading: until then nothing is told of it, as another
        engine would make it another alert.
        """
        self._seen = state.incidents
        self._unplaced = {one.id: one for one in self._seen if one.resolved_at is None}
        self._place_by = time.monotonic() + _PLACED_IN
        self._place(state)

    def observe(self, _: Event, step: Step) -> None:
        """Tell of what a step has opened, made graver or closed."""
        if self._unplaced:
            self._place(step.state)
        if step.state.incidents is self._seen:
            return
        self._seen = step.state.incidents
        for incident in self._seen:
            self._look_at(incident, step.state)

    def close(self, timeout: Seconds = _PARTING) -> None:
        """Let what waits be told, all receivers within ``timeout`` seconds, and end.

        Alerts that are open stay open at an Alertmanager, for as long as they live unrepeated.
        """
        by = time.monotonic() + timeout
        for one in self._receivers.values():
            one.end(by)
        for one in self._receivers.values():
            one.join(by)

    def _place(self, state: State) -> None:
        """Take those up of which it is known, or will never be, whom they concern."""
        now, wall = time.monotonic(), time.time()
        as_they_are = {one.id: one for one in state.incidents}
        for one in tuple(self._unplaced.values()):
            waits = one.subject.kind is SubjectKind.GPU and one.subject not in state.cards
            if waits and now < self._place_by and as_they_are.get(one.id) is one:
                continue
            del self._unplaced[one.id]
            notice = first(state, one, self._instance, now, wall)
            self._known[one.id] = one, notice
            for receiver in self._receivers.values():
                receiver.offer(notice.repeated())

    def _look_at(self, incident: Incident, state: State) -> None:
        known = self._known.get(incident.id)
        if known is not None and known[0] is incident:
            return
        now, wall = time.monotonic(), time.time()
        if known is not None:
            notice = following(known[1], incident, now, wall)
        elif incident.resolved_at is None:
            notice = first(state, incident, self._instance, now, wall)
        else:
            return
        if notice.is_open:
            self._known[incident.id] = incident, notice
        else:
            self._known.pop(incident.id)
        for receiver in self._receivers.values():
            receiver.offer(notice)

    def _bring_up_to_date(self, receiver: Receiver) -> None:
        """Whoever keeps alerts alive has to know all that are open."""
        for _, notice in self._known.values():
            receiver.offer(notice.repeated())
