"""What a drill is, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from watchdog.core.model import Seconds

if TYPE_CHECKING:
    from watchdog.drill.scene import Scene


class Where(StrEnum):
    """On what a drill can be run."""

    ANY = "any engine"
    SIMULATOR = "the simulated engine"
    OWN = "a daemon of its own"


class Verdict(StrEnum):
    """How it ended. ``refused``: nothing was injected; ``skipped``: it cannot be run here."""

    OK = "ok"
    MISSED = "missed"
    REFUSED = "refused"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Stage:
    """What a daemon of the drill's own has: flags of the simulated engine, and lines of TOML.

    With ``small_tmpfs`` the engine's temporary files are on a file system in memory that is small.
    """

    flags: tuple[str, ...] = ()
    config: str = ""
    ready: bool = True
    small_tmpfs: bool = False


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the fault to the first decision, to the last old process gone, to serving.

    None for what did not happen, or was not to happen.
    """

    detected: Seconds | None = None
    released: Seconds | None = None
    serving: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """What a daemon decided in an incident; ``first`` is when (seconds since the epoch).

    ``acted`` is false while it only held; ``waits`` when the last decision was to back off.
    """

    incident: str
    cause: str
    first: Seconds | None
    acted: bool
    words: str
    waits: bool


class MissedError(Exception):
    """What the table promises did not happen. One line."""


class RefusedError(Exception):
    """The drill cannot begin. One line; nothing was injected."""


class SkippedError(Exception):
    """This machine cannot run the drill. One line; nothing was injected."""


@dataclass(slots=True)
class Measured:
    """What is known so far; a drill fills it in, and it counts also when the drill is a miss."""

    times: Times = field(default_factory=Times)
    incident: str = ""


@dataclass(frozen=True, slots=True)
class Drill:
    """One row of the fault table.

    ``within`` is the bound in seconds from the fault to the decision; of a drill that nothing may
    follow, how long it is watched. ``restarts`` is how many restarts of the budget it spends.
    """

    id: str
    fault: str
    must: str
    within: Seconds
    where: Where
    run: Callable[[Scene], None]
    restarts: int = 0
    stage: Stage = Stage()


@dataclass(frozen=True, slots=True)
class Result:
    """How one drill ended. ``reason`` is empty for ``ok``."""

    drill: Drill
    verdict: Verdict
    reason: str = ""
    times: Times = field(default_factory=Times)
    incident: str = ""
