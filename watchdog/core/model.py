"""The words everything else is written in: frozen values that flow from probe to incident.

``Seconds`` of a field named ``at`` or ``…_at`` are CLOCK_MONOTONIC, which all processes of one
boot share; a field that holds a duration says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from watchdog.core.causes import Cause as Cause  # noqa: PLC0414 - a word like the others here

Seconds = float
Value = bool | int | float | str
Labels = tuple[tuple[str, str], ...]


def number(value: Value) -> float:
    """``value`` as a number; one that no float can hold is infinite. A text is not a number: 0."""
    if isinstance(value, str):
        return 0.0
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


class SubjectKind(StrEnum):
    """What a reading, a rule or a finding can be about."""

    ENGINE = "engine"
    GPU = "gpu"
    HOST = "host"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """One thing under watch, written ``kind/name``: ``engine/main``, ``gpu/GPU-1234``."""

    kind: SubjectKind
    name: str

    def __hash__(self) -> int:
        """By the name alone, which tells subjects apart: every step looks hundreds of them up."""
        return hash(self.name)

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.name}"


HOST = Subject(SubjectKind.HOST, "host")


@lru_cache(maxsize=1024)
def engine_subject(name: str) -> Subject:
    """The subject of the engine that the configuration calls ``name``."""
    return Subject(SubjectKind.ENGINE, name)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One measured value. ``sample`` is the name its probe declared in a ``SampleSpec``."""

    subject: Subject
    sample: str
    value: Value
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Unread:
    """A subject, or one sample of it, that could not be read: unknown, neither good nor bad."""

    subject: Subject
    error: str
    sample: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """All that one run of one probe brought back, stamped by the runner.

    ``at`` is when the run ended, ``took`` how long it lasted, ``error`` the one line of a probe
    that failed as a whole. ``generation`` ties the readings of an engine to the start they saw:
    a late answer from a dead generation says nothing about the living one.
    """

    probe: str
    at: Seconds
    took: Seconds
    samples: tuple[Sampled, ...] = ()
    unread: tuple[Unread, ...] = ()
    error: str | None = None
    subject: Subject | None = None
    generation: str = ""


class ProcessState(StrEnum):
    """The life of an engine's processes, as ``status`` and the metrics spell it."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    GIVEN_UP = "given_up"
    UNKILLABLE = "unkillable"


class Verdict(StrEnum):
    """Fused health: what the engine is to somebody who wants tokens from it."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DEGRADED = "degraded"
    STALLED = "stalled"
    DEAD = "dead"
    GPU_FAULT = "gpu_fault"
    STOPPING = "stopping"
    UNKILLABLE = "unkillable"
    GIVEN_UP = "given_up"


SERVING = frozenset({Verdict.READY, Verdict.BUSY})


class Severity(StrEnum):
    """How loud a finding is."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Mode(StrEnum):
    """What the whole daemon, or one rule, may do with its findings."""

    OFF = "off"
    OBSERVE = "observe"
    ACT = "act"


class HoldReason(StrEnum):
    """Why a decision was not to act."""

    COOLDOWN = "cooldown"
    BACKOFF = "backoff"
    BUDGET = "budget"
    BREAKER_OPEN = "breaker_open"
    IN_FLIGHT = "in_flight"
    PAUSED = "paused"
    OBSERVE = "observe"
    STALE = "stale"
    BLOCKED = "blocked"
    UNKILLABLE = "unkillable"
    INHIBITED = "inhibited"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's statement that a subject is in trouble, with the values that prove it.

    ``holds`` and ``fault`` are the rule's: what it means for the engines concerned. ``fix`` is what
    cures it, a command where one does.
    """

    rule: str
    subject: Subject
    severity: Severity
    summary: str
    since: Seconds
    actions: tuple[str, ...] = ()
    evidence: tuple[tuple[str, Value], ...] = ()
    runbook: str = ""
    mode: Mode = Mode.ACT
    holds: HoldReason | None = None
    fault: bool = False
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about a finding or a command. ``hold`` is None exactly when it acts.

    ``rule`` is the finding's rule, or ``operator`` for a command. ``action`` names the action
    plug-in, ``target`` the engine or other subject it is aimed at. ``generation`` is the engine's
    start that it is about, "" for none.
    """

    at: Seconds
    rule: str
    target: Subject
    action: str
    cause: Cause
    hold: HoldReason | None = None
    detail: str = ""
    incident: str = ""
    generation: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one action. ``cause`` and ``explanation`` say why it failed, if it did.

    ``untouched``: it failed before anybody was signalled, and the engine is as it was.
    """

    action: str
    target: Subject
    ok: bool
    took: Seconds
    explanation: str = ""
    cause: Cause = Cause.UNKNOWN
    unkillable: bool = False
    evidence: tuple[tuple[str, Value], ...] = ()
    untouched: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal: a constant dotted event name and its keys, logged as it is."""

    event: str
    level: str = "info"
    keys: tuple[tuple[str, object], ...] = ()


# Events: all that can happen to the core. Each carries the time at which it happened.


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed and nothing else: pending durations are looked at again."""

    at: Seconds


