"""Everything that runs, for as long as it runs."""

from __future__ import annotations

import signal
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

from watchdog import __version__, registry
from watchdog import config as configuration
from watchdog.core import facts, policy
from watchdog.core.model import Commanded, Event, Mode, ProcessState, Verb
from watchdog.core.state import State, Step
from watchdog.daemon.aftercare import Aftercare
from watchdog.daemon.box import EngineBox
from watchdog.daemon.configured import Source
from watchdog.daemon.crew import Crew, Muster, adopted, as_it_runs
from watchdog.daemon.front import Front
from watchdog.daemon.gates import Gates
from watchdog.daemon.locks import Locks
from watchdog.daemon.lookout import Looking, Lookout
from watchdog.daemon.loop import Loop
from watchdog.daemon.memory import Memory
from watchdog.daemon.plan import InForce, Planner
from watchdog.daemon.reload import Reloader
from watchdog.daemon.strays import living, ports_left, strays
from watchdog.daemon.wiring import (
    Makings,
    build_probes,
    core_settings,
    period_of,
)
from watchdog.inbox import Inbox, Signalled
from watchdog.logs import Journal
from watchdog.metrics import Exporter
from watchdog.procfs import boot_id
from watchdog.recorder import Recorder
from watchdog.schedule import Schedule
from watchdog.snapshot import Snapshot
from watchdog.store import Store
from watchdog.supervisor.engine import Surroundings
from watchdog.supervisor.exits import ExitWatch
from watchdog.supervisor.household import Household, become_reaper
from watchdog.web.app import App
from watchdog.web.server import Server, serve_socket, serve_tcp

_TIDY_PERIOD = 300.0
_EXPIRE_PERIOD = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGHUP)


