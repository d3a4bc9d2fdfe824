"""What the core remembers between two events. Frozen: a step makes a new one.

Everything that a restart of the watchdog must not forget is in ``RestartHistory``, ``Track`` and
``Pause``; the rest is learned anew within seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from watchdog.core.changing import changed
from watchdog.core.model import (
    Cause,
    Decision,
    Finding,
    HoldReason,
    Incident,
    Mode,
    Pause,
    ProcessState,
    Reading,
    Record,
    Seconds,
    Subject,
    Value,
    Verb,
    Verdict,
    engine_subject,
)
from watchdog.core.series import Series

Parts = Mapping[str, Mapping[str, Value]]
"""What is known of a subject: the probe, the name of the sample, its last value."""
RankLoads = tuple[tuple[str, float, float], ...]
"""Of each data parallel rank: its name, the requests that run in it, and those that wait."""
RanksStill = tuple[tuple[str, Seconds], ...]
"""The ranks that stand still with requests, and since when."""


@dataclass(frozen=True, slots=True)
class FusionSettings:
    """Deadlines of the verdict, in seconds. Each guards against a restart of a working engine."""

    stopped_confirm: Seconds = 2.0
    """A member in state T this long corroborates a failed canary; a debugger's blink does not."""
    stall_canaries: int = 3
    """Timed-out canaries in a row before an engine that uses no CPU counts as stalled."""
    rank_confirm: Seconds = 10.0
    """A rank that stands still this long hangs when a member is in state T too: a completion is not
    sent to it for certain, so one that does not come cannot corroborate."""
    quiet_cores: float = 0.2
    """Below this CPU use (in cores, leader included) the set is quiet: nobody computes."""
    long_stall: Seconds = 120.0
    """No progress for this long although something computes: longer than the longest prefill
    that production reports (false restarts went from 8 a day to none at 120 s)."""
    blind_stall: Seconds = 300.0
    """As ``long_stall`` when progress cannot be read or the GPU is at work: less is known."""
    compile_stall: Seconds = 1800.0
    """As ``long_stall`` while compilers run below the engine."""
    unhealthy_limit: Seconds = 60.0
    """``/health`` 503 with a living EngineCore is scaling or a weight swap, for this long."""
    refused_limit: Seconds = 10.0
    """A ready engine that refuses connections this long has lost its API server."""
    core_gone_confirm: Seconds = 1.0
    """EngineCore or a worker missing this long is dead even when ``/health`` has not noticed."""
    proof_for: Seconds = 45.0
    """A token seen proves health this long; longer than any period of the engine probes."""
    stale_after: Seconds = 15.0
    """Readings older than this say nothing about now."""
    gpu_busy_percent: float = 50.0
    """A GPU used less than this is no evidence of work."""
    gpu_busy_power: float = 0.5
    """A GPU that touches no memory works only above this share of its power limit: a kernel that
    merely spins shows 100 % utilisation, no memory use, and 17 to 43 % of the power."""


class Attach(StrEnum):
    """What is done about an engine that somebody else starts: only told, or ended when it hangs."""

    REPORT = "report"
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the core needs to know of one configured engine.

    ``gpus`` are indices and UUIDs as ``CUDA_VISIBLE_DEVICES`` takes them; None: all visible.
    ``standby`` engines are started by rules; with ``expects_log`` an engine is not ready before its
    log has brought what is expected of it. ``attach`` is not None when somebody else starts it.
    """

    name: str
    start_timeout: Seconds = 1800.0
    start_deadline: Seconds | None = None
    gpus: tuple[str, ...] | None = None
    standby: bool = False
    expects_log: bool = False
    attach: Attach | None = None
    fusion: FusionSettings = field(default_factory=FusionSettings)


@dataclass(frozen=True, slots=True)
class Budget:
    """At most ``count`` restarts in any ``window`` seconds."""

    count: int
    window: Seconds


RETRIES: Mapping[Cause, int] = MappingProxyType(
    {
        Cause.BAD_ARGUMENTS: 0,
        Cause.MODEL_MISSING: 0,
        Cause.MODEL_CHANGED: 0,
        Cause.DRIVER_TOO_OLD: 0,
        Cause.DRIVER_MISMATCH: 0,
        Cause.CUDA_COMPAT_UNSUPPORTED: 0,
        Cause.GPU_UNSUPPORTED: 0,
        Cause.MODEL_DENIED: 0,
        Cause.MODEL_UNSUPPORTED: 0,
        Cause.INSTALL_BROKEN: 0,
        Cause.PERMISSION_DENIED: 0,
        Cause.CUDA_OOM: 1,
        Cause.KV_CACHE_SHORT: 1,
        Cause.SHM_SHORT: 1,
        Cause.GPU_MISSING: 1,
        Cause.MODEL_DAMAGED: 1,
        Cause.COMPILE_CACHE: 1,
        Cause.NOT_EXPECTED: 1,
    }
)
"""What stays as it is until a person changes something is not tried again. Memory that ran out once
may have been a chance, and a file half written, a cache that two starts shared or a GPU that was
just reset are gone the next time; twice in a row it is the configuration or the box."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Restraint, in seconds. The defaults are those of the configuration.

    ``retries`` is how many restarts in a row one cause is worth; the others have the budgets alone.
    """

    backoff_initial: Seconds = 1.0
    backoff_max: Seconds = 300.0
    backoff_jitter: float = 0.1
    reset_after_ready: Seconds = 600.0
    restart_budget: Budget = Budget(5, 3600.0)
    boot_budget: Budget = Budget(3, 3600.0)
    retries: Mapping[Cause, int] = field(default_factory=lambda: RETRIES)


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart that the watchdog made by itself; ``boot`` when the engine never got ready."""

    at: Seconds
    boot: bool = False


