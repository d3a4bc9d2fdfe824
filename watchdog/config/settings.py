"""What can be configured, with its default and the reason for it. Durations are seconds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from watchdog.config.durations import Duration, PositiveDuration
from watchdog.core.model import Cause, HoldReason, Mode, Severity, SubjectKind
from watchdog.core.state import RETRIES, Attach, Budget, EngineSettings, PolicySettings


class OnGiveUp(StrEnum):
    """What the daemon does when a breaker opened: hold everything for a person, or exit 75."""

    HOLD = "hold"
    EXIT = "exit"


class ModelChange(StrEnum):
    """What to do when a start would load, or has loaded, another model than the one that served."""

    REFUSE = "refuse"
    WARN = "warn"
    ACCEPT = "accept"


class WatchdogMode(StrEnum):
    """``observe`` looks and judges but starts, stops and signals nothing."""

    OBSERVE = "observe"
    ACT = "act"


class WatchdogSettings(Struct, frozen=True, kw_only=True):
    """``[watchdog]``: the daemon itself."""

    listen: str = "127.0.0.1:9909"
    """HOST:PORT of metrics and health. Loopback, because nothing there asks for a password."""
    mode: WatchdogMode = WatchdogMode.ACT
    """A watchdog that does not act is the exception that has to be asked for."""
    starts_at_once: Annotated[int, Meta(ge=1, le=64)] = 1
    """Engines that load at the same time. Weights come from one disk, and two that profile their
    memory on one card at once both get it wrong: the next one starts when the last is ready."""
    log: str = "-"
    """A file, or ``-`` for stderr, which every container runtime collects."""


class StopSettings(Struct, frozen=True, kw_only=True):
    """``stop``: how long each rung of the stop ladder may take."""

    drain_timeout: Duration = 30.0
    """From the stop's beginning, for requests to finish; most completions take less."""
    term_timeout: Duration = 20.0
    """From the end of the drain: vLLM's own teardown was measured at about 9 s."""
    kill_timeout: PositiveDuration = 10.0
    """From SIGKILL: only a process inside the driver survives it for longer."""


class Hook(Struct, frozen=True, kw_only=True):
    """One command of the operator's around the life of an engine."""

    command: tuple[str, ...]
    """Program and arguments, no shell."""
    timeout: PositiveDuration = 60.0
    """Enough for a mount or a license check; a download has to say that it needs longer."""


Size = Annotated[str, Meta(pattern="^[1-9][0-9]{0,5}(MiB|GiB|TiB)$")]
"""Bytes, as ``64GiB``."""

_SIZES = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size_of(text: str) -> int:
    """Bytes of a ``Size``."""
    return int(text[:-3]) * _SIZES[text[-3:]]


class EngineLimits(Struct, frozen=True, kw_only=True):
    """``limits``: of the engine's own cgroup, where one can be made; said loudly where not."""

    memory_max: Size | None = None
    """Host memory of the whole set; more than that is the kernel's OOM killer's, the engine's
    alone. None: as the box."""
    pids_max: Annotated[int, Meta(ge=16)] | None = None
    """Processes and threads of the whole set. None: as the box."""


class EngineConfig(Struct, frozen=True, kw_only=True):
    """``[engine.NAME]``: one engine."""

    command: tuple[str, ...] = ()
    """Program and arguments, no shell. Port, host, key and model are read from it."""
    attach: Attach | None = None
    """Somebody else starts this engine, with ``command``: a container, a unit, a person. It is
    found by its port. ``report`` only tells; ``signal`` ends it when it hangs, for the other to
    start it anew, as ``restart: always`` and the kubelet do. None: the watchdog starts it."""
    env: dict[str, str] = {}
    """Added to the inherited environment."""
    gpus: tuple[int | str, ...] | None = None
    """Indices or UUIDs for CUDA_VISIBLE_DEVICES; default: all visible. Empty: none."""
    start_timeout: PositiveDuration = 1800.0
    """Since the last sign of progress: loading from a network disk has long silent stretches."""
    start_deadline: PositiveDuration | None = None
    """Bounds the whole start; off, because a first download can take hours."""
    stop: StopSettings = StopSettings()
    log_file: str = ""
    """Below the state directory; default ``engine-NAME.log``. Rotated at 64 MiB, 5 kept."""
    standby: bool = False
    """Not started with the daemon, but by an operator, or by a rule with ``start_engine``."""
    pre_start: tuple[Hook, ...] = ()
    """Run one after the other before each start, with the engine's environment; one that fails
    or takes too long refuses the start."""
    post_stop: tuple[Hook, ...] = ()
    """Run one after the other when nothing of the engine lives any more; a failure is told."""
    model_change: ModelChange = ModelChange.REFUSE
    """A crash must not become a silent upgrade. ``refuse`` holds the start until an operator says
    ``start`` or ``restart``; ``warn`` tells and goes on; ``accept`` takes what is there."""
    expect_log: tuple[str, ...] = ()
    """Regular expressions of which each must have matched a line of the engine's log before it
    counts as ready: "Using FlashAttention" for who must not run on a slower backend."""
    limits: EngineLimits = EngineLimits()
    cwd: str = ""
    """Where the engine starts; default: where the watchdog was started."""

    def core(self, name: str) -> EngineSettings:
        """The part that decisions are made from."""
        return EngineSettings(
            name,
            self.start_timeout,
            self.start_deadline,
            standby=self.standby,
            expects_log=bool(self.expect_log),
            attach=self.attach,
        )


