"""An engine that somebody else starts: found by its port, watched, and ended only where allowed.

A start is here to wait for whoever starts it; a stop, where it may be made, is the same ladder as
for an engine of ours. Nothing of it is recorded for the next watchdog, which finds it as we did.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from watchdog import procfs
from watchdog.contracts import ActionError, LogPlace, ProcessInfo
from watchdog.core.model import Cause, EngineExited, EngineSpawned, Seconds
from watchdog.ledger import GenerationRecord
from watchdog.supervisor import identity, launched, presence
from watchdog.supervisor.adoption import Adoption
from watchdog.supervisor.engine import SupervisedEngine
from watchdog.supervisor.engine_settings import EngineSettings, Surroundings
from watchdog.supervisor.exits import ExitStatus
from watchdog.supervisor.gate import GateStep, pass_gate
from watchdog.supervisor.generation import Generation
from watchdog.supervisor.members import MemberTable
from watchdog.supervisor.memory_ledger import MemoryLedger

_LOOK_PERIOD: Seconds = 0.5
"""A look when nobody is there reads two small files."""
_MISSED = 6
"""So many looks in a row without a listener end an engine of which nothing else can be seen."""


@dataclass(frozen=True, slots=True)
class Terms:
    """``signals``: it may be ended. ``patience``: so long a restart waits for its next start."""

    signals: bool
    patience: Seconds


class AttachedEngine(SupervisedEngine):
    """As ``SupervisedEngine``; a thread of its own looks whether the engine is there.

    ``adopt`` begins the looking and ``leave`` ends it. The engine is left as it is at our end.
    """

    def __init__(self, settings: EngineSettings, surroundings: Surroundings, terms: Terms) -> None:
        super().__init__(settings, replace(surroundings, ledger=MemoryLedger()))
        self._terms = terms
        self._over_with = threading.Event()
        self._missed = 0
        self._said = ""
        self._awaits = False

    @property
    def awaits(self) -> bool:
        """Whether a start waits for somebody to make it."""
        return self._awaits

    @property
    def is_left(self) -> bool:
        """Whether it is there: whatever becomes of us, it goes on."""
        return self._generation is not None

    def reconfigure(self, settings: EngineSettings) -> None:
        """Speak to it as ``settings`` say from now on."""
        super().reconfigure(settings)
        if self._present is not None:
            self._present = settings

    def is_outdated(self, settings: EngineSettings | None = None) -> bool:
        """Never: how it is started is not ours to say."""
        del settings
        return False

    def log_bytes(self) -> int | None:
        """None: it logs where somebody else said."""
        return None

    def log_place(self) -> LogPlace | None:
        """None, as ``log_bytes``."""
        return None

    # --- looking ------------------------------------------------------------------------------

    def _adopt(self, *, clean_up: bool) -> Adoption:
        del clean_up
        self._glance(self._found)
        threading.Thread(target=self._keep_looking, name=f"attach-{self.name}", daemon=True).start()
        return Adoption()

    def _keep_looking(self) -> None:
        while not self._over_with.wait(_LOOK_PERIOD):
            if not self._hands.acquire(blocking=False):
                continue  # a stop or a start is at it, and looks itself
            try:
                self._glance(self._found)
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                self._tell(f"cannot look for it: {error}")
            finally:
                self._hands.release()

    def _glance(self, found: Callable[[ProcessInfo | None], None]) -> None:
        """One look, which lets go of who is gone and gives who came to ``found``."""
        generation = self._generation
        if self._over_with.is_set() or (generation is not None and _leads(generation)):
            return
        seen = presence.look(self._settings.endpoint, self._settings.launch.command)
        self._tell(seen.why)
        if generation is not None and generation.pidfd is None:
            if self._goes_on_unseen(seen):
                return
            if seen.leader is not None:
                self._forget(generation)  # it has come into sight, and goes on as that
                generation = None
        if generation is not None and (seen.serves or not self._lives_on(generation)):
            self._let_go(generation)
        if seen.serves:
            found(seen.leader)

    def _is_there(self, generation: Generation) -> bool:
        return _leads(generation) or (generation.pidfd is None and self._missed < _MISSED)

    def _goes_on_unseen(self, seen: presence.Presence) -> bool:
        self._missed = 0 if seen.serves else self._missed + 1
        return seen.leader is None and self._missed < _MISSED

    def _lives_on(self, generation: Generation) -> bool:
        """Whether something of it may still be ended by a stop of ours."""
        return self._terms.signals and bool(generation.table.refresh())

    def _tell(self, why: str) -> None:
        """Each trouble once."""
        if why and why != self._said:
            self._around.warn(f"engine {self.name}: {why}")
        self._said = why

    # --- coming and going ---------------------------------------------------------------------

    def _found(self, leader: ProcessInfo | None) -> None:
        self._took(leader, Cause.UNKNOWN, adopted=True)

    def _took(self, leader: ProcessInfo | None, cause: Cause, *, adopted: bool) -> None:
        pidfd = None
        if leader is not None:
            pidfd = identity.open_pidfd(leader.pid, leader.start_ticks)
            if pidfd is None:
                return  # gone again
        at = time.monotonic()
        record = self._record(leader, at)
        who = None if leader is None else (leader.pid, leader.start_ticks)
        table = MemberTable(record.id, who, self._around.household, spawned=False)
        generation = Generation(record, table, pidfd, spawned=False)
        if leader is not None:
            table.refresh(full=True)
            generation.watch_memory()
        self._missed = 0
        self._generation, self._present = generation, self._settings
        pid = None if leader is None else leader.pid
        self._around.notify(
            EngineSpawned(at, self.name, record.id, pid, cause, adopted=adopted, spawned_at=at)
        )
        self._watch(generation)

    def _record(self, leader: ProcessInfo | None, at: Seconds) -> GenerationRecord:
        """One process has one name, whichever watchdog finds it."""
        boot, name = procfs.boot_id(), launched.new_id()
        if leader is not None:
            text = f"{boot}/{leader.pid}/{leader.start_ticks}"
            name = hashlib.sha256(text.encode()).hexdigest()[: len(name)]
        return GenerationRecord(
            id=name,
            engine=self.name,
            tempdir="",
            log_path=os.devnull,
            log_offset=0,
            port=self._settings.endpoint.port,
            command=(),
            boot_id=boot,
            planned_at=at,
            planned_wall=time.time(),
            pid=None if leader is None else leader.pid,
            start_ticks=None if leader is None else leader.start_ticks,
            spawned_at=at,
        )

    def _let_go(self, generation: Generation) -> None:
        """It is gone: its exit is told first."""
        if generation.pidfd is None and generation.note_exit(ExitStatus()):
            self._around.notify(
                EngineExited(
                    time.monotonic(),
                    self.name,
                    generation.record.id,
                    None,
                    None,
                    Cause.CRASH,
                    f"nobody listens on port {generation.record.port} any more",
                )
            )
        self._note_death(generation)
        self._forget(generation)

    def _forget(self, generation: Generation) -> None:
        if generation.token is not None:
            self._around.exit_watch.unwatch(generation.token)
        generation.close()
        self._generation = self._present = None

    # --- start and stop -----------------------------------------------------------------------

    def _start(self, cause: Cause) -> None:
        """Wait until somebody has started it. What a crash left is ended first, where allowed."""
        if self._generation is not None and self._is_there(self._generation):
            return  # it was quicker
        if self._terms.signals:
            pass_gate((GateStep("set-empty", self._previous_over, again=True),))
        self._awaits = True
        try:
            self._await(cause)
        finally:
            self._awaits = False

    def _await(self, cause: Cause) -> None:
        deadline = time.monotonic() + self._terms.patience
        while not (self._settings.unwanted() or self._over_with.is_set()):
            self._glance(lambda leader: self._took(leader, cause, adopted=False))
            if self._generation is not None:
                return
            if time.monotonic() >= deadline:
                text = f"nobody has started {self.name} for {self._terms.patience:g} s"
                raise ActionError(text, cause=Cause.START_TIMEOUT)
            self._over_with.wait(_LOOK_PERIOD)
        raise ActionError(f"not waited any longer for {self.name} to be started")

    def stop(self, *, drain: bool, cause: Cause, generation: str = "") -> None:
        """As ``SupervisedEngine``. Who has come since ``generation`` was judged is let be."""
        with self._hands:
            present = self._generation
            if not generation or present is None or present.record.id == generation:
                self._stop(drain=drain, cause=cause)

    def _stop(self, *, drain: bool, cause: Cause) -> None:
        generation = self._generation
        if generation is None:
            return
        if not _leads(generation):
            self._glance(self._found)  # what it has left may serve
            if self._generation is not generation:
                return
        obstacle = self._obstacle(generation)
        if obstacle:
            raise ActionError(obstacle, untouched=True)
        super()._stop(drain=drain, cause=cause)

    def _obstacle(self, generation: Generation) -> str:
        """Why nobody may be signalled; "" when somebody may."""
        if not self._terms.signals:
            return f"{self.name} is attached to report: nobody is signalled"
        if generation.record.pid is None:
            return f"cannot end {self.name}: {self._said or 'it cannot be seen'}"
        if generation.pidfd is not None and not identity.may_signal(generation.pidfd):
            text = f"cannot end {self.name}: process {generation.pid} may not be signalled"
            return f"{text}: run as its user, or with CAP_KILL"
        seen = presence.look(self._settings.endpoint, self._settings.launch.command)
        return f"cannot end {self.name}: {seen.why}" if seen.shared else ""

    def _leave(self) -> None:
        self._over_with.set()
        super()._leave()


def _leads(generation: Generation) -> bool:
    """Whether its leader is seen to live."""
    return generation.pidfd is not None and not generation.leader_gone()


def awaited(engine: SupervisedEngine) -> str | None:
    """What a start waits for, in words; None when none does."""
    waits = isinstance(engine, AttachedEngine) and engine.awaits
    return "somebody else to start it" if waits else None