class StoppedBy(StrEnum):
    """Who wants an engine to stay stopped. A person's word no rule takes back."""

    NOBODY = ""
    OPERATOR = "operator"
    RULE = "rule"


@dataclass(frozen=True)
class RestartHistory:
    """What restraint is decided from; kept in the store across restarts of the watchdog.

    ``failures`` counts failures in a row since the engine was last ready for long.
    ``repeats`` is how many of the last of them had the cause ``repeated``. ``given_up`` is the
    cause that a retry cannot cure. ``stopped_by`` is who stopped it for good.
    """

    restarts: tuple[Restart, ...] = ()
    failures: int = 0
    breaker_open: bool = False
    given_up: Cause | None = None
    wanted: bool = True
    starts: int = 0
    repeated: Cause = Cause.UNKNOWN
    repeats: int = 0
    stopped_by: StoppedBy = StoppedBy.NOBODY


@dataclass(frozen=True, slots=True)
class Track:
    """What a rule has done about a subject, kept across restarts of the watchdog.

    ``rung`` is the next one of its ladder. ``ended_at`` is None while its action runs;
    ``healed_at`` is when the finding cleared after it, None while it fires. ``action`` is the last
    one that was taken.
    """

    rung: int = 0
    acted_at: Seconds = 0.0
    ended_at: Seconds | None = None
    healed_at: Seconds | None = None
    action: str = ""


@dataclass(frozen=True)
class Vitals:
    """What the readings of the present generation have shown so far; None is not known.

    ``progressed_at`` is the last moment at which tokens provably moved. ``failing_since`` is when
    the first of the present row of timed-out canaries was sent. ``answered_at`` is when it first
    answered as one that has started. ``expected_missing`` is what its log has not shown yet, ""
    when all is there; ``expected_at`` is the last look at that. ``loads`` and ``still`` are empty
    for an engine with one rank; ``asked`` counts the completions that were asked for while the
    same ranks stood still and no other one was idle. A missing worker is only known of an engine
    that never had more than one EngineCore: others may scale down. ``workers_most`` is how many
    were seen.
    """

    process_at: Seconds | None = None
    leader_alive: bool | None = None
    members: int = 0
    cores: int = 0
    core_seen: bool = False
    core_gone_since: Seconds | None = None
    cores_most: int = 0
    workers_most: int = 0
    worker_gone_since: Seconds | None = None
    stopped_members: int = 0
    stopped: str = ""
    stopped_since: Seconds | None = None
    compilers: int = 0
    compilers_at: Seconds | None = None
    cpu_seconds: float | None = None
    quiet_since: Seconds | None = None
    rss_bytes: int = 0
    log_bytes: int = 0
    health: str = ""
    health_at: Seconds | None = None
    health_since: Seconds | None = None
    canary: str = ""
    canary_at: Seconds | None = None
    canary_status: int = 0
    canary_since: Seconds | None = None
    timeouts: int = 0
    failing_since: Seconds | None = None
    metrics_at: Seconds | None = None
    progress: tuple[tuple[str, float], ...] = ()
    running: float | None = None
    waiting: float | None = None
    sleeping: bool = False
    gpu_busy_at: Seconds | None = None
    progressed_at: Seconds | None = None
    start_sign_at: Seconds | None = None
    answered_at: Seconds | None = None
    expected_missing: str | None = None
    expected_at: Seconds | None = None
    loads: RankLoads = ()
    still: RanksStill = ()
    asked: int = 0


