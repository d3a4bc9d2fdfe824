"""Everything that a reload needs, made before anything changes: whatever can fail fails here.

A plan is made in a thread of its own, beside the loop. What it holds (locks of ports, actors,
probes) is taken over by the switch, or let go of when there is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchdog import registry
from watchdog.config import Config, ConfigError, WatchdogMode, judgement
from watchdog.config.reading import join
from watchdog.contracts import Box, ProbeSpec
from watchdog.core.model import Event
from watchdog.core.rules import Rule
from watchdog.core.state import Attach, EngineSettings, EngineState, RestartHistory
from watchdog.daemon import differences
from watchdog.daemon.configured import Source, is_another_process, ports_of
from watchdog.daemon.crew import Crew, Muster, adopted, as_it_runs
from watchdog.daemon.locks import Locks, let_go
from watchdog.daemon.lookout import Looking, Lookout
from watchdog.daemon.memory import Memory
from watchdog.daemon.strays import ports_left, strays
from watchdog.daemon.wiring import (
    Makings,
    RunKey,
    build_probe,
    core_settings,
    period_of,
    probe_keys,
)
from watchdog.rules import build_rules, default_rules
from watchdog.runner import ProbeRun
from watchdog.supervisor.lock import Lock


@dataclass(slots=True)
class InForce:
    """The configuration in force and its rules. Replaced by the loop's thread only."""

    config: Config
    rules: tuple[Rule, ...]


