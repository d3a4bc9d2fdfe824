"""Watches what a daemon does about a fault: that it acts as promised, or that it does not."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from watchdog.core.model import SERVING, Seconds
from watchdog.drill.asking import AskError, Engine
from watchdog.drill.bystander import Bystander
from watchdog.drill.members import Members
from watchdog.drill.results import Decided, MissedError
from watchdog.drill.scene import POLL, Scene

_START: Seconds = 600.0
"""A start of which nothing is known may take so long."""
_BACKOFF: Seconds = 300.0
"""The longest that a restart is put off by default."""
_CLOSING: Seconds = 15.0
"""From serving to the end of the incident."""
_HEARTBEAT: Seconds = 15.0
"""From one line of progress to the next where nothing changes."""


@dataclass(slots=True)
class Recovery:
    """A restart that must happen: once, of the whole set, by nobody else's cost.

    ``causes`` are the names of which the incident has to have one; ``added`` the seconds from the
    decision to serving that are not the engine's own start.
    """

    scene: Scene
    before: Engine
    old: Members
    stranger: Bystander
    causes: Collection[str]
    added: Seconds
    known: frozenset[str]
    _decided: Decided | None = field(default=None)
    _told: Seconds = _HEARTBEAT

    def watch(self) -> None:
        """Until it serves again; raises MissedError with the first promise that is broken."""
        while True:
            engine = self._step()
            if self._decided is not None and self._decided.acted and self._serves_anew(engine):
                break
            self._within_bounds()
            self._tell(engine)
            time.sleep(POLL)
        self.scene.serving()
        self._judge(engine)

    def _tell(self, engine: Engine) -> None:
        """A start of minutes is no silence of minutes."""
        if self.scene.age > self._told:
            self.scene.say(f"{self.scene.age:.0f} s after the fault {engine.words}")
            self._told += _HEARTBEAT

    def _step(self) -> Engine:
        self._look_at_decisions()
        if not self.old.living():
            self.scene.released()
        engine = self.scene.engine()
        anew = bool(engine.pids) and self._is_anew(engine)
        if anew and (left := self.old.living()):
            pids = ", ".join(str(one.pid) for one in left)
            raise MissedError(f"two engines: the next was started while {pids} of the old live")
        return engine

    def _look_at_decisions(self) -> None:
        incident = self._incident()
        if incident:
            decided = self.scene.daemon.decided(incident)
            self.scene.measured.incident = incident
            if decided.first is not None and (self._decided is None or self._decided.first is None):
                self.scene.detected(decided.first)
            if self._decided is None or decided.words != self._decided.words:
                self.scene.say(f"{incident}: {decided.words or 'opened, nothing decided yet'}")
            self._decided = decided

    def _incident(self) -> str:
        if self._decided is not None:
            return self._decided.incident
        listed = self.scene.daemon.incidents(self.before.name)
        return next((name for name, _ in listed if name not in self.known), "")

    def _is_anew(self, engine: Engine) -> bool:
        return engine.generation not in {"", self.before.generation}

    def _serves_anew(self, engine: Engine) -> bool:
        return engine.serves and self._is_anew(engine)

    def _within_bounds(self) -> None:
        within = self.scene.drill.within
        age = self.scene.age
        if (self._decided is None or self._decided.first is None) and age > within + _late(within):
            raise MissedError(f"nobody noticed within {within:.0f} s")
        if self._decided is None:
            return
        bound = within + (_BACKOFF if self._decided.waits else 0.0)
        if not self._decided.acted and age > bound + _late(bound):
            raise MissedError(f"nobody acted within {bound:.0f} s: {self._decided.words}")
        if age > bound + self._start_bound():
            raise MissedError(f"it does not serve {age:.0f} s after the fault")

    def _start_bound(self) -> Seconds:
        own = self.before.ready_seconds
        return self.added + (_START if own is None else 2 * own)

    def _judge(self, engine: Engine) -> None:
        detected = self.scene.measured.times.detected or 0.0
        if engine.starts != self.before.starts + 1:
            raise MissedError(f"{engine.starts - self.before.starts} starts instead of one")
        if self.old.living():
            raise MissedError("processes of the old engine live on")
        if self.stranger.poll() is not None:
            raise MissedError("a process that is no part of the engine was ended")
        self._close()
        if detected > self.scene.drill.within:
            raise MissedError(f"noticed late: after {detected:.1f} s")

    def _close(self) -> None:
        assert self._decided is not None  # noqa: S101 - watch does not end before
        incident = self._decided.incident
        self.scene.until(
            lambda: (incident, False) in self.scene.daemon.incidents(self.before.name),
            _CLOSING,
            f"{incident} was not closed",
        )
        cause = self.scene.daemon.decided(incident).cause
        if cause not in self.causes:
            raise MissedError(f"the cause is {cause}, not {' or '.join(sorted(self.causes))}")


def _late(bound: Seconds) -> Seconds:
    """How much longer is waited, to tell a late decision from none."""
    return max(2.0, bound / 2)


def restraint(
    scene: Scene, before: Engine, seconds: Seconds, allowed: Collection[str], wanted: str = ""
) -> None:
    """Nothing may be done for so long; raises MissedError.

    Its verdict has to be one of ``allowed``, or serving, all the time, and ``wanted`` at some time.
    """
    seen: set[str] = set()
    deadline = time.monotonic() + seconds
    tell = time.monotonic() + _HEARTBEAT
    while (now := time.monotonic()) < deadline:
        try:
            engine = scene.engine()
        except AskError:
            raise MissedError("the watchdog itself stopped answering") from None
        same_engine(before, engine)
        seen.add(engine.verdict)
        if engine.verdict not in {*allowed, *SERVING}:
            raise MissedError(f"{engine.words}; it may only be {' or '.join(allowed)}")
        if now > tell:
            scene.say(f"left alone so far; {deadline - now:.0f} s more")
            tell = now + _HEARTBEAT
        time.sleep(POLL)
    if wanted and wanted not in seen:
        raise MissedError(f"it was never {wanted}, only {', '.join(sorted(seen))}")


def same_engine(before: Engine, now: Engine) -> None:
    """Raises MissedError when it is another one, or another one of its starts."""
    if (now.generation, now.pid, now.starts) != (before.generation, before.pid, before.starts):
        raise MissedError("it was restarted, and must not be")
