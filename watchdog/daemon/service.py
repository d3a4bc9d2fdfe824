"""Everything that runs, for as long as it runs."""

from __future__ import annotations

import signal
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from watchdog import __version__, registry
from watchdog import config as configuration
from watchdog.config import Config
from watchdog.contracts import ActionError, EngineTarget
from watchdog.core import facts, policy
from watchdog.core.model import (
    ActionFinished,
    Cause,
    Commanded,
    EngineExited,
    EngineSpawned,
    Event,
    Mode,
    Outcome,
    ProcessState,
    Verb,
    engine_subject,
)
from watchdog.core.rules import Rule
from watchdog.core.state import State, Step
from watchdog.daemon.box import EngineBox
from watchdog.daemon.front import Front
from watchdog.daemon.gates import Gates
from watchdog.daemon.loop import Loop
from watchdog.daemon.memory import Memory
from watchdog.daemon.wiring import (
    build_engines,
    build_probes,
    core_settings,
    outer_limit,
    period_of,
)
from watchdog.inbox import Inbox, Signalled
from watchdog.logs import Journal
from watchdog.metrics import Exporter
from watchdog.procfs import boot_id
from watchdog.runner import ProbeRun
from watchdog.schedule import Schedule
from watchdog.snapshot import ProbeStats, Snapshot
from watchdog.store import Store
from watchdog.supervisor.engine import Surroundings
from watchdog.supervisor.exits import ExitWatch
from watchdog.supervisor.household import Household, become_reaper
from watchdog.web.app import App
from watchdog.web.server import Server, serve_socket, serve_tcp

_TIDY_PERIOD = 300.0
_EXPIRE_PERIOD = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD)