class BackoffSettings(Struct, frozen=True, kw_only=True):
    """``backoff``: the wait before a restart; the first one is immediate, then it doubles."""

    initial: PositiveDuration = 1.0
    """Before the second restart: short, as most crashes are single events."""
    max: PositiveDuration = 300.0
    """A person who repaired the cause does not want to wait for longer."""
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Fraction added at random, so that a fleet does not restart in step."""
    reset_after_ready: Duration = 600.0
    """Ready for this long ends a row of failures; a crash loop is ready for seconds."""


class BudgetSettings(Struct, frozen=True, kw_only=True):
    """At most ``count`` restarts in any ``window``."""

    count: Annotated[int, Meta(ge=1, le=1000)]
    window: PositiveDuration = 3600.0
    """An hour: long enough to see a loop of slow starts, short enough to forget a bad morning."""

    def core(self) -> Budget:
        """The same, as the core has it."""
        return Budget(self.count, self.window)


class RestartBudget(BudgetSettings, frozen=True, kw_only=True):
    """``restart_budget``: over all causes."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Five restarts in an hour that did not help will not help the sixth time."""


class BootBudget(BudgetSettings, frozen=True, kw_only=True):
    """``boot_budget``: starts that never got ready. Tighter, as they rarely cure themselves."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 3
    """One for chance, one for a race with something else that starts, one to be sure."""


class PolicyConfig(Struct, frozen=True, kw_only=True):
    """``[policy]``: restraint."""

    backoff: BackoffSettings = BackoffSettings()
    restart_budget: RestartBudget = RestartBudget()
    boot_budget: BootBudget = BootBudget()
    retries: dict[Cause, Annotated[int, Meta(ge=0, le=1000)]] = {}
    """Exit causes, and how many restarts in a row each is worth. What only a person can change
    (bad_arguments, model_missing, driver_mismatch and the like) has 0, cuda_oom 1; the causes that
    are not named here or there have the budgets alone."""
    on_give_up: OnGiveUp = OnGiveUp.HOLD
    """Staying keeps metrics and evidence; an orchestrator that shall move the job wants exit."""

    def core(self) -> PolicySettings:
        """The same, as the core has it."""
        return PolicySettings(
            backoff_initial=self.backoff.initial,
            backoff_max=self.backoff.max,
            backoff_jitter=self.backoff.jitter,
            reset_after_ready=self.backoff.reset_after_ready,
            restart_budget=self.restart_budget.core(),
            boot_budget=self.boot_budget.core(),
            retries={**RETRIES, **self.retries},
        )


class ProbeConfig(Struct, frozen=True, kw_only=True):
    """``[probes.NAME]``: when a probe looks; ``settings`` is an instance of the probe's own type.

    ``period`` and ``timeout`` are None where the probe's own defaults hold.
    """

    enabled: bool = True
    """A probe that is off leaves its samples unknown; rules about them are silent."""
    period: PositiveDuration | None = None
    """From one look to the next."""
    timeout: PositiveDuration | None = None
    """A look that takes longer is given up; its samples are unknown."""
    settings: Any = None


class RuleConfig(Struct, frozen=True, kw_only=True, rename={"for_": "for"}):
    """``[[rule]]``: a rule, or the fields of the default rule ``name`` that are to be replaced."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,62}$")]
    """In metrics, log and status; that of a default rule overrides it."""
    subject: SubjectKind | None = None
    """What it judges, each one for itself."""
    when: str | None = None
    """The condition, in CEL over the samples of the subject (``vllm-watchdog probes``)."""
    for_: Duration | None = None
    """It must hold for this long before the rule fires; default 0s."""
    clear_for: Duration | None = None
    """It must be false for this long before the finding resolves; default 0s."""
    cooldown: Duration | None = None
    """After an action of this rule has ended it takes no other on the subject; default 0s."""
    severity: Severity | None = None
    """How loud; default warning. What is info opens no incident of its own."""
    actions: tuple[str, ...] | None = None
    """A ladder: the next one is taken when the one before did not help. Default: none."""
    inhibited_by: tuple[str, ...] | None = None
    """Rules that outrank this one: while one fires about the same thing it takes no action."""
    holds: HoldReason | None = None
    """While it fires, restarts of the engines concerned are held: "inhibited" or "blocked"."""
    fault: bool | None = None
    """While it fires, the engines concerned cannot serve: their verdict is gpu_fault."""
    mode: Mode | None = None
    """``off``, ``observe`` (judged, without consequences) or ``act``, the default."""
    summary: str | None = None
    """One line for the person on call."""
    reason: str | None = None
    """Why the rule and its thresholds are as they are."""
    runbook: str | None = None
    """The page for the person on call: a name, or a URL; default: the name of the rule."""
    evidence: tuple[str, ...] | None = None
    """Samples and windows told with the finding; default: those of the condition."""
    fix: str | None = None
    """The command, or the step, that cures it; ``{SAMPLE}`` stands for a value of the evidence."""


