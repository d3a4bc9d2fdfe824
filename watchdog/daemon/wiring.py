"""Builds what the daemon needs from the configuration: engines and probes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from watchdog.command_line import describe
from watchdog.config import Config, EngineConfig, EngineLimits, size_of
from watchdog.config import Hook as HookConfig
from watchdog.contracts import Box, BoxControl, EngineTarget, Probe, ProbeSpec
from watchdog.core.model import Event, Seconds, Subject, SubjectKind, engine_subject
from watchdog.core.state import Attach, EngineState, State
from watchdog.core.state import EngineSettings as CoreSettings
from watchdog.daemon.engines import Target, requests_in
from watchdog.daemon.following import Following
from watchdog.daemon.gates import Gates, visible
from watchdog.daemon.mailbox import Mailbox
from watchdog.daemon.model_watch import ModelWatch
from watchdog.executor import Actor, Before, Repertoire
from watchdog.ledger import GenerationRecord
from watchdog.places import assigned
from watchdog.runner import ProbeRun
from watchdog.supervisor import launched
from watchdog.supervisor.attached import AttachedEngine, Terms
from watchdog.supervisor.cgroup import Limits
from watchdog.supervisor.engine import EngineSettings, SupervisedEngine, Surroundings
from watchdog.supervisor.hooks import LONGEST_END as HOOK_END
from watchdog.supervisor.hooks import Hook
from watchdog.supervisor.ladder import StopSettings
from watchdog.supervisor.spawn import Launch, lasting

_SHUTDOWN_SLACK = 90.0
"""For an action that was under way when the shutdown came. A start that waits for GPU memory is
ended at once, so this is for what hangs in the kernel."""

RunKey = tuple[str, str]
"""A probe, and the engine that it looks at; "" when that is the box."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine with everything that belongs to it. ``config`` is for its next start."""

    config: EngineConfig
    supervised: SupervisedEngine
    target: Target
    actor: Actor
    mailbox: Mailbox


@dataclass(frozen=True, slots=True)
class Makings:
    """What engines are made of. ``in_the_way`` names another whose place one has to wait for."""

    log_dir: Path
    around: Surroundings
    repertoire: Repertoire
    control: BoxControl
    published: Callable[[], State]
    gates: Gates
    in_the_way: Callable[[str], str | None]
    models: ModelWatch
    before_stop: Callable[[str], object] = lambda _: None
    before_action: Before = lambda _order, _engine: None

    def engine(self, name: str, config: EngineConfig) -> Engine:
        """A new one; nothing is started, and its events are kept until its mailbox is opened."""
        return self._made(config, self.settings(name, config))

    def stray(self, record: GenerationRecord) -> Engine:
        """As ``engine``, of one that is not configured: it is only ever stopped."""
        config = EngineConfig(command=record.command)
        return self._made(config, EngineSettings(*launched.stray(record)))

    def _made(self, config: EngineConfig, settings: EngineSettings) -> Engine:
        mailbox = Mailbox(self.around.notify)
        supervised = _supervised(config, settings, replace(self.around, notify=mailbox))
        return Engine(
            config,
            supervised,
            Target(supervised, self.published, self.models.first_good),
            Actor(supervised, self.repertoire, mailbox, self.control, before=self.before_action),
            mailbox,
        )

    def settings(self, name: str, config: EngineConfig) -> EngineSettings:
        """How it is started and stopped. Raises CommandError."""
        said = describe(config.command, config.env, os.environ, cwd=Path(config.cwd))
        launch = launch_of(name, config, self.log_dir)
        around, stop = lasting(launch), config.stop
        return EngineSettings(
            launch=launch,
            endpoint=said.endpoint,
            stop=StopSettings(stop.drain_timeout, stop.term_timeout, stop.kill_timeout),
            before=(self.gates.place(name, lambda: self.in_the_way(name)),),
            gate=self.gates.steps(
                name,
                said,
                lambda: around,
                lambda: (card.name for card in _seen_on(self.published().engines.get(name))),
            ),
            running_requests=lambda since: requests_in(self.published().engines.get(name), since),
            withdraw=lambda: self.before_stop(name),
            expect_log=config.expect_log,
            last=(
                self.models.step(launch),
                *self.gates.roomy(name, said, lambda: around, str(launch.log_path)),
                self.gates.turn(name),
            ),
            limits=_limits(config.limits),
            pre_start=_hooks(config.pre_start),
            post_stop=_hooks(config.post_stop),
            unwanted=lambda: self.gates.unwanted(name) or self.gates.hurried(),
        )