@dataclass(slots=True)
class Plan:
    """What is to be in force. ``restarts`` are engines whose process is to be another one.

    ``accounts`` are of those who come only to be ended.
    """

    config: Config
    rules: tuple[Rule, ...]
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]
    engines: tuple[EngineSettings, ...]
    restarts: tuple[str, ...] = ()
    accounts: dict[str, RestartHistory] = field(default_factory=dict)
    locks: Mapping[int, Lock] = field(default_factory=dict)
    muster: Muster = field(default_factory=lambda: Muster({}, {}))
    states: dict[str, EngineState] = field(default_factory=dict)
    facts: dict[str, tuple[Event, ...]] = field(default_factory=dict)
    looking: dict[RunKey, Looking] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    reread: frozenset[str] = frozenset()
    _made: list[Callable[[], object]] = field(default_factory=list)

    def made(self, undo: Callable[[], object]) -> None:
        """Note how to let go of something that the plan holds."""
        self._made.append(undo)

    def discard(self) -> None:
        """Let go of everything: there is no switch."""
        for undo in reversed(self._made):
            with contextlib.suppress(Exception):
                undo()


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes plans from what is in force."""

    source: Source
    now: InForce
    state_dir: Path
    specs: Mapping[str, ProbeSpec]
    makings: Makings
    crew: Crew
    lookout: Lookout
    locks: Locks
    memory: Memory
    box: Box

    def plan(self) -> Plan:
        """Read, judge and make. Raises ConfigError, RuleError, LockHeldError."""
        wanted = self.source.read()
        config, needs_restart = differences.lasting(self.now.config, wanted)
        _raise_for_strangers(self.now.config, config)
        if needs_restart:
            _raise_for(config)
        rules = self._rules(config)
        plan = Plan(
            config=config,
            rules=rules,
            changed=differences.changes(self.now.config, config, self.specs, default_rules()),
            needs_restart=needs_restart,
            engines=core_settings(config, self.state_dir),
        )
        try:
            self._take(plan)
        except BaseException:
            plan.discard()
            raise
        return plan

    def _rules(self, config: Config) -> tuple[Rule, ...]:
        """Those in force where they are the same: then nothing was changed by reading them."""
        now = self.now
        if (config.rule, config.actions) == (now.config.rule, now.config.actions):
            return now.rules
        built = build_rules(
            config.rule, self.specs, registry.actions(), config.file, config.actions
        )
        before = {rule.name: rule for rule in now.rules}
        same = tuple(
            old if (old := before.get(rule.name)) is not None and old == rule else rule
            for rule in built
        )
        return now.rules if same == now.rules else same

    def _restarts(self, plan: Plan) -> tuple[str, ...]:
        """Engines that are to be another process than what runs, and those that began to leave."""
        return tuple(name for name in plan.config.engine if self._restart(plan, name))

    def _restart(self, plan: Plan, name: str) -> bool:
        known = self.crew.engines.get(name)
        if known is None:
            return plan.muster.comers[name].supervised.is_outdated()
        if name in self.crew.leaving:
            return True
        if plan.config.engine[name].attach is not None:
            return False  # how it is started is said elsewhere
        config = plan.config.engine[name]
        if known.supervised.present is None:
            return is_another_process(known.config, config)
        return known.supervised.is_outdated(self.makings.settings(name, config))

    def _take(self, plan: Plan) -> None:
        comers = {
            name: self.makings.engine(name, engine)
            for name, engine in plan.config.engine.items()
            if name not in self.crew.engines
        }
        if plan.config.watchdog.mode is WatchdogMode.ACT:
            known = plan.config.engine.keys() | self.crew.engines.keys()
            for name, stray in strays(self.makings, self.memory, known).items():
                comers[name] = stray.engine
                plan.states[name], plan.accounts[name] = stray.state, stray.account
        self._lock(plan, comers)
        for made in comers.values():
            plan.made(made.actor.close)
            plan.made(made.supervised.leave)
        changed = {
            name: (engine, self.makings.settings(name, engine))
            for name, engine in plan.config.engine.items()
            if name not in comers and engine != self.crew.engines[name].config
        }
        plan.muster = Muster(comers, changed)
        plan.reread = frozenset(
            name
            for name, (engine, _) in changed.items()
            if engine.expect_log != self.crew.engines[name].config.expect_log
        )
        self._look(plan)
        self._recall(plan)
        plan.restarts = self._restarts(plan)

    def _lock(self, plan: Plan, comers: Collection[str]) -> None:
        """Before anything of an engine is ended; what is only to end may be another's port now."""
        plan.made(lambda: let_go(plan.locks))
        plan.locks = self.locks.taken(ports_of(plan.config))
        left = ports_left(self.makings.around.ledger, comers) - plan.locks.keys()
        plan.locks = {**plan.locks, **self.locks.available(left)}

    def _look(self, plan: Plan) -> None:
        """Probes that did not change stay as they are; those of who leaves, too, until then."""
        targets = {
            name: engine.target
            for name, engine in {**self.crew.engines, **plan.muster.comers}.items()
        }
        for key in probe_keys(plan.config, self.specs, tuple(targets)):
            run = self._kept(plan.config, key)
            if run is None:
                target = targets.get(key[1], self.box)
                run = build_probe(plan.config, self.specs, key, target, self.makings.around.notify)
                plan.made(run.close)
            plan.looking[key] = Looking(run, period_of(plan.config, self.specs[key[0]]))
        look = {name for name, probe in plan.config.probes.items() if probe.enabled}
        plan.dropped = frozenset(self.specs) - look

    def _kept(self, config: Config, key: RunKey) -> ProbeRun | None:
        known = self.lookout.looking.get(key)
        old, new = self.now.config.probes[key[0]], config.probes[key[0]]
        same = (old.settings, old.timeout) == (new.settings, new.timeout)
        return known.run if known is not None and same else None

    def _recall(self, plan: Plan) -> None:
        """Last of all, because remains of a comer that are found half dead are ended here."""
        acts = plan.config.watchdog.mode is WatchdogMode.ACT
        for settings in plan.engines:
            if settings.name in plan.muster.comers:
                standby = plan.config.engine[settings.name].standby
                plan.states[settings.name] = self.memory.recall_engine(settings, standby=standby)
        for name, comer in plan.muster.comers.items():
            plan.facts[name] = adopted(comer, self.makings.around.ledger, clean_up=acts)
            plan.states[name] = as_it_runs(plan.states[name], comer)


def _raise_for_strangers(old: Config, new: Config) -> None:
    """Engines that somebody else starts come, go and change hands with the watchdog alone."""
    lines = [
        f"{new.file}: {join(join('engine', name), 'attach')}: expected as it is: only the next"
        " watchdog can attach to an engine, or let go of one"
        for name in old.engine.keys() | new.engine.keys()
        if _attach(old, name) is not _attach(new, name)
    ]
    if lines:
        raise ConfigError(sorted(lines))


def _attach(config: Config, name: str) -> Attach | None:
    engine = config.engine.get(name)
    return None if engine is None else engine.attach


def _raise_for(config: Config) -> None:
    """The file is right by itself; with what stays as it is, it may not be."""
    lines = [f"{config.file}: {line}" for line in judgement.faults(config)]
    if lines:
        raise ConfigError(lines)