class NginxSettings(Struct, frozen=True, kw_only=True):
    """``[nginx]``: an upstream with the engines that serve, for an nginx in front of them."""

    upstream_file: str
    """Where it is written, atomically: to be included in the ``http`` block. Relative paths are
    below the state directory."""
    upstream: Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")] = "vllm"
    """The name that ``proxy_pass http://NAME`` uses."""
    reload: tuple[str, ...] = ("nginx", "-s", "reload")
    """Program and arguments, no shell; run after each change. Empty: nothing is run."""
    timeout: PositiveDuration = 10.0
    """For the reload: it is done in a moment, or nginx is not well."""


class EvidenceSettings(Struct, frozen=True, kw_only=True):
    """``[evidence]``: what is kept of an engine that is about to be ended."""

    enabled: bool = True
    """A bundle holds up to 20 MB and takes 5 s at most; a restart after a crash does not wait."""
    max_bytes: Size = "200MiB"
    """Of all bundles together: the oldest go. Never more than 50 bundles."""
    max_age: PositiveDuration = 2_592_000.0
    """Thirty days: who asks later has the journal and the incident itself."""
    py_spy: bool = True
    """Dump the stacks of the engine's Python processes where ``py-spy`` is found, in the engine's
    ``PATH`` or beside its interpreter. It only reads: no process is stopped for it."""


class NotifyKind(StrEnum):
    """How a receiver is spoken to: as an Alertmanager, or with one JSON object an event."""

    ALERTMANAGER = "alertmanager"
    WEBHOOK = "webhook"


HeaderName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
VariableName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,254}$")]


class NotifySettings(Struct, frozen=True, kw_only=True):
    """``[notify.NAME]``: who is told of incidents, beside the log and the metrics."""

    url: str
    """http:// or https://, with a host. Of an Alertmanager without ``/api/v2/alerts``."""
    kind: NotifyKind | None = None
    """Needed unless the receiver is called ``alertmanager`` or ``webhook``."""
    timeout: PositiveDuration = 5.0
    """For connecting, sending and the answer together; nothing waits for it."""
    min_severity: Severity = Severity.WARNING
    """Incidents below it are not told. Findings that are only info open none."""
    headers: dict[HeaderName, VariableName] = {}
    """Headers to send, each with the name of the environment variable that holds its value: no
    secret has to stand in the file. ``Authorization = "PAGER_AUTHORIZATION"``."""

    def kind_of(self, name: str) -> NotifyKind | None:
        """The kind of the receiver ``name``; None when neither it nor the settings say so."""
        known = {one.value: one for one in NotifyKind}
        return self.kind or known.get(name)


class Config(Struct, frozen=True, kw_only=True):
    """Everything, effective: defaults filled in. ``file`` names the source in error messages."""

    watchdog: WatchdogSettings = WatchdogSettings()
    engine: dict[str, EngineConfig] = {}
    policy: PolicyConfig = PolicyConfig()
    probes: dict[str, ProbeConfig] = {}
    actions: dict[str, Any] = {}
    """``[actions.NAME]``: an instance of the action's own type of settings."""
    rule: tuple[RuleConfig, ...] = ()
    notify: dict[str, NotifySettings] = {}
    nginx: NginxSettings | None = None
    evidence: EvidenceSettings = EvidenceSettings()
    file: str = "built-in defaults"

    @property
    def sha256(self) -> str:
        """Of what is effective, not of the file: a comment changes nothing."""
        effective = msgspec.structs.replace(self, file="")
        return hashlib.sha256(msgspec.json.encode(effective, order="deterministic")).hexdigest()

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each part that is accepted and will not work as it is."""
        return tuple(
            f"notify.{name}.headers.{header}: the variable {variable} is not set here"
            for name, one in self.notify.items()
            for header, variable in one.headers.items()
            if variable not in os.environ
        )


@dataclass(frozen=True, slots=True)
class PlugIns:
    """The settings types of all probes and actions, by name. Those of msgspec, with defaults."""

    probes: Mapping[str, type[Any]]
    actions: Mapping[str, type[Any]] = field(default_factory=dict)

    def default_actions(self) -> dict[str, Any]:
        """The settings of every action, where nothing is set."""
        return {name: kind() for name, kind in self.actions.items()}


def default_probes(probe_settings: Mapping[str, type[Any]]) -> dict[str, ProbeConfig]:
    """Every known probe with its own defaults."""
    return {name: ProbeConfig(settings=kind()) for name, kind in probe_settings.items()}