class Service:
    """Built whole before anything starts, so that what cannot work is refused first."""

    def __init__(
        self,
        config: Config,
        rules: Sequence[Rule],
        state_dir: Path,
        journal: Journal,
        *,
        durable: bool,
    ) -> None:
        self._config = config
        self._config_hash = config.sha256
        self._journal = journal
        self._state_dir = state_dir
        self._leave = False
        self._gave_up = False
        self._inbox = Inbox()
        for number in _SIGNALS:  # first of all: what is built below must not outlive a SIGTERM
            signal.signal(number, lambda got, _frame: self._inbox.post(Signalled(got)))
        self._household = Household()
        self._store = self._open_store(durable=durable)
        self._memory = Memory(self._store)
        self._exit_watch = ExitWatch()
        self._specs = registry.probes()
        around = Surroundings(self._household, self._exit_watch, self._store, self._inbox.post)
        state = self._recalled()
        targets: dict[str, EngineTarget] = {}
        box = EngineBox(targets, self._store)
        self._gates = Gates(self._specs, box, config.probes["driver"].settings.floors)
        self._engines = build_engines(
            config,
            _log_dir(state_dir, durable=durable),
            around,
            registry.actions(),
            self._published,
            self._gates,
        )
        targets |= {name: engine.target for name, engine in self._engines.items()}
        self._runs = build_probes(config, self._specs, box, self._inbox.post)
        self._exporter = Exporter(self._specs, self._snapshot)
        self._exporter.recall(state.incidents)
        self._loop = self._build_loop(state, rules)
        self._front = Front(self._loop, self._inbox, self._exporter, self._snapshot)
        self._schedule = Schedule(self._job_failed)
        self._servers = self._build_servers(durable=durable)

    def run(self, *, leave: bool) -> bool:
        """Run until a shutdown is complete; whether that is because every engine was given up."""
        self._leave = leave
        if not become_reaper():
            self._warn("cannot adopt orphans: neither PID 1 nor a subreaper")
        self._journal.log(
            "info",
            "watchdog.started",
            version=__version__,
            status=f"http://{self._host}:{self._servers[0].port}/",
            state_dir=str(self._state_dir),
            mode=self._loop.state.mode.value,
        )
        self._adopt()
        for server in self._servers:
            server.start()
        self._begin_probes()
        self._loop.run()
        return self._end()

    # --- building -----------------------------------------------------------------------------

    def _open_store(self, *, durable: bool) -> Store:
        store = Store.open(self._state_dir, self._warn) if durable else Store.in_memory()
        for text in store.warnings:
            self._warn(text)
        return store

    def _recalled(self) -> State:
        settings = core_settings(self._config, self._state_dir)
        standby = frozenset(name for name, e in self._config.engine.items() if e.standby)
        state = self._memory.recall(settings, standby)
        return replace(state, mode=Mode(self._config.watchdog.mode.value))

    def _build_loop(self, state: State, rules: Sequence[Rule]) -> Loop:
        return Loop(
            state=state,
            rules=rules,
            settings=self._config.policy.core(),
            inbox=self._inbox,
            actors={name: engine.actor for name, engine in self._engines.items()},
            watchers=(self._write, self._exporter.observe, self._keep, self._consider_exit),
            on_signal=self._signalled,
            on_error=self._loop_failed,
            outer_limit=outer_limit(self._config),
        )

    def _build_servers(self, *, durable: bool) -> list[Server]:
        self._host, port = configuration.listen_address(self._config.watchdog.listen)
        servers = [serve_tcp(App(self._front), self._host, port)]
        if durable:
            path = self._state_dir / "control.sock"
            servers.append(serve_socket(App(self._front, control=True), path))
        return servers

    # --- beginning and end --------------------------------------------------------------------

    def _adopt(self) -> None:
        """Take over what an earlier watchdog left, before the first decision is made."""
        acts = self._loop.state.mode is Mode.ACT
        for name, engine in self._engines.items():
            recorded = {record.id: record for record in self._store.living(name)}
            try:
                adoption = engine.supervised.adopt(clean_up=acts)
            except ActionError as error:
                self._take_fact(_unkillable(name, error))
                continue
            self._take_queued()
            record = recorded.get(adoption.ended[0]) if adoption.ended else None
            if adoption.record is None and record is not None and record.boot_id == boot_id():
                self._take_found_dead(name, record.id, record.pid or 0, record.ready_at is not None)

    def _take_found_dead(self, name: str, generation: str, pid: int, ready: bool) -> None:  # noqa: FBT001
        """An engine that died while nobody watched has failed, and its restart is accounted."""
        now = time.monotonic()
        for event in (
            EngineSpawned(now, name, generation, pid, Cause.UNKNOWN, adopted=True, ready=ready),
            EngineExited(
                now, name, generation, None, None, Cause.CRASH, "died while no watchdog ran"
            ),
        ):
            self._take_fact(event)

    def _take_queued(self) -> None:
        """Facts of an adoption come before anything is decided; signals among them wait."""
        others = []
        while (item := self._inbox.next(0.0)) is not None:
            if isinstance(item, EngineSpawned | EngineExited):
                self._take_fact(item)
            else:
                others.append(item)
        for item in others:
            self._inbox.post(item)

    def _take_fact(self, event: Event) -> None:
        state, records = facts.took(self._loop.state, event, self._config.policy.core())
        self._loop.state = state
        for record in records:
            self._journal.write(record)

    def _begin_probes(self) -> None:
        for run in self._runs:
            subject = "" if run.subject is None else run.subject.name
            name = f"{run.spec.name}/{subject}"
            self._schedule.every(period_of(self._config, run.spec), run.begin, name)
        self._schedule.every(_EXPIRE_PERIOD, self._expire, "expire")
        self._schedule.every(_TIDY_PERIOD, self._store.tidy, "tidy")
        self._schedule.start()

    def _expire(self) -> None:
        for run in self._runs:
            run.expire()

    def _end(self) -> bool:
        self._journal.log("info", "watchdog.stopping", leave=self._leave)
        self._schedule.stop()
        for run in self._runs:
            run.close()
        for server in self._servers:
            server.stop()
        for engine in self._engines.values():
            engine.actor.close()
            engine.supervised.leave()
        self._gates.close()
        self._exit_watch.close()
        self._store.close()
        return self._gave_up

    # --- watching the steps -------------------------------------------------------------------

    def _write(self, _: Event, step: Step) -> None:
        for record in step.records:
            self._journal.write(record)
        for decision in step.decisions:
            if decision.hold is None:
                self._journal.log(
                    "info",
                    "action.started",
                    action=decision.action,
                    engine=decision.target.name,
                    incident=decision.incident,
                )

    def _keep(self, _: Event, step: Step) -> None:
        self._memory.keep(step)

    def _consider_exit(self, _: Event, step: Step) -> None:
        if step.state.shutting_down:
            self._gates.end()
        exits = self._config.policy.on_give_up is configuration.OnGiveUp.EXIT
        if exits and not step.state.shutting_down and _all_given_up(step.state):
            self._gave_up = True
            self._inbox.post(Commanded(time.monotonic(), Verb.SHUTDOWN, owner="watchdog"))

    def _signalled(self, number: int) -> Commanded | None:
        if number == signal.SIGCHLD:
            self._household.reap_orphans()
            return None
        observing = self._loop.state.mode is not Mode.ACT
        if number == signal.SIGQUIT or observing:
            self._leave = True
        verb = Verb.LEAVE if self._leave else Verb.SHUTDOWN
        return Commanded(time.monotonic(), verb, owner=signal.Signals(number).name)

    def _loop_failed(self, event: Event, error: Exception) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        self._journal.log(
            "error",
            "watchdog.bug",
            step=type(event).__name__,
            error=f"{type(error).__name__}: {error}",
            where=f"{Path(where.filename).name}:{where.lineno}",
        )

    def _job_failed(self, name: str, error: str) -> None:
        self._journal.log("error", "watchdog.bug", job=name, error=error)

    def _warn(self, text: str) -> None:
        self._journal.log("warning", "watchdog.degraded", reason=text)

    # --- what others see ----------------------------------------------------------------------

    def _published(self) -> State:
        return self._loop.state

    def _snapshot(self) -> Snapshot:
        state, now = self._loop.state, time.monotonic()
        settings = self._config.policy.core()
        return Snapshot(
            state=state,
            at=now,
            wall=time.time(),
            version=__version__,
            config_hash=self._config_hash,
            pids={
                name: tuple(info.pid for info in engine.supervised.processes())
                for name, engine in self._engines.items()
            },
            ports={name: e.target.endpoint.port for name, e in self._engines.items()},
            budget={
                name: policy.budget_remaining(engine.history, now, settings)
                for name, engine in state.engines.items()
            },
            probes=_probe_stats(self._config, self._runs, state),
            lines_lost=self._journal.lost,
            inbox_depth=self._inbox.depth(),
        )