def _supervised(
    config: EngineConfig, settings: EngineSettings, around: Surroundings
) -> SupervisedEngine:
    if config.attach is None:
        return SupervisedEngine(settings, around)
    terms = Terms(signals=config.attach is Attach.SIGNAL, patience=config.start_timeout)
    return AttachedEngine(settings, around, terms)


def _limits(configured: EngineLimits) -> Limits:
    memory = configured.memory_max
    return Limits(None if memory is None else size_of(memory), configured.pids_max)


def _hooks(configured: Iterable[HookConfig]) -> tuple[Hook, ...]:
    return tuple(Hook(hook.command, hook.timeout) for hook in configured)


def _seen_on(engine: EngineState | None) -> frozenset[Subject]:
    return frozenset() if engine is None else engine.cards


def launch_of(name: str, config: EngineConfig, state_dir: Path) -> Launch:
    """How the engine is started."""
    return Launch(
        engine=name,
        command=config.command,
        log_path=state_dir / (config.log_file or f"engine-{name}.log"),
        env=config.env,
        cwd=config.cwd or None,
        gpus=None if config.gpus is None else tuple(str(gpu) for gpu in config.gpus),
    )


def cards_of(launch: Launch) -> tuple[str, ...] | None:
    """The cards that its process may use, behind an ``env`` in its command; None for all."""
    return visible(lasting(launch) | assigned(launch.command))


def core_settings(config: Config, state_dir: Path) -> tuple[CoreSettings, ...]:
    """What the core needs to know of every engine."""
    return tuple(
        replace(engine.core(name), gpus=cards_of(launch_of(name, engine, state_dir)))
        for name, engine in config.engine.items()
    )


def build_probes(
    config: Config,
    specs: Mapping[str, ProbeSpec],
    box: Box,
    post: Callable[[Event], None],
) -> list[ProbeRun]:
    """One run for every enabled probe, and for each engine where it is about engines."""
    targets = {engine.name: engine for engine in box.engines()}
    keys = probe_keys(config, specs, tuple(targets))
    return [build_probe(config, specs, key, targets.get(key[1], box), post) for key in keys]


def probe_keys(
    config: Config, specs: Mapping[str, ProbeSpec], engines: tuple[str, ...]
) -> Iterator[RunKey]:
    """Which probes look, and at which engines."""
    for name, spec in specs.items():
        if config.probes[name].enabled:
            of_engines = spec.subject_kind is SubjectKind.ENGINE
            yield from ((name, engine) for engine in (engines if of_engines else ("",)))


def build_probe(
    config: Config,
    specs: Mapping[str, ProbeSpec],
    key: RunKey,
    target: EngineTarget | Box,
    post: Callable[[Event], None],
) -> ProbeRun:
    """The run of one probe."""
    spec, wanted = specs[key[0]], config.probes[key[0]]
    engine = target if spec.subject_kind is SubjectKind.ENGINE else None
    of = cast("EngineTarget | None", engine)
    probe: Probe = (
        spec.build(wanted.settings, target)
        if of is None
        else Following(spec.build, wanted.settings, of)
    )
    return ProbeRun(
        spec,
        probe,
        None if of is None else engine_subject(of.name),
        None if of is None else of.look,
        post,
        timeout=wanted.timeout,
    )


def outer_limit(stops: Iterable[Seconds]) -> Seconds:
    """Seconds after which a shutdown is given up: more than any of these stops may take."""
    return max(stops, default=0.0) + _SHUTDOWN_SLACK


def longest_stop(ladder: StopSettings, hooks: Iterable[Hook] = ()) -> Seconds:
    """What a stop may take, with the hooks behind it."""
    rungs = ladder.drain_timeout + 2 * ladder.term_timeout + ladder.kill_timeout
    return rungs + sum(hook.timeout + HOOK_END for hook in hooks)


def period_of(config: Config, spec: ProbeSpec) -> float:
    """Seconds between two looks of a probe."""
    return config.probes[spec.name].period or spec.period