@dataclass(frozen=True, slots=True)
class ReadingTaken:
    """A probe came back."""

    at: Seconds
    reading: Reading


@dataclass(frozen=True, slots=True)
class EngineSpawned:
    """A generation's leader lives. An adoption is not a start; ``ready`` is what it was before.

    ``pid`` is None of an attached engine whose processes cannot be seen.
    """

    at: Seconds
    engine: str
    generation: str
    pid: int | None
    cause: Cause
    adopted: bool = False
    ready: bool = False
    spawned_at: Seconds | None = None
    ready_at: Seconds | None = None


@dataclass(frozen=True, slots=True)
class EngineExited:
    """The leader of a generation is gone, with its exit code or the signal that ended it.

    Both are None when the status could not be had (an adopted engine is not our child).
    ``advice`` is what the person on call should do; empty when nobody knows better than the cause.
    """

    at: Seconds
    engine: str
    generation: str
    exit_code: int | None
    signal: int | None
    cause: Cause
    explanation: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class ActionFinished:
    """An action ended, well or not."""

    at: Seconds
    outcome: Outcome


class Verb(StrEnum):
    """What an operator can ask for."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    PAUSE = "pause"
    RESUME = "resume"
    RESET_BREAKER = "reset_breaker"
    SHUTDOWN = "shutdown"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Commanded:
    """An operator's command, or our own (``SHUTDOWN``, and the first ``START``).

    ``engine`` empty means all. ``until`` ends a pause; None is until ``resume``.
    """

    at: Seconds
    verb: Verb
    engine: str = ""
    reason: str = ""
    owner: str = ""
    until: Seconds | None = None


Event = Tick | ReadingTaken | EngineSpawned | EngineExited | ActionFinished | Commanded


@dataclass(frozen=True, slots=True)
class Pause:
    """Look and judge, do not act. ``until`` None has no end."""

    reason: str
    owner: str
    since: Seconds
    until: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an incident's story: a journal event, and in words what it was."""

    at: Seconds
    event: str
    text: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One story from the first sign to recovery. ``outcome`` is empty while it is open.

    ``evidence`` and ``fix`` are those of the finding that opened it. ``timeline`` has the oldest
    entries and the latest; ``omitted`` is how many there were in between.
    """

    id: str
    rule: str
    subject: Subject
    severity: Severity
    summary: str
    opened_at: Seconds
    began_at: Seconds
    decided_at: Seconds | None = None
    resolved_at: Seconds | None = None
    outcome: str = ""
    cause: Cause = Cause.UNKNOWN
    explanation: str = ""
    actions: tuple[str, ...] = field(default=())
    evidence: tuple[tuple[str, Value], ...] = ()
    fix: str = ""
    timeline: tuple[Entry, ...] = ()
    omitted: int = 0
