"""One engine under supervision: the only hands that touch its processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from watchdog.contracts import Endpoint, LogPlace, ProcessInfo
from watchdog.core.model import Cause, EngineExited, EngineSpawned, Seconds
from watchdog.ledger import GenerationRecord
from watchdog.supervisor import adoption, causes, hooks, launched, lost
from watchdog.supervisor.adoption import Adoption
from watchdog.supervisor.engine_settings import EngineSettings, Surroundings
from watchdog.supervisor.exits import ExitStatus, exit_status
from watchdog.supervisor.gate import GateStep, GateVerdict, Refusal, pass_gate, port_free
from watchdog.supervisor.generation import Generation, end_record
from watchdog.supervisor.household import reap
from watchdog.supervisor.ladder import StopLadder
from watchdog.supervisor.members import MemberTable, key
from watchdog.supervisor.spawn import lasting
from watchdog.supervisor.starting import started

__all__ = ["EngineSettings", "SupervisedEngine", "Surroundings"]

_LOOK_PERIOD = 0.2
"""Several probes look in the same moment: one look at the set serves them all."""

_HANDS_OFF: Seconds = 5.0
"""How long an end waits for hands, or for words, that are still at it."""

_NEVER: tuple[Seconds, str, tuple[ProcessInfo, ...]] = (0.0, "", ())


class SupervisedEngine:
    """Implements ``EngineControl``, and ``processes`` and ``log_bytes`` of ``EngineTarget``.

    A generation keeps the settings that it was started with; new ones are for the next start.
    ``start``, ``stop`` and ``adopt`` belong to the engine's actor thread, and ``leave`` waits for
    them; everything else may be called from any thread.
    """

    def __init__(self, settings: EngineSettings, surroundings: Surroundings) -> None:
        self._settings = settings
        self._present: EngineSettings | None = None
        self._around = surroundings
        self._generation: Generation | None = None
        self._looked = _NEVER
        self._hands = threading.RLock()
        self._let_be = threading.Event()
        self._is_left = False

    @property
    def name(self) -> str:
        """The name that the configuration gives it."""
        return self._settings.launch.engine

    @property
    def settings(self) -> EngineSettings:
        """Those of its next start."""
        return self._settings

    @property
    def present(self) -> EngineSettings | None:
        """Those of the generation that may live; None when nothing of it does."""
        return self._present

    def reconfigure(self, settings: EngineSettings) -> None:
        """Start with ``settings`` the next time. What runs, or starts just now, is not touched."""
        self._settings = settings

    def is_outdated(self, settings: EngineSettings | None = None) -> bool:
        """Whether something lives that ``settings`` (those of the next start) start otherwise."""
        generation, wanted = self._generation, settings or self._settings
        return generation is not None and launched.differs(
            generation.record, wanted.launch, wanted.endpoint
        )

    def let_be(self) -> None:
        """Begin no stop that has signalled nobody yet, nor the start after it: we leave."""
        self._let_be.set()

    @property
    def is_left(self) -> bool:
        """Whether a restart was let be: it runs as it did."""
        return self._is_left

    @property
    def endpoint(self) -> Endpoint:
        """Where it is spoken to: what runs, or else the next start."""
        return (self._present or self._settings).endpoint

    @property
    def command(self) -> tuple[str, ...]:
        """What starts it the next time."""
        return self._settings.launch.command

    @property
    def environment(self) -> Mapping[str, str]:
        """What its next start gets, without what belongs to one generation alone."""
        return lasting(self._settings.launch)

    def processes(self) -> tuple[ProcessInfo, ...]:
        """The living set, the leader first; what was found is recorded for the next watchdog."""
        generation = self._generation
        if generation is None:
            return ()
        at, of, found = self._looked
        now = time.monotonic()
        if of != generation.record.id or now - at > _LOOK_PERIOD:
            found = generation.table.refresh(spare=True)
            self._looked = (now, generation.record.id, found)
            generation.glance_at_memory()
            self._note_members(generation, found)
        return found

    def log_bytes(self) -> int | None:
        """Bytes that this generation has logged since the last rotation; None when unknown."""
        generation = self._generation
        return None if generation is None else generation.log_bytes()

    def log_place(self) -> LogPlace | None:
        """Where this generation logs."""
        generation = self._generation
        return None if generation is None else generation.log_place()

    def _note_members(self, generation: Generation, found: tuple[ProcessInfo, ...]) -> None:
        keys = tuple(sorted(key(info) for info in found))
        if keys != generation.noted:
            generation.noted = keys
            self._around.ledger.members(generation.record.id, keys)

    # --- start --------------------------------------------------------------------------------

    def start(self, cause: Cause) -> None:
        """Pass the gate and spawn; returns at the spawn. Raises ActionError.

        What a crashed generation left is ended first; a living leader refuses the start.
        """
        with self._hands:
            if not self._is_left:
                self._start(cause)

    def _start(self, cause: Cause) -> None:
        settings = self._settings  # all of one start has the same, whoever reconfigures meanwhile
        pass_gate(
            (
                GateStep("set-empty", self._previous_over, again=True),
                *settings.before,
                GateStep("port-free", lambda: self._port_free(settings), again=True),
                *settings.gate,
                GateStep("pre-start", lambda: self._prepared(settings)),
                *settings.last,
            )
        )
        generation = started(settings, self._around)
        self._generation, self._present = generation, settings
        record = generation.record
        at = record.spawned_at or time.monotonic()
        self._around.notify(
            EngineSpawned(at, self.name, record.id, generation.pid, cause, spawned_at=at)
        )
        self._watch(generation)

    def _previous_over(self) -> Refusal | None:
        generation = self._generation
        if generation is not None:
            if not generation.leader_gone():
                text = f"cannot start {self.name}: {generation.pid} lives"
                return Refusal(Cause.UNKNOWN, text, GateVerdict.SET_NOT_EMPTY)
            self.stop(drain=False, cause=Cause.CRASH)
        for record in self._around.ledger.living(self.name):
            living = adoption.living_members(record, self._around.ledger, self._around.household)
            if living:
                text = f"cannot start {self.name}: process {living[0].pid} of an older start lives"
                return Refusal(Cause.UNKNOWN, text, GateVerdict.SET_NOT_EMPTY)
            end_record(record, self._around.ledger, ExitStatus(), Cause.UNKNOWN)
        return None

    def _port_free(self, settings: EngineSettings) -> Refusal | None:
        return port_free(settings.endpoint, self.name, self._around.whose)

    def _prepared(self, settings: EngineSettings) -> Refusal | None:
        """The operator's commands, the last of what may take long."""
        wrong = hooks.run(
            settings.pre_start,
            "pre_start",
            settings.launch,
            self._around.household,
            settings.unwanted,
        )
        if wrong is None:
            return None
        text = f"cannot start {self.name}: {wrong}"
        return Refusal(Cause.PRE_START_FAILED, text, GateVerdict.PRE_START_FAILED)

    def _watch(self, generation: Generation) -> None:
        if generation.pidfd is not None:
            generation.token = self._around.exit_watch.watch(
                generation.pidfd, generation.pid, lambda status: self._exited(generation, status)
            )

    # --- the leader's exit --------------------------------------------------------------------

    def _exited(self, generation: Generation, status: ExitStatus) -> None:
        if not generation.note_exit(status):
            return
        try:
            self._tell_exit(generation, status)
        finally:
            generation.told.set()

    def _tell_exit(self, generation: Generation, status: ExitStatus) -> None:
        at = time.monotonic()
        self._looked = _NEVER
        why = self._explained(generation, status)
        generation.cause = why.cause
        self._around.notify(
            EngineExited(
                at,
                self.name,
                generation.record.id,
                status.exit_code,
                status.signal,
                why.cause,
                why.explanation,
                why.advice,
            )
        )

    def _explained(self, generation: Generation, status: ExitStatus) -> causes.Classified:
        """The exit is told whatever becomes of its explanation."""
        try:
            return self._why(generation, status)
        except Exception as error:  # noqa: BLE001 - as above
            self._around.warn(f"engine {self.name}: cannot explain its exit: {error}")
            return causes.Classified(Cause.CRASH, f"the engine {status}, and nobody knows why")

    def _why(self, generation: Generation, status: ExitStatus) -> causes.Classified:
        asked, killed = generation.asked, generation.killed_for_memory(status)
        if killed is not None and asked in causes.MAIMED:
            return causes.Classified(Cause.OOM_KILLED, killed.explanation)
        if asked is not None:
            return causes.Classified(asked, f"stopped on purpose ({asked}); the engine {status}")
        place = generation.log_place()
        since = generation.record.planned_wall
        tail = causes.log_tail(Path(place.path), place.offset, since=since)
        oom = None if killed is None else killed.explanation
        return causes.classify(status, tail, generation.table.lost, oom=oom)

    # --- stop ---------------------------------------------------------------------------------

    def stop(self, *, drain: bool, cause: Cause, generation: str = "") -> None:  # noqa: ARG002
        """Run the ladder until the set is proven empty; raises ActionError(unkillable=True)."""
        with self._hands:
            self._stop(drain=drain, cause=cause)

    def _stop(self, *, drain: bool, cause: Cause) -> None:
        generation = self._generation
        if generation is None:
            return
        if generation.leader_gone():
            self._note_death(generation)
        else:
            generation.asked = cause
        settings = self._present or self._settings
        if drain:
            self._withdraw(settings)
        ladder = StopLadder(
            generation.table,
            self._around.household,
            settings.stop,
            settings.running_requests,
            self._let_be.is_set,
        )
        if not ladder.run(drain=drain, cause=cause):
            generation.asked, self._is_left = None, True
            return
        self._over(generation)

    def _withdraw(self, settings: EngineSettings) -> None:
        """Who sends requests is no reason not to stop."""
        try:
            settings.withdraw()
        except Exception as error:  # noqa: BLE001 - as above
            self._around.warn(f"engine {self.name}: cannot withdraw it: {error}")

    def _note_death(self, generation: Generation) -> None:
        """Report the exit if the exit watch has not yet: before anything is done about it.

        While the exit watch is at it, it is waited for: what begins anew is told of afterwards.
        """
        if generation.pidfd is None:
            return
        if generation.status is None:
            self._exited(generation, exit_status(generation.pidfd, generation.pid))
        generation.told.wait(_HANDS_OFF)

    def _over(self, generation: Generation) -> None:
        """The set is proven empty: report, reap, forget."""
        self._note_death(generation)
        if generation.token is not None:
            self._around.exit_watch.unwatch(generation.token)
        if generation.spawned:
            # Only now: until here the zombie kept its pid, and so the session, from being reused.
            reap(generation.pid)
            self._around.household.forget(generation.pid)
        self._around.household.generation_over(generation.record.id)
        generation.close()
        settings = self._present or self._settings
        self._generation = self._present = None
        status = generation.status or ExitStatus()
        end_record(generation.record, self._around.ledger, status, generation.cause)
        self._clear_up(settings)

    def _clear_up(self, settings: EngineSettings) -> None:
        """The operator's commands for afterwards; what goes wrong with them is told."""
        launch, household = settings.launch, self._around.household
        wrong = hooks.run(settings.post_stop, "post_stop", launch, household)
        if wrong is not None:
            self._around.warn(f"engine {self.name}: {wrong}")

    # --- adoption -----------------------------------------------------------------------------

    def adopt(self, *, clean_up: bool = True) -> Adoption:
        """Take over what an earlier watchdog left of this engine; end what is half dead.

        Without ``clean_up`` (observing) nothing is signalled. Raises ActionError(unkillable=True).
        """
        with self._hands:
            return self._adopt(clean_up=clean_up)

    def _adopt(self, *, clean_up: bool) -> Adoption:
        settings = self._settings
        anew = lost.recover(settings.launch, settings.endpoint, self._around.ledger)
        for record in anew:
            self._around.warn(f"engine {self.name}: process {record.pid} had no record any more")
        found = adoption.look(self.name, self._around.ledger, self._around.household, anew)
        ended = tuple(record.id for record, _ in found.remains)
        try:
            for record, table in found.remains if clean_up else ():
                self._end_remains(record, table)
        finally:  # what cannot be ended must not cost what serves
            if found.adopted is not None:
                self._take_over(found.adopted)
        return Adoption(None if found.adopted is None else found.adopted.record, ended)

    def _take_over(self, generation: Generation) -> None:
        record, settings = generation.record, self._settings
        was = launched.of_record(record, settings.launch, settings.endpoint, settings.stop)
        self._present = replace(settings, launch=was[0], endpoint=was[1], stop=was[2])
        generation.watch_memory()
        self._generation = generation
        self._around.household.generation_began(record.id)
        self._around.notify(
            EngineSpawned(
                time.monotonic(),
                self.name,
                record.id,
                generation.pid,
                Cause.UNKNOWN,
                adopted=True,
                ready=record.ready_at is not None,
                spawned_at=record.spawned_at,
                ready_at=record.ready_at,
            )
        )
        self._watch(generation)

    def _end_remains(self, record: GenerationRecord, table: MemberTable | None) -> None:
        if table is not None:
            StopLadder(table, self._around.household, self._settings.stop).run(
                drain=False, cause=Cause.CRASH
            )
        end_record(record, self._around.ledger, ExitStatus(), Cause.UNKNOWN)

    def leave(self) -> None:
        """Let go of the engine and leave it running for the next watchdog."""
        sure = self._hands.acquire(timeout=_HANDS_OFF)  # hung hands must not keep us alive
        try:
            self._leave()
        finally:
            if sure:
                self._hands.release()

    def _leave(self) -> None:
        generation = self._generation
        if generation is None:
            return
        self._note_members(generation, generation.table.refresh(full=True))
        if generation.token is not None:
            self._around.exit_watch.unwatch(generation.token)
        if generation.spawned:
            self._around.household.forget(generation.pid)
        self._around.household.generation_over(generation.record.id)
        generation.close()
        self._generation = self._present = None