class Service:
    """Built whole before anything starts, so that what cannot work is refused first."""

    def __init__(  # noqa: PLR0913 - what a run begins with
        self,
        source: Source,
        now: InForce,
        locks: Locks,
        state_dir: Path,
        journal: Journal,
        *,
        durable: bool,
    ) -> None:
        self._now = now
        self._locks = locks
        self._config_hash = now.config.sha256
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
        state = self._recalled()
        self._box = EngineBox({}, self._store)
        self._gates = Gates(self._specs, self._box, {})
        self._crew = Crew(self._box)
        self._gates.patience, self._gates.unwanted = self._crew.patience, self._is_unwanted
        self._gates.hurried = lambda: self._loop.state.shutting_down
        self._take_up()
        makings = self._makings(durable=durable)
        state = self._muster(makings, state)
        self._schedule = Schedule(self._job_failed)
        self._lookout = Lookout(self._schedule, self._looking())
        self._exporter = Exporter(self._specs, self._snapshot)
        self._exporter.recall(state.incidents)
        self._recorder = Recorder(state_dir if durable else None, self._warn, boot=boot_id())
        self._loop = self._build_loop(state)
        self._reloader = self._build_reloader(source, makings, locks)
        self._front = Front(
            self._loop,
            self._inbox,
            self._exporter,
            self._snapshot,
            self._reloader.ask,
            lambda: self._crew.leaving,
        )
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
        self._record_anew()
        self._care.begin()
        self._loop.run()
        return self._end()

    # --- building -----------------------------------------------------------------------------

    def _open_store(self, *, durable: bool) -> Store:
        store = Store.open(self._state_dir, self._warn) if durable else Store.in_memory()
        for text in store.warnings:
            self._warn(text)
        return store

    def _recalled(self) -> State:
        config = self._now.config
        settings = core_settings(config, self._state_dir)
        standby = frozenset(name for name, e in config.engine.items() if e.standby)
        state = self._memory.recall(settings, standby)
        return replace(state, mode=Mode(config.watchdog.mode.value))

    def _muster(self, makings: Makings, state: State) -> State:
        """The engines of the configuration, and those of an earlier one that have to end."""
        engines = {name: makings.engine(name, e) for name, e in self._now.config.engine.items()}
        found = {}
        if state.mode is Mode.ACT:
            found = strays(makings, self._memory, engines)
        for name, pid in living(self._store, self._household, engines | found).items():
            self._warn(f"engine {name} (process {pid}) runs and is not configured: it is let be")
        accounts = {name: stray.account for name, stray in found.items()}
        came = {name: stray.engine for name, stray in found.items()}
        self._crew.change(Muster(engines | came, {}), accounts)
        self._memory.leaving = accounts
        self._locks.add(self._locks.available(ports_left(self._store, engines | came)))
        return replace(
            state, engines={**state.engines, **{n: one.state for n, one in found.items()}}
        )

    def _makings(self, *, durable: bool) -> Makings:
        return Makings(
            self._state_dir if durable else Path(tempfile.mkdtemp(prefix="vw-log-")),
            Surroundings(self._household, self._exit_watch, self._store, self._inbox.post),
            registry.actions(),
            self._published,
            self._gates,
            self._crew.in_the_way,
        )

    def _looking(self) -> dict[tuple[str, str], Looking]:
        config = self._now.config
        runs = build_probes(config, self._specs, self._box, self._inbox.post)
        return {
            (run.spec.name, "" if run.subject is None else run.subject.name): Looking(
                run, period_of(config, run.spec)
            )
            for run in runs
        }

    def _build_loop(self, state: State) -> Loop:
        return Loop(
            state=state,
            rules=self._now.rules,
            settings=self._now.config.policy.core(),
            inbox=self._inbox,
            actors=self._crew.actors,
            watchers=(
                self._write,
                self._exporter.observe,
                self._keep,
                self._recorder.observe,
                self._consider_exit,
                self._watch_reload,
            ),
            on_signal=self._signalled,
            on_error=self._loop_failed,
            outer_limit=self._crew.patience,
        )

    def _build_reloader(self, source: Source, makings: Makings, locks: Locks) -> Reloader:
        planner = Planner(
            source=source,
            now=self._now,
            state_dir=self._state_dir,
            specs=self._specs,
            makings=makings,
            crew=self._crew,
            lookout=self._lookout,
            locks=locks,
            memory=self._memory,
            box=self._box,
        )
        self._care = Aftercare(planner, self._loop, self._inbox, self._journal, self._switched)
        return Reloader(
            planner=planner,
            loop=self._loop,
            inbox=self._inbox,
            journal=self._journal,
            exporter=self._exporter,
            care=self._care,
            on_switch=self._switched,
        )

    def _switched(self) -> None:
        self._take_up()
        self._record_anew()

    def _record_anew(self) -> None:
        """What comes is told to a state that no event has led to."""
        self._recorder.begin(self._loop.state, time.monotonic())

    def _take_up(self) -> None:
        """What follows from the configuration in force."""
        config = self._now.config
        self._config_hash = config.sha256
        self._gates.floors = config.probes["driver"].settings.floors

    def _build_servers(self, *, durable: bool) -> list[Server]:
        self._host, port = configuration.listen_address(self._now.config.watchdog.listen)
        servers = [serve_tcp(App(self._front), self._host, port)]
        if durable:
            path = self._state_dir / "control.sock"
            servers.append(serve_socket(App(self._front, control=True), path))
        return servers

    # --- beginning and end --------------------------------------------------------------------

    def _adopt(self) -> None:
        """Take over what an earlier watchdog left, before the first decision is made."""
        acts = self._loop.state.mode is Mode.ACT
        for engine in self._crew.engines.values():
            found = adopted(engine, self._store, clean_up=acts)
            for event in (*engine.mailbox.open(), *found):
                self._take_fact(event)
            known = self._loop.state.engines[engine.supervised.name]
            self._loop.state = self._loop.state.with_engine(as_it_runs(known, engine))

    def _take_fact(self, event: Event) -> None:
        state, records = facts.took(self._loop.state, event, self._now.config.policy.core())
        self._loop.state = state
        for record in records:
            self._journal.write(record)

    def _begin_probes(self) -> None:
        self._lookout.settle()
        self._schedule.every(_EXPIRE_PERIOD, self._lookout.expire, "expire")
        self._schedule.every(_TIDY_PERIOD, self._store.tidy, "tidy")
        self._schedule.start()

    def _end(self) -> bool:
        self._journal.log("info", "watchdog.stopping", leave=self._leave)
        self._reloader.close()
        self._schedule.stop()
        self._lookout.close()
        for server in self._servers:
            server.stop()
        self._gates.close()
        for engine in self._crew.engines.values():
            engine.actor.close()
            if engine.supervised.is_left:
                self._journal.log("info", "engine.left", engine=engine.supervised.name)
            engine.supervised.leave()
        self._exit_watch.close()
        self._recorder.close()
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

    def _watch_reload(self, event: Event, step: Step) -> None:
        self._care.watch(event, step)

    def _consider_exit(self, _: Event, step: Step) -> None:
        if step.state.shutting_down and not self._leave:
            self._gates.end()
        exits = self._now.config.policy.on_give_up is configuration.OnGiveUp.EXIT
        if exits and not step.state.shutting_down and _all_given_up(step.state):
            self._gave_up = True
            self._inbox.post(Commanded(time.monotonic(), Verb.SHUTDOWN, owner="watchdog"))

    def _signalled(self, number: int) -> Commanded | None:
        if number == signal.SIGCHLD:
            self._household.reap_orphans()
            return None
        if number == signal.SIGHUP:
            self._journal.reopen()
            self._reloader.hung_up()
            return None
        observing = self._loop.state.mode is not Mode.ACT
        if number == signal.SIGQUIT or observing:
            self._leave = True
        if self._leave:
            self._let_be()
        verb = Verb.LEAVE if self._leave else Verb.SHUTDOWN
        return Commanded(time.monotonic(), verb, owner=signal.Signals(number).name)

    def _let_be(self) -> None:
        """A restart that still drains is not made; one that signals already starts anew first."""
        for name, engine in self._loop.state.engines.items():
            if engine.in_flight == "restart_engine" and engine.pending is None:
                self._crew.engines[name].supervised.let_be()

    def _is_unwanted(self, name: str) -> bool:
        engine = self._loop.state.engines.get(name)
        if engine is None:
            return False
        return engine.pending in {Verb.STOP, Verb.SHUTDOWN}

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
        state, now, engines = self._loop.state, time.monotonic(), self._crew.engines
        settings = self._now.config.policy.core()
        return Snapshot(
            state=state,
            at=now,
            wall=time.time(),
            version=__version__,
            config_hash=self._config_hash,
            pids={
                name: tuple(info.pid for info in engine.supervised.processes())
                for name, engine in engines.items()
            },
            ports={name: e.target.endpoint.port for name, e in engines.items()},
            budget={
                name: policy.budget_remaining(
                    engine.history, now, settings, booted=engine.ready_at is not None
                )
                for name, engine in state.engines.items()
            },
            probes=self._lookout.stats(state),
            lines_lost=self._journal.lost,
            events_lost=self._recorder.lost,
            inbox_depth=self._inbox.depth(),
        )


def _all_given_up(state: State) -> bool:
    wanted = [e for e in state.engines.values() if e.history.wanted]
    return bool(wanted) and all(e.process is ProcessState.GIVEN_UP for e in wanted)
