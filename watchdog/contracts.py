"""The contract of plug-ins: all that a probe or an action imports besides ``core.model``.

A probe looks and an action acts. Neither judges: thresholds belong to rules, restraint to policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from watchdog.core.model import (
    Cause,
    ProcessState,
    Sampled,
    Seconds,
    Subject,
    SubjectKind,
    Unread,
    Value,
    engine_subject,
)


class ProbeError(Exception):
    """A probe cannot read anything at all. The message is one line and starts "cannot …"."""


class ActionError(Exception):
    """An action cannot do its work. ``cause`` is the named reason, the message one line.

    ``evidence`` goes to the outcome as it is: a gate's ``verdict`` and ``advice``, for instance.
    ``untouched``: nobody was signalled, and the engine is as it was.
    """

    def __init__(
        self,
        message: str,
        cause: Cause = Cause.UNKNOWN,
        *,
        unkillable: bool = False,
        evidence: tuple[tuple[str, Value], ...] = (),
        untouched: bool = False,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.unkillable = unkillable
        self.evidence = evidence
        self.untouched = untouched


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One declared sample: rules are checked against it and its metric is generated from it.

    ``type`` is bool, int, float or str. A text is for rules and status, and exported only with a
    ``metric``: then as a label of that info series. For numbers ``metric`` overrides the generated
    name ``vllm_watchdog_<probe>_<name>``. ``exported`` False keeps a number out of the metrics:
    too many series, or only for rules and evidence.
    ``subject`` is the kind of its subject when that is not the probe's own. ``label_values`` is the
    closed set of values of its own label (the one beside those that name the subject); empty: open.
    """

    name: str
    type: type[bool | int | float | str]
    unit: str
    help: str
    counter: bool = False
    labels: tuple[str, ...] = ()
    metric: str = ""
    exported: bool = True
    subject: SubjectKind | None = None
    label_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how the engine's HTTP API is spoken to, read from its own command.

    ``host`` is an address to connect to (loopback for a wildcard bind). ``uds`` is the path of a
    Unix socket when the engine serves on one. ``api_key`` never appears in ``repr``.
    """

    host: str
    port: int
    tls: bool = False
    uds: str = ""
    root_path: str = ""
    served_name: str = ""
    api_key: str = field(default="", repr=False)

    @property
    def base_url(self) -> str:
        """``http://host:port`` or ``https://…``, IPv6 bracketed, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EngineLook:
    """What the core knew of an engine at its last step: for probes that look conditionally."""

    generation: str = ""
    state: ProcessState = ProcessState.STOPPED
    leader: int | None = None
    started_at: Seconds | None = None
    ready: bool = False
    progressed_at: Seconds | None = None
    sleeping: bool = False
    attached: bool = False


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process of an engine's set, as /proc shows it.

    ``start_ticks`` (clock ticks since boot) together with the pid is its identity on this boot.
    ``state`` is the kernel's letter (R S D T t Z X I). ``cpu_seconds`` is user plus system time.
    ``threads`` counts living tasks: a zombie leader with another task still holds everything.
    """

    pid: int
    start_ticks: int
    ppid: int
    session: int
    state: str
    comm: str
    cpu_seconds: Seconds
    rss_bytes: int
    threads: int = 1


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A generation's part of a log file.

    From ``offset`` bytes on, or from the beginning when the file has been rotated since and is
    shorter than that.
    """

    generation: str
    path: str
    offset: int


@dataclass(frozen=True, slots=True)
class FirstGood:
    """What is known of an engine's model since its first good start, to compare the present with.

    ``served_names`` (as the probe tells them) "" and ``max_model_len`` (tokens) None: not known
    yet, or free to change. ``loaded`` says in words how the files of the present start differ,
    ``on_disk`` how those of the next one would; "" when they do not, or nobody knows.
    ``refuses``: what differs must not serve.
    """

    served_names: str = ""
    max_model_len: int | None = None
    loaded: str = ""
    on_disk: str = ""
    refuses: bool = False


class EngineTarget(Protocol):
    """The engine that an engine probe looks at. All methods are safe from any thread."""

    @property
    def name(self) -> str:
        """The name in the configuration."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """Where its HTTP API is."""
        ...

    @property
    def command(self) -> tuple[str, ...]:
        """The command that starts it."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment that its next start gets, without the generation's own variables."""
        ...

    def look(self) -> EngineLook:
        """The core's last published view of this engine."""
        ...

    def processes(self) -> tuple[ProcessInfo, ...]:
        """The living set of the current generation, leader included; empty when there is none."""
        ...

    def log_bytes(self) -> int | None:
        """Bytes the current generation has written to its log; None when unknown."""
        ...

    def log_place(self) -> LogPlace | None:
        """Where the present generation logs; None when there is none, or nobody knows."""
        ...

    @property
    def expects(self) -> tuple[str, ...]:
        """Regular expressions that its log must match before it counts as ready."""
        ...

    def first_good(self) -> FirstGood | None:
        """What its model was; None when nothing is known. Looks at files, for seconds at most."""
        ...


