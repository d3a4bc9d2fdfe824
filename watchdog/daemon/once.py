"""One look at the machine without a daemon: every probe of the box once, judged by the rules.

Nothing is started, stopped, signalled, locked or written, so it may be done beside a daemon.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue

from watchdog import __version__, procfs
from watchdog.command_line import describe
from watchdog.config import Config, EngineConfig
from watchdog.contracts import (
    Endpoint,
    EngineLook,
    FirstGood,
    LogPlace,
    Owned,
    Owner,
    ProbeSpec,
    ProcessInfo,
)
from watchdog.core.engine import step
from watchdog.core.model import Event, Mode, Reading, ReadingTaken, Seconds, SubjectKind, Tick
from watchdog.core.rules import Rule
from watchdog.core.state import EngineState, RestartHistory, State
from watchdog.daemon.wiring import build_probes, core_settings, launch_of
from watchdog.runner import ProbeRun
from watchdog.snapshot import Snapshot
from watchdog.supervisor.members import GENERATION_VARIABLE, Key, key
from watchdog.supervisor.spawn import ENGINE_VARIABLE, lasting

_NOWHERE = Path()
"""Where an engine would log; this one is never started."""
_TURN: Seconds = 0.05
"""How late an overdue probe may be noticed."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What one probe could not read: ``subject`` as rules write it, "" for all. One line."""

    probe: str
    subject: str
    error: str


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen and judged, and what could not be read."""

    snapshot: Snapshot
    unread: tuple[Unreadable, ...]


@dataclass(frozen=True, slots=True)
class OneTarget:
    """Implements ``contracts.EngineTarget`` for a configured engine and what may live of it."""

    name: str
    config: EngineConfig
    living: tuple[ProcessInfo, ...] = ()

    @property
    def endpoint(self) -> Endpoint:
        """Where its HTTP API is. Raises CommandError when the command does not tell."""
        here = Path(self.config.cwd)
        return describe(self.command, self.config.env, os.environ, cwd=here).endpoint

    @property
    def command(self) -> tuple[str, ...]:
        """The command that starts it."""
        return self.config.command

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment that its next start gets, without the generation's own variables."""
        return lasting(launch_of(self.name, self.config, _NOWHERE))

    def look(self) -> EngineLook:
        """Nothing: no core has watched it."""
        return EngineLook()

    def processes(self) -> tuple[ProcessInfo, ...]:
        """What a running daemon said of it, as far as it lives."""
        return self.living

    def log_bytes(self) -> int | None:
        """Nobody counts."""
        return None

    def log_place(self) -> LogPlace | None:
        """Nobody knows."""
        return None

    @property
    def expects(self) -> tuple[str, ...]:
        """What its log must show before it counts as ready."""
        return self.config.expect_log

    def first_good(self) -> FirstGood | None:
        """Nothing: no memory is opened."""
        return None


@dataclass(frozen=True, slots=True)
class OneBox:
    """Implements ``contracts.Box`` without a memory of earlier starts: it knows no orphans.

    A process is an engine's when the daemon says so, or when it or one above it carries the id of
    a generation.
    """

    targets: tuple[OneTarget, ...]
    members: Mapping[Key, str] = field(default_factory=dict)
    state_dir: str = ""

    def engines(self) -> tuple[OneTarget, ...]:
        """Every configured engine, running or not."""
        return self.targets

    def owner(self, pid: int) -> Owned:
        """Whose the process is now. Never raises."""
        info = procfs.stat(pid)
        if info is None:
            return Owned(Owner.UNKNOWN)
        for one in chain((info,), procfs.ancestors(info)):
            engine = self.members.get(key(one)) or _marked(one.pid)
            if engine:
                return Owned(Owner.ENGINE, engine, info.comm)
        return Owned(Owner.FOREIGN, "", info.comm)


def _marked(pid: int) -> str:
    """The engine whose generation the process says it is of; "" when it says nothing."""
    if procfs.environ_value(pid, GENERATION_VARIABLE) is None:
        return ""
    return procfs.environ_value(pid, ENGINE_VARIABLE) or ""


def look(
    config: Config,
    specs: Mapping[str, ProbeSpec],
    rules: Sequence[Rule],
    running: Mapping[str, Sequence[int]],
) -> Look:
    """Read every enabled probe that is not about an engine's life, once, and judge at once.

    ``running`` are the processes of engines that a daemon looks after, by the engine's name.
    Takes as long as the longest probe, at most its timeout.
    """
    readings = _readings(config, specs, _box(config, running))
    state = _judged(_fresh(config), readings, rules, config)
    snapshot = Snapshot(state=state, at=time.monotonic(), wall=time.time(), version=__version__)
    return Look(snapshot, tuple(chain.from_iterable(map(_unread, readings))))


def _box(config: Config, running: Mapping[str, Sequence[int]]) -> OneBox:
    seen = {name: tuple(filter(None, map(procfs.stat, pids))) for name, pids in running.items()}
    targets = (OneTarget(name, one, seen.get(name, ())) for name, one in config.engine.items())
    members = {key(info): name for name, living in seen.items() for info in living}
    return OneBox(tuple(targets), members)


def _readings(config: Config, specs: Mapping[str, ProbeSpec], box: OneBox) -> list[Reading]:
    """One of every probe, in the order of the specs, all taken at the same time."""
    of_the_box = {
        name: spec for name, spec in specs.items() if spec.subject_kind is not SubjectKind.ENGINE
    }
    queue: SimpleQueue[Event] = SimpleQueue()
    with contextlib.ExitStack() as stack:
        runs = build_probes(config, of_the_box, box, queue.put)
        for run in runs:
            stack.callback(run.close)
        for run in runs:
            run.begin()
        readings = list(_arrived(runs, queue))
    order = list(of_the_box)
    return sorted(readings, key=lambda reading: order.index(reading.probe))


def _arrived(runs: Sequence[ProbeRun], queue: SimpleQueue[Event]) -> Iterator[Reading]:
    """Every read ends in one event, the abandoned one too."""
    left = len(runs)
    while left:
        try:
            event = queue.get(timeout=_TURN)
        except Empty:
            for run in runs:
                run.expire()
            continue
        if isinstance(event, ReadingTaken):
            left -= 1
            yield event.reading


def _fresh(config: Config) -> State:
    """Engines that nobody wants to run, so that nothing is said of their not running."""
    engines = {
        settings.name: EngineState(settings, history=RestartHistory(wanted=False))
        for settings in core_settings(config, _NOWHERE)
    }
    return State(engines=engines, mode=Mode.OBSERVE)


def _judged(
    state: State, readings: Sequence[Reading], rules: Sequence[Rule], config: Config
) -> State:
    """Who looks once cannot wait: what holds now is told, what held in between is not."""
    at_once = tuple(replace(rule, hold_for=0.0, clear_for=0.0) for rule in rules)
    settings = config.policy.core()
    now = max((reading.at for reading in readings), default=time.monotonic())
    events: tuple[Event, ...] = (*(ReadingTaken(now, reading) for reading in readings), Tick(now))
    for event in events:
        state = step(state, event, at_once, settings).state
    return state


def _unread(reading: Reading) -> Iterator[Unreadable]:
    if reading.error is not None:
        yield Unreadable(reading.probe, "", reading.error)
    for one in reading.unread:
        yield Unreadable(reading.probe, str(one.subject), one.error)
