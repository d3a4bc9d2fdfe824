"""Everything that runs, for as long as it runs."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path

from watchdog import __version__, registry
from watchdog import config as configuration
from watchdog.core import facts
from watchdog.core.model import Commanded, Event, Mode, ProcessState, Verb
from watchdog.core.state import State, Step
from watchdog.daemon import aftercare, nginx
from watchdog.daemon.aftercare import Aftercare
from watchdog.daemon.beginning import address, doors, opened, read_ahead, recalled
from watchdog.daemon.box import EngineBox
from watchdog.daemon.box_control import Hands
from watchdog.daemon.complaints import Complaints
from watchdog.daemon.configured import Source
from watchdog.daemon.crew import Crew, Muster, adopted, as_it_runs
from watchdog.daemon.evidence import collector
from watchdog.daemon.front import Front
from watchdog.daemon.gates import Gates
from watchdog.daemon.locks import Locks
from watchdog.daemon.log_care import LogCare
from watchdog.daemon.lookout import Looking, Lookout
from watchdog.daemon.loop import Loop
from watchdog.daemon.memory import Memory
from watchdog.daemon.model_watch import ModelWatch
from watchdog.daemon.plan import InForce, Planner
from watchdog.daemon.reload import Reloader
from watchdog.daemon.shown import Shown
from watchdog.daemon.signals import Signals, enqueue
from watchdog.daemon.strays import living, ports_left, strays
from watchdog.daemon.turns import Turns
from watchdog.daemon.wiring import Makings, build_probes, period_of
from watchdog.executor import Beside, Repertoire
from watchdog.inbox import Inbox
from watchdog.logs import Journal
from watchdog.metrics import Exporter
from watchdog.notify import Notifier
from watchdog.procfs import boot_id
from watchdog.recorder import Recorder
from watchdog.schedule import Schedule
from watchdog.supervisor import tempdirs
from watchdog.supervisor.engine import Surroundings
from watchdog.supervisor.exits import ExitWatch
from watchdog.supervisor.household import Household, become_reaper
from watchdog.supervisor.leftovers import Sweeper

_TIDY_PERIOD, _RETURN_PERIOD = 300.0, 10.0
_EXPIRE_PERIOD = 1.0


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
        lacks: tuple[str, ...] = (),
    ) -> None:
        self._now, self._locks = now, locks
        self._journal, self._complaints = journal, Complaints(journal)
        self._state_dir, self._lacks = state_dir, lacks
        self._gave_up = False
        self._inbox = Inbox()
        enqueue(self._inbox)  # first of all: what is built below must not outlive a SIGTERM
        self._household = Household()
        self._store = opened(state_dir, self._complaints.warn, durable=durable)
        self._memory = Memory(self._store)
        self._exit_watch = ExitWatch(self._complaints.exit_watch)
        self._specs = registry.probes()
        state = recalled(now.config, state_dir, self._memory)
        self._box = EngineBox({}, self._store, str(state_dir) if durable else "")
        self._crew = Crew(self._box)
        self._models = ModelWatch(self._store, journal.log, self._model_change)
        self._hands = Hands(Sweeper(self._store.ended_tempdirs), self._household, self._box.engines)
        self._gates = self._build_gates()
        self._repertoire = Repertoire(registry.actions(), now.config.actions)
        self._upstream = nginx.upstream(state_dir, self._crew, self._household, journal)
        self._take_up()
        kept_in = state_dir if durable else None
        self._evidence = collector(lambda: self._shown, self._box, self._household, now, kept_in)
        makings = self._makings(durable=durable)
        state = self._muster(makings, state)
        self._schedule = Schedule(self._complaints.job)
        self._lookout = Lookout(self._schedule, self._looking())
        self._recorder = Recorder(kept_in, self._complaints.warn, boot=boot_id())
        self._shown = self._build_shown()
        self._exporter = Exporter(self._specs, self._shown.snapshot)
        self._exporter.recall(state.incidents)
        self._notifier = Notifier.begun(now.config, journal.log, self._exporter, state)
        self._signals = self._build_signals()
        self._loop = self._build_loop(state)
        self._reloader = self._build_reloader(source, makings, locks)
        self._front = self._build_front()
        self._host, port = address(now.config)
        self._servers = doors(self._front, self._host, port, kept_in)
        self._log_care = LogCare(self._crew.logs, self._complaints.warn)

    def run(self, *, leave: bool) -> bool:
        """Run until a shutdown is complete; whether that is because every engine was given up."""
        self._signals.leave = leave
        if not become_reaper():
            self._complaints.warn("cannot adopt orphans: neither PID 1 nor a subreaper")
        self._journal.log(
            "info",
            "watchdog.started",
            version=__version__,
            status=f"http://{self._host}:{self._servers[0].port}/",
            state_dir=str(self._state_dir),
            mode=self._loop.state.mode.value,
        )
        self._adopt()
        gc.freeze()  # what lives now lives on: the collector need not look at it again and again
        gc.enable()
        for server in self._servers:
            server.start()
        self._begin_probes()
        self._record_anew()
        self._care.begin()
        self._loop.run()
        return self._end()

    # --- building -----------------------------------------------------------------------------

    def _build_gates(self) -> Gates:
        return Gates(
            self._specs,
            self._box,
            {},
            patience=self._crew.patience,
            unwanted=self._is_unwanted,
            hurried=lambda: self._loop.state.shutting_down,
            turns=Turns(self._published, lambda: self._now.config.watchdog.starts_at_once),
            sweeper=self._hands.sweeper,
            say=self._complaints.gate,
        )

    def _build_front(self) -> Front:
        return Front(
            self._loop,
            self._inbox,
            self._exporter,
            self._shown.snapshot,
            self._reloader.ask,
            lambda: self._crew.leaving,
        )

    def _build_signals(self) -> Signals:
        return Signals(self._published, self._crew, self._household, self._journal, self._hung_up)

    def _build_shown(self) -> Shown:
        return Shown(
            self._published,
            self._now,
            self._crew,
            self._gates,
            self._lookout,
            self._journal,
            self._recorder,
            self._inbox,
            self._now.config.sha256,
            self._lacks,
            bundles=lambda: self._evidence.paths,
            state_dir=self._state_dir,
        )

    def _muster(self, makings: Makings, state: State) -> State:
        """The engines of the configuration, and those of an earlier one that have to end."""
        engines = {name: makings.engine(name, e) for name, e in self._now.config.engine.items()}
        found = {}
        if state.mode is Mode.ACT:
            found = strays(makings, self._memory, engines)
        for name, pid in living(self._store, self._household, engines | found).items():
            self._complaints.warn(
                f"engine {name} (process {pid}) runs and is not configured: it is let be"
            )
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
            self._state_dir if durable else tempdirs.for_logs(),
            Surroundings(
                self._household,
                self._exit_watch,
                self._store,
                self._inbox.post,
                self._complaints.warn,
                self._box.owner,
            ),
            self._repertoire,
            self._hands,
            self._published,
            self._gates,
            self._crew.in_the_way,
            self._models,
            before_stop=self._upstream.withdraw,
            before_action=self._evidence.take,
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
            beside=Beside("box", self._repertoire, self._hands, self._inbox.post),
            watchers=(
                self._write,
                self._exporter.observe,
                self._notifier.observe,
                self._shown.recent.observe,
                self._upstream.observe,
                self._models.observe,
                self._recorder.observe,
                self._consider_exit,
                self._watch_reload,
            ),
            on_signal=self._signals.taken,
            on_error=self._complaints.loop,
            remember=self._remember,
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
        self._notifier.use(self._now.config.notify)
        self._shown.config_hash = self._now.config.sha256
        self._record_anew()

    def _record_anew(self) -> None:
        """What comes is told to a state that no event has led to."""
        self._recorder.begin(self._loop.state, time.monotonic())

    def _take_up(self) -> None:
        """What follows from the configuration in force."""
        config = self._now.config
        self._upstream.use(config.nginx)
        self._repertoire.configure(config.actions)
        self._gates.floors = config.probes["driver"].settings.floors

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
        self._lookout.begin()
        self._schedule.every(_EXPIRE_PERIOD, self._lookout.expire, "expire")
        self._schedule.every(_TIDY_PERIOD, self._store.tidy, "tidy")
        self._schedule.every(_RETURN_PERIOD, self._store.return_to_disk, "return")
        self._schedule.start()
        self._log_care.start()
        read_ahead(self._complaints.warn)

    def _end(self) -> bool:
        self._journal.log("info", "watchdog.stopping", leave=self._signals.leave)
        self._reloader.close()
        self._schedule.stop()
        self._log_care.close()
        self._lookout.close()
        for server in self._servers:
            server.stop()
        self._gates.close()
        self._hands.close()
        self._evidence.close()
        for engine in self._crew.engines.values():
            engine.actor.close()
            if engine.supervised.is_left:
                self._journal.log("info", "engine.left", engine=engine.supervised.name)
            engine.supervised.leave()
        self._upstream.close([n for n, e in self._crew.engines.items() if e.supervised.is_left])
        self._exit_watch.close()
        self._notifier.close()
        self._recorder.close()
        self._store.close()
        return self._gave_up

    # --- watching the steps -------------------------------------------------------------------

    def _write(self, _: Event, step: Step) -> None:
        for record in step.records:
            self._journal.write(record)

    def _remember(self, event: Event, step: Step) -> None:
        self._memory.keep(step)
        if isinstance(event, Commanded):
            names = (event.engine,) if event.engine else tuple(step.state.engines)
            self._models.commanded(event.verb, names, by_reload=event.owner == aftercare.OWNER)
        for decision in step.decisions:
            self._models.decided(decision)

    def _watch_reload(self, event: Event, step: Step) -> None:
        self._care.watch(event, step)

    def _consider_exit(self, _: Event, step: Step) -> None:
        if step.state.shutting_down and not self._signals.leave:
            self._gates.end()
        exits = self._now.config.policy.on_give_up is configuration.OnGiveUp.EXIT
        if exits and not step.state.shutting_down and _all_given_up(step.state):
            self._gave_up = True
            self._inbox.post(Commanded(time.monotonic(), Verb.SHUTDOWN, owner="watchdog"))

    def _is_unwanted(self, name: str) -> bool:
        engine = self._loop.state.engines.get(name)
        if engine is None:
            return False
        return engine.pending in {Verb.STOP, Verb.SHUTDOWN}

    def _hung_up(self) -> None:
        self._reloader.hung_up()

    # --- what others see ----------------------------------------------------------------------

    def _model_change(self, name: str) -> configuration.ModelChange:
        engine = self._now.config.engine.get(name)
        return configuration.ModelChange.ACCEPT if engine is None else engine.model_change

    def _published(self) -> State:
        return self._loop.state


def _all_given_up(state: State) -> bool:
    wanted = [e for e in state.engines.values() if e.history.wanted]
    return bool(wanted) and all(e.process is ProcessState.GIVEN_UP for e in wanted)