def of_engine(engine: EngineTarget, sample: str, value: Value) -> Sampled:
    """What a probe of the box has seen of one engine, with the label that names it."""
    return Sampled(engine_subject(engine.name), sample, value, (("engine", engine.name),))


class Owner(StrEnum):
    """Whose a process is. ``UNKNOWN`` cannot be seen from here: no claim of any kind."""

    ENGINE = "engine"
    ORPHAN = "orphan"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Owned:
    """Whose a process is, and what it is called: ``comm``, "" when it cannot be seen.

    ``engine`` names the engine of an engine's own process and of an orphan of an earlier start.
    """

    owner: Owner
    engine: str = ""
    comm: str = ""


class Box(Protocol):
    """The machine with its engines, for probes of GPUs and the host. Safe from any thread."""

    def engines(self) -> tuple[EngineTarget, ...]:
        """Every configured engine, running or not."""
        ...

    def owner(self, pid: int) -> Owned:
        """Whose the process is now. Never raises."""
        ...

    @property
    def state_dir(self) -> str:
        """Where we keep what must not be lost; "" when it is kept in memory alone."""
        ...


class Probe(Protocol):
    """Reads one source. Yields what it read and what it could not; raises ``ProbeError``."""

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Read once. ``deadline`` is CLOCK_MONOTONIC: return before it."""
        ...

    def close(self) -> None:
        """Let go of connections and children. Called once, from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """What a probe module exports as ``PROBE``.

    ``settings`` is a msgspec Struct type whose fields have defaults. ``build(settings, target)``
    makes the probe: ``target`` is an ``EngineTarget`` when ``subject_kind`` is ENGINE, else a
    ``Box``. Any probe may also sample other subjects: the host, or an engine.
    ``period`` and ``timeout`` are default durations in seconds.
    """

    name: str
    subject_kind: SubjectKind
    settings: type[Any]
    samples: tuple[SampleSpec, ...]
    build: Callable[[Any, Any], Probe]
    period: Seconds = 1.0
    timeout: Seconds = 5.0


class EngineControl(Protocol):
    """What an engine's actor lends to actions: the only hands that touch its processes.

    Every call blocks until it is done and proven, is bounded in time, and raises ``ActionError``.
    """

    @property
    def name(self) -> str:
        """The name in the configuration."""
        ...

    def stop(self, *, drain: bool, cause: Cause, generation: str = "") -> None:
        """Run the stop ladder until not one process of the generation lives.

        Of another generation than the one that is meant, where one is, nobody is signalled.
        Raises ``ActionError(unkillable=True)`` when something survives the last rung.
        """
        ...

    def start(self, cause: Cause) -> None:
        """Pass the release gate and spawn a new generation; returns at the spawn.

        Raises ``ActionError`` with the named cause when the gate refuses or the spawn fails.
        """
        ...


class BoxControl(Protocol):
    """What is lent to actions that neither start nor stop an engine. Safe from any thread."""

    def sweep(self, deadline: Seconds) -> str:
        """Remove what dead engines left behind and nobody holds; in words what that was.

        Raises ``ActionError`` when it cannot be known what is held.
        """
        ...

    def run(self, command: Sequence[str], environment: Mapping[str, str], timeout: Seconds) -> str:
        """Run a program beside everything else, without a shell; the last line of its output.

        Raises ``ActionError`` when it cannot be run, fails, or takes longer: then its whole set of
        processes is ended.
        """
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """One action to carry out: what, on what, why, for which rule and incident.

    ``choice`` is what stands behind the colon in the ``actions`` of the rule: one of the spec's
    ``choices``. ``deadline`` (CLOCK_MONOTONIC) is for what is done beside. ``generation`` is the
    engine's start that was decided about, "" for none.
    """

    action: str
    target: Subject
    cause: Cause
    incident: str = ""
    drain: bool = False
    rule: str = ""
    choice: str = ""
    deadline: Seconds = 0.0
    generation: str = ""


class Action(Protocol):
    """Starts or stops an engine. Raises ``ActionError``."""

    def run(self, order: Order, engine: EngineControl) -> None:
        """Do it, and return when it is done and proven."""
        ...


class SideAction(Protocol):
    """Does something else, beside all engines. Raises ``ActionError``."""

    def run(self, order: Order, box: BoxControl) -> str:
        """Do it before the order's deadline, and say in one line what was done."""
        ...


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """What an action module exports as ``ACTION``. Only rules about ``subjects`` may use it.

    ``build(settings)`` makes it: an ``Action`` when its name is of those that start or stop an
    engine, else a ``SideAction``. ``settings`` is a msgspec Struct type whose fields have defaults:
    the keys of ``[actions.NAME]``. When ``choices(settings)`` names some, a rule writes
    ``NAME:CHOICE``. ``timeout`` (seconds) is for a ``SideAction``, which is then given up.
    """

    name: str
    help: str
    build: Callable[[Any], Action | SideAction]
    subjects: frozenset[SubjectKind] = frozenset({SubjectKind.ENGINE})
    timeout: Seconds = 60.0
    settings: type[Any] = NoSettings
    choices: Callable[[Any], tuple[str, ...]] | None = None
