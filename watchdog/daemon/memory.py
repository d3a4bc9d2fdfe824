"""What must outlive this process: histories, ladders, pause, incidents. Written after the fact.

Times are CLOCK_MONOTONIC; after a reboot they are carried over by the wall clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from watchdog.core.model import Incident, Pause, ProcessState, Seconds, Subject
from watchdog.core.state import (
    EngineSettings,
    EngineState,
    RestartHistory,
    State,
    Step,
    StoppedBy,
    Track,
)
from watchdog.store import Saved, Store, now_anchor, rebase

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Debt:
    """Kept beside the history: when an engine that failed may be started again."""

    retry_at: Seconds | None = None


_WHO = '"stopped_by"'
"""Older versions did not say who stopped an engine: it may have been its operator."""
_RECALLED = 50
"""Incidents that are shown after a restart; the store keeps more."""


class Memory:
    """Keeps what changed in a step, and brings it back at the next start.

    ``leaving`` are engines that a reload ends, and their accounts from before: nobody stopped them.
    """

    def __init__(self, store: Store) -> None:
        self.leaving: Mapping[str, RestartHistory] = {}
        self._store = store
        self._accounts: dict[str, tuple[RestartHistory, Seconds | None]] = {}
        self._ready: dict[str, str] = {}
        self._pause: Pause | None = None
        self._tracks: Mapping[tuple[str, Subject], Track] = {}
        self._incidents: dict[str, Incident] = {}

    def recall(self, engines: tuple[EngineSettings, ...], standby: frozenset[str]) -> State:
        """The state to begin with."""
        incidents = self._recall_incidents()
        self._pause = self._recall_pause()
        self._tracks = self._recall_tracks()
        return State(
            engines={
                settings.name: self.recall_engine(settings, standby=settings.name in standby)
                for settings in engines
            },
            incidents=incidents,
            incident_serial=self._store.incident_serial(),
            pause=self._pause,
            tracks=self._tracks,
        )

    def keep(self, step: Step) -> None:
        """Write down what ``step`` changed. Never raises for a sick disk."""
        for engine in step.state.engines.values():
            self._keep_engine(engine)
        if step.state.pause is not self._pause:
            self._pause = step.state.pause
            body = None if self._pause is None else _text(self._pause)
            self._store.save_pause(body)
        if step.state.tracks is not self._tracks:
            self._tracks = step.state.tracks
            self._store.save_tracks(_text([(*key, one) for key, one in self._tracks.items()]))
        for incident in step.state.incidents:
            self._keep_incident(incident)

    def _keep_engine(self, engine: EngineState) -> None:
        due = engine.retry_at if engine.process is ProcessState.BACKOFF else None
        history, debt = self._accounts.get(engine.name, (None, None))
        if history is not engine.history or debt != due:
            self._accounts[engine.name] = engine.history, due
            history = self.leaving.get(engine.name, engine.history)
            self._store.save_engine(
                engine.name, _text({**msgspec.to_builtins(history), "retry_at": due})
            )
        ready = engine.ready_at is not None and engine.generation
        if ready and self._ready.get(engine.name) != engine.generation:
            self._ready[engine.name] = engine.generation
            self._store.became_ready(engine.generation, engine.ready_at or 0.0)

    def _keep_incident(self, incident: Incident) -> None:
        if self._incidents.get(incident.id) is incident:
            return
        if incident.id not in self._incidents:
            self._store.save_incident_serial(int(incident.id.rpartition("-")[2]))
        self._incidents[incident.id] = incident
        now = now_anchor()
        opened = now.wall - (now.monotonic - incident.opened_at)
        resolved = None
        if incident.resolved_at is not None:
            resolved = now.wall - (now.monotonic - incident.resolved_at)
        self._store.save_incident(incident.id, _text(incident), opened, resolved)

    def recall_engine(self, settings: EngineSettings, *, standby: bool) -> EngineState:
        """One engine as it is to begin with; from any thread."""
        saved = self._store.load_engine(settings.name)
        history = None if saved is None else _value(saved.body, RestartHistory)
        if history is None or saved is None:
            history = RestartHistory(wanted=not standby)
        else:
            restarts = tuple(replace(r, at=_here(saved, r.at)) for r in history.restarts)
            # A new start may be the corrected command: what could not be cured gets one more try.
            history = replace(history, restarts=restarts, given_up=None)
            if not standby and _WHO in saved.body and history.stopped_by is StoppedBy.NOBODY:
                history = replace(history, wanted=True)  # it was on standby, and is not any more
        if settings.attach is not None:  # nobody can have asked us to stop it
            history = replace(history, wanted=True, stopped_by=StoppedBy.NOBODY)
        history = replace(history, starts=self._store.starts(settings.name))
        given_up = history.wanted and history.breaker_open
        process = ProcessState.GIVEN_UP if given_up else ProcessState.STOPPED
        now = now_anchor().monotonic
        engine = EngineState(settings, process=process, since=now, history=history)
        if given_up:
            reason = f"it was given up before this watchdog began: {history.repeated.value}"
            engine = replace(engine, cause=history.repeated, explanation=reason, reasons=(reason,))
        due = None if saved is None or given_up else _value(saved.body, _Debt)
        if saved is None or due is None or due.retry_at is None or not history.wanted:
            return engine
        if self._store.living(settings.name):  # its remains are looked at first
            return engine
        return replace(
            engine,
            process=ProcessState.BACKOFF,
            cause=history.repeated,
            explanation="it failed before this watchdog began",
            failed_at=now,
            began_at=now,
            retry_at=_here(saved, due.retry_at),
        )

    def _recall_pause(self) -> Pause | None:
        saved = self._store.load_pause()
        pause = None if saved is None else _value(saved.body, Pause)
        if pause is None or saved is None:
            return None
        until = None if pause.until is None else _here(saved, pause.until)
        return replace(pause, since=_here(saved, pause.since), until=until)

    def _recall_tracks(self) -> Mapping[tuple[str, Subject], Track]:
        """An action that ran when this was saved counts as ended then."""
        saved = self._store.load_tracks()
        found = None if saved is None else _value(saved.body, list[tuple[str, Subject, Track]])
        if found is None or saved is None:
            return {}
        return {(rule, subject): _rebased(saved, track) for rule, subject, track in found}

    def _recall_incidents(self) -> tuple[Incident, ...]:
        now = now_anchor()
        found = []
        for stored in self._store.incidents(_RECALLED):
            incident = _value(stored.body, Incident)
            if incident is None:
                continue
            shift = now.monotonic - (now.wall - stored.opened) - incident.opened_at
            if abs(shift) > 1.0:  # another boot, or the wall clock was set
                incident = _shifted(incident, shift)
            self._incidents[incident.id] = incident
            found.append(incident)
        return tuple(reversed(found))


def _shifted(incident: Incident, by: Seconds) -> Incident:
    def moved(at: Seconds | None) -> Seconds | None:
        return None if at is None else at + by

    return replace(
        incident,
        opened_at=incident.opened_at + by,
        began_at=incident.began_at + by,
        decided_at=moved(incident.decided_at),
        resolved_at=moved(incident.resolved_at),
        timeline=tuple(replace(entry, at=entry.at + by) for entry in incident.timeline),
    )


def _rebased(saved: Saved, track: Track) -> Track:
    acted = _here(saved, track.acted_at)
    last = saved.anchor.monotonic if track.ended_at is None else track.ended_at
    ended = _here(saved, last)
    healed = None if track.healed_at is None else _here(saved, track.healed_at)
    return replace(track, acted_at=acted, ended_at=ended, healed_at=healed)


def _here(saved: Saved, at: Seconds) -> Seconds:
    return rebase(at, saved.anchor, now_anchor())


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _value(text: str, kind: type[_T]) -> _T | None:
    """None for what another version wrote, or nobody: nothing half-understood is believed."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None
