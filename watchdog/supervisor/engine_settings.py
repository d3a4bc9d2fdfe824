"""What one engine under supervision is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from watchdog.contracts import Endpoint
from watchdog.core.model import Event
from watchdog.ledger import Ledger
from watchdog.supervisor.cgroup import Limits
from watchdog.supervisor.exits import ExitWatch
from watchdog.supervisor.gate import GateStep, Whose
from watchdog.supervisor.hooks import Hook
from watchdog.supervisor.household import Household
from watchdog.supervisor.ladder import RunningRequests, StopSettings, unknown_requests
from watchdog.supervisor.spawn import Launch


def _nothing(_: str) -> None:
    """Nobody is told."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all engines of one daemon share. ``warn`` takes one line for the journal.

    ``whose`` tells whose a process is that is in the way; None: nobody can.
    """

    household: Household
    exit_watch: ExitWatch
    ledger: Ledger
    notify: Callable[[Event], None]
    warn: Callable[[str], None] = _nothing
    whose: Whose | None = None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What to run, where it answers, how long a stop may take, and further gate steps.

    ``before`` are steps that are taken before anybody looks whether the port is free, ``gate``
    those behind it, ``last`` those behind the hooks of ``pre_start``, which may change what is on
    the disk. ``withdraw`` is called at the beginning of a stop that drains: no new requests.
    ``unwanted`` says that nobody wants the start that is under way any more.
    """

    launch: Launch
    endpoint: Endpoint
    stop: StopSettings = field(default_factory=StopSettings)
    gate: tuple[GateStep, ...] = ()
    before: tuple[GateStep, ...] = ()
    last: tuple[GateStep, ...] = ()
    running_requests: RunningRequests = unknown_requests
    expect_log: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    pre_start: tuple[Hook, ...] = ()
    post_stop: tuple[Hook, ...] = ()
    withdraw: Callable[[], object] = lambda: None
    unwanted: Callable[[], bool] = _never
