"""Builds what the loop needs from the configuration: engines, probes, rules."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from watchdog.command_line import describe
from watchdog.config import Config, EngineConfig, RuleOverride
from watchdog.contracts import ActionSpec, Box, EngineTarget, ProbeSpec
from watchdog.core.defaults import DEFAULT_RULES
from watchdog.core.model import Event, Subject, SubjectKind, engine_subject
from watchdog.core.rules import Rule
from watchdog.core.state import EngineSettings as CoreSettings
from watchdog.core.state import EngineState, State
from watchdog.daemon.engines import Target, requests_in
from watchdog.daemon.gates import Gates, assigned, visible
from watchdog.executor import Actor
from watchdog.runner import ProbeRun
from watchdog.supervisor.engine import EngineSettings, SupervisedEngine, Surroundings
from watchdog.supervisor.ladder import StopSettings
from watchdog.supervisor.spawn import Launch, lasting

_SHUTDOWN_SLACK = 90.0
"""For an action that was under way when the shutdown came. A start that waits for GPU memory is
ended at once, so this is for what hangs in the kernel."""
SIMULATED_PORT = 8000
"""vLLM's own default, so that whoever knows vLLM finds the simulator where it would be."""


def simulated_command() -> tuple[str, ...]:
    """The embedded engine's command line."""
    return (sys.executable, "-m", "watchdog.simulator", "--port", str(SIMULATED_PORT))


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine with everything that belongs to it."""

    supervised: SupervisedEngine
    target: Target
    actor: Actor


def build_engines(  # noqa: PLR0913, PLR0917 - what engines are made of
    config: Config,
    state_dir: Path,
    around: Surroundings,
    actions: Mapping[str, ActionSpec],
    published: Callable[[], State],
    gates: Gates,
) -> dict[str, Engine]:
    """Every configured engine; nothing is started."""
    return {
        name: _engine(name, engine, state_dir, around, actions, published, gates)
        for name, engine in config.engine.items()
    }


def _engine(  # noqa: PLR0913, PLR0917 - what one engine is made of
    name: str,
    config: EngineConfig,
    state_dir: Path,
    around: Surroundings,
    actions: Mapping[str, ActionSpec],
    published: Callable[[], State],
    gates: Gates,
) -> Engine:
    said = describe(config.command, config.env, os.environ)
    launch = launch_of(name, config, state_dir)
    settings = EngineSettings(
        launch=launch,
        endpoint=said.endpoint,
        stop=StopSettings(
            config.stop.drain_timeout, config.stop.term_timeout, config.stop.kill_timeout
        ),
        gate=gates.steps(
            name,
            said,
            lambda: lasting(launch),
            lambda: (card.name for card in _seen_on(published().engines.get(name))),
        ),
        running_requests=lambda: requests_in(published().engines.get(name)),
    )
    supervised = SupervisedEngine(settings, around)
    return Engine(
        supervised,
        Target(supervised, published),
        Actor(supervised, actions, around.notify),
    )


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


def core_settings(config: Config, state_dir: Path) -> tuple[CoreSettings, ...]:
    """What the core needs to know of every engine."""
    return tuple(
        replace(engine.core(name), gpus=visible(_environment(name, engine, state_dir)))
        for name, engine in config.engine.items()
    )


def _environment(name: str, config: EngineConfig, state_dir: Path) -> dict[str, str]:
    """As its process will see it, behind an ``env`` in its command."""
    return lasting(launch_of(name, config, state_dir)) | assigned(config.command)


def build_probes(
    config: Config,
    specs: Mapping[str, ProbeSpec],
    box: Box,
    post: Callable[[Event], None],
) -> list[ProbeRun]:
    """One run for every enabled probe, and for each engine where it is about engines."""
    runs: list[ProbeRun] = []
    for name, spec in specs.items():
        wanted = config.probes[name]
        if not wanted.enabled:
            continue
        of_engines = spec.subject_kind is SubjectKind.ENGINE
        runs.extend(
            _probe(spec, wanted.settings, wanted.timeout, target, post)
            for target in (box.engines() if of_engines else (box,))
        )
    return runs


def _probe(
    spec: ProbeSpec,
    settings: object,
    timeout: float | None,
    target: EngineTarget | Box,
    post: Callable[[Event], None],
) -> ProbeRun:
    engine = target if spec.subject_kind is SubjectKind.ENGINE else None
    of = cast("EngineTarget | None", engine)
    return ProbeRun(
        spec,
        spec.build(settings, target),
        None if of is None else engine_subject(of.name),
        None if of is None else of.look,
        post,
        timeout=timeout,
    )


def outer_limit(config: Config) -> float:
    """Seconds after which a shutdown is given up: more than any engine's stop ladder may take."""
    ladders = (engine.stop for engine in config.engine.values())
    longest = max(
        (s.drain_timeout + 2 * s.term_timeout + s.kill_timeout for s in ladders), default=0
    )
    return longest + _SHUTDOWN_SLACK


def period_of(config: Config, spec: ProbeSpec) -> float:
    """Seconds between two looks of a probe."""
    return config.probes[spec.name].period or spec.period


class RuleError(Exception):
    """A rule of the configuration that cannot be used. One line."""


def build_rules(config: Config, actions: Collection[str]) -> tuple[Rule, ...]:
    """The default rules with the configuration's overrides. Raises RuleError.

    ``actions`` are the names that a ladder may use.
    """
    rules = {rule.name: rule for rule in DEFAULT_RULES}
    for override in config.rule:
        base = rules.get(override.name)
        if base is None or override.when is not None or override.subject is not None:
            raise RuleError(
                f"{config.file}: rule.{override.name}: expected the name of a default rule "
                f"({', '.join(rules)}) without `when` and `subject`"
            )
        unknown = [name for name in override.actions or () if name not in actions]
        if unknown:
            raise RuleError(
                f"{config.file}: rule.{override.name}.actions: expected names of actions "
                f"({', '.join(sorted(actions))}), got {unknown[0]!r}"
            )
        rules[override.name] = _overridden(base, override)
    return tuple(rules.values())


def _overridden(base: Rule, override: RuleOverride) -> Rule:
    given = {
        "hold_for": override.for_,
        "clear_for": override.clear_for,
        "severity": override.severity,
        "actions": override.actions,
        "mode": override.mode,
        "summary": override.summary,
        "runbook": override.runbook,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    return replace(base, **changes)  # type: ignore[arg-type]  # keys and types as listed above
