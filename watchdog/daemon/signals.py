"""What signals to the daemon mean. Their handlers only enqueue; this is asked by the loop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from watchdog import stops
from watchdog.core.model import Commanded, Mode, Verb
from watchdog.core.state import State
from watchdog.daemon.crew import Crew
from watchdog.inbox import Inbox, Signalled
from watchdog.logs import Journal
from watchdog.supervisor.household import Household

_SIGNALS = (*stops.STOPS, signal.SIGCHLD, signal.SIGHUP)


def enqueue(inbox: Inbox) -> None:
    """Turn the daemon's signals into events from now on, and the stops that came before.

    Held back meanwhile, so that none falls between the handlers of before and ours. What held them
    back before us did not mean us: its mask came with the process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for number in stops.kept():
        inbox.post(Signalled(number))
    for number in _SIGNALS:
        signal.signal(number, lambda got, _frame: inbox.post(Signalled(got)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@dataclass(slots=True)
class Signals:
    """``leave`` says that the engines are left serving at the end, and is set by a signal too."""

    published: Callable[[], State]
    crew: Crew
    household: Household
    journal: Journal
    hung_up: Callable[[], None]
    leave: bool = False

    def taken(self, number: int) -> Commanded | None:
        """The command that a signal stands for; None when it stands for none."""
        if number == signal.SIGCHLD:
            self.household.reap_orphans()
            return None
        if number == signal.SIGHUP:
            self.journal.reopen()
            self.hung_up()
            return None
        observing = self.published().mode is not Mode.ACT
        if number == signal.SIGQUIT or observing:
            self.leave = True
        if self.leave:
            self._let_be()
        verb = Verb.LEAVE if self.leave else Verb.SHUTDOWN
        return Commanded(time.monotonic(), verb, owner=signal.Signals(number).name)

    def _let_be(self) -> None:
        """A restart that still drains is not made; one that signals already starts anew first."""
        for name, engine in self.published().engines.items():
            if engine.in_flight == "restart_engine" and engine.pending is None:
                self.crew.engines[name].supervised.let_be()