@dataclass(frozen=True)
class EngineState:
    """One engine: its processes, its health, and what was last decided about it.

    ``cause``, ``explanation`` and ``failed_at`` describe the failure that is being dealt with;
    ``retry_at`` is when backoff lets the next start happen. ``in_flight`` names the running
    action that starts or stops it, ``aside`` one that does neither, "" when there is none;
    ``charged`` says that it is on the restart account; ``pending`` is the operator's command that
    waits for its end.
    ``health`` is the verdict on the engine alone, ``verdict`` the one that counts its GPUs too.
    ``adopted`` says that the present generation was started by an earlier watchdog. ``cards`` are
    the GPUs on which its generation ``cards_of`` was seen. ``xids`` counts the Xid
    errors that are its own, those of applications and severe ones; ``xid`` describes the last.
    """

    settings: EngineSettings
    process: ProcessState = ProcessState.STOPPED
    since: Seconds = 0.0
    generation: str = ""
    leader: int | None = None
    started_at: Seconds | None = None
    ready_at: Seconds | None = None
    ready_seconds: Seconds | None = None
    start_cause: Cause = Cause.OPERATOR
    vitals: Vitals = field(default_factory=Vitals)
    verdict: Verdict = Verdict.STOPPED
    health: Verdict = Verdict.STOPPED
    reasons: tuple[str, ...] = ()
    cause: Cause = Cause.UNKNOWN
    explanation: str = ""
    failed_at: Seconds | None = None
    began_at: Seconds | None = None
    retry_at: Seconds | None = None
    history: RestartHistory = field(default_factory=RestartHistory)
    in_flight: str = ""
    aside: str = ""
    charged: bool = False
    pending: Verb | None = None
    cards: frozenset[Subject] = frozenset()
    cards_of: str = ""
    adopted: bool = False
    xids: tuple[int, int] = (0, 0)
    xid: str = ""
    xid_cause: Cause = Cause.XID
    xid_at: Seconds | None = None
    exited_at: Seconds | None = None

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self.settings.name

    @property
    def subject(self) -> Subject:
        """``engine/NAME``."""
        return engine_subject(self.settings.name)


@dataclass(frozen=True, slots=True)
class Watch:
    """One rule on one subject: pending since, firing since, clear since; None when not.

    ``unseen_since`` is since when nobody could tell, while it fires.
    """

    pending_since: Seconds | None = None
    firing: Finding | None = None
    clear_since: Seconds | None = None
    held: HoldReason | None = None
    unseen_since: Seconds | None = None


@dataclass(frozen=True)
class State:
    """Everything the core knows. ``readings`` holds the last reading of each (probe, subject).

    ``views`` and ``series`` are what rules see; ``cards`` has the index of every GPU ever seen.
    ``absent`` is since when nothing is known of a subject that was told of before.
    ``judged`` are the probes whose last readings all rules in force have seen,
    ``restless`` the engines that became something else after the rules had seen them.
    ``proven`` are the probes that have worked, ``failing`` those of them that fail now. ``at`` is
    the time of the last event; ``gap_at`` is when the last gap ended in which nobody looked.
    ``beside`` is the action that runs about a GPU or the box, with what it is about.
    """

    engines: Mapping[str, EngineState] = field(default_factory=dict)
    readings: Mapping[tuple[str, str], Reading] = field(default_factory=dict)
    watches: Mapping[tuple[str, Subject], Watch] = field(default_factory=dict)
    views: Mapping[Subject, Parts] = field(default_factory=dict)
    series: Mapping[tuple[Subject, str], Series] = field(default_factory=dict)
    cards: Mapping[Subject, str] = field(default_factory=dict)
    absent: Mapping[Subject, Seconds] = field(default_factory=dict)
    tracks: Mapping[tuple[str, Subject], Track] = field(default_factory=dict)
    judged: frozenset[str] = frozenset()
    restless: frozenset[str] = frozenset()
    proven: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    at: Seconds | None = None
    gap_at: Seconds | None = None
    beside: tuple[str, Subject] | None = None
    incidents: tuple[Incident, ...] = ()
    incident_serial: int = 0
    mode: Mode = Mode.ACT
    pause: Pause | None = None
    shutting_down: bool = False

    def with_engine(self, engine: EngineState) -> State:
        """The same with ``engine`` in the place of its former self."""
        return changed(self, engines={**self.engines, engine.name: engine})


@dataclass(frozen=True, slots=True)
class Step:
    """What one event led to.

    ``decisions`` holds every act and every hold whose reason is new; ``records`` the journal
    lines; ``wake_at`` the next moment at which time alone can change something.
    """

    state: State
    findings: tuple[Finding, ...] = ()
    decisions: tuple[Decision, ...] = ()
    records: tuple[Record, ...] = ()
    wake_at: Seconds | None = None