def _log_dir(state_dir: Path, *, durable: bool) -> Path:
    """Where engines log: a temporary directory when nothing can be kept."""
    return state_dir if durable else Path(tempfile.mkdtemp(prefix="vw-log-"))


def _unkillable(name: str, error: ActionError) -> ActionFinished:
    outcome = Outcome(
        "stop_engine",
        engine_subject(name),
        ok=False,
        took=0.0,
        explanation=str(error),
        cause=error.cause,
        unkillable=error.unkillable,
    )
    return ActionFinished(time.monotonic(), outcome)


def _all_given_up(state: State) -> bool:
    wanted = [e for e in state.engines.values() if e.history.wanted]
    return bool(wanted) and all(e.process is ProcessState.GIVEN_UP for e in wanted)


def _probe_stats(config: Config, runs: list[ProbeRun], state: State) -> dict[str, ProbeStats]:
    """The worst of all engines that a probe looks at."""
    found: dict[str, ProbeStats] = {}
    for run in runs:
        name = run.spec.name
        subject = "" if run.subject is None else run.subject.name
        reading = state.readings.get((name, subject))
        stats = ProbeStats(
            period=period_of(config, run.spec),
            timeout=run.timeout,
            success=reading is not None and reading.error is None,
            took=run.last_took,
            last_success=run.last_success,
            abandoned=run.abandoned_total,
        )
        found[name] = stats if name not in found else _worse(found[name], stats)
    return found


def _worse(one: ProbeStats, other: ProbeStats) -> ProbeStats:
    lasts = [x for x in (one.last_success, other.last_success) if x is not None]
    return replace(
        one,
        success=one.success and other.success,
        took=max(one.took or 0.0, other.took or 0.0),
        last_success=min(lasts, default=None),
        abandoned=one.abandoned + other.abandoned,
    )
