"""Sees every order that ends an engine, and keeps what is lost with it.

While the engine's leader lives the action waits for the bundle, 5 s at most. Of a dead leader
only the orphans can still be looked at: that takes a few milliseconds, and the rest is taken beside
the action. Nothing that goes wrong here delays an action any longer, or prevents it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from watchdog.contracts import EngineControl, EngineTarget, Order, ProcessInfo
from watchdog.core import verdict
from watchdog.core.model import SERVING, ProcessState, Seconds
from watchdog.core.state import EngineState, State
from watchdog.evidence import bundles, processes
from watchdog.evidence.bundles import DIRECTORY, EvidenceError
from watchdog.evidence.sight import Sight, Sources, log_end
from watchdog.evidence.taking import Taking, pruned

LIMIT: Seconds = 5.0
"""An action waits no longer."""
_TO_WRITE = 0.2
"""The part of it that is left to write what was collected."""
_GLANCE: Seconds = 0.005
"""For the orphans of a dead leader; who is not looked at by then is named only."""
_CRASHED: Seconds = 0.02
"""A restart after a crash waits no longer for that, whatever hangs."""
_PAUSE: Seconds = 0.5
"""What is taken beside an action begins so much later: by then most restarts are done."""
_TURN: Seconds = 0.05
_ENDING = frozenset({"restart_engine", "stop_engine"})
_OPERATOR = "operator"
_TAKEN = "an earlier bundle is still being taken"


class Collector:
    """Takes bundles into ``state_dir``, one at a time of each engine. Safe from any thread.

    One more may wait for its turn, of a crash: what is lost with that is seen at once. Without a
    ``state_dir`` nothing is kept. Only one may work in it: what another one was making is removed.
    An action waits for at most ``limit`` seconds.
    """

    def __init__(self, state_dir: Path | None, sources: Sources, limit: Seconds = LIMIT) -> None:
        self._state_dir, self._sources, self._limit = state_dir, sources, limit
        self._busy: dict[str, tuple[threading.Thread, ...]] = {}
        self._stuck: dict[str, dict[str, threading.Thread]] = {}
        self._last: dict[str, tuple[str, str]] = {}
        """The incident and the generation of the last bundle of a dead leader, by engine."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._pruning = threading.Lock()
        self._paths: Mapping[str, tuple[str, ...]] = MappingProxyType({})
        if state_dir is not None:
            bundles.tidy(state_dir / DIRECTORY)
            self._prune(state_dir / DIRECTORY)

    @property
    def paths(self) -> Mapping[str, tuple[str, ...]]:
        """The bundles of each incident, oldest first. Replaced as a whole."""
        return self._paths

    def take(self, order: Order, engine: EngineControl) -> Path | None:
        """Take a bundle before ``order`` is carried out, where it is worth one. Never raises.

        The path of a bundle that is complete; None when there is none, or not yet.
        """
        if self._state_dir is None or order.action not in _ENDING or self._is_over():
            return None
        state = self._sources.published()
        target = next((e for e in self._sources.engines() if e.name == engine.name), None)
        known = state.engines.get(engine.name)
        if target is None or known is None or not self._sources.settings().enabled:
            return None
        if order.rule == _OPERATOR and not order.incident and serves(known, time.monotonic()):
            return None
        if known.leader is None and self._is_known(order, known):
            return None  # a start that is refused again: nothing lives that was not seen
        one = _One(self._state_dir, self._sources, order, target, state)
        return self._awaited(one, crashed=known.leader is None)

    def _is_known(self, order: Order, engine: EngineState) -> bool:
        told = (order.incident, engine.generation)
        before, self._last[engine.name] = self._last.get(engine.name), told
        return before == told

    def close(self, timeout: Seconds = 2.0) -> None:
        """Begin no more; what is being taken is waited for, so many seconds at most."""
        self._closed.set()
        by = time.monotonic() + timeout
        for thread in chain.from_iterable(tuple(self._busy.values())):
            thread.join(max(0.0, by - time.monotonic()))

    def _is_over(self) -> bool:
        return self._closed.is_set() or self._sources.hurried()

    def _awaited(self, one: _One, *, crashed: bool) -> Path | None:
        with self._lock:
            wrong = self._begun(one, most=1 if crashed else 0)
        if wrong:
            one.failed(wrong)
            return None
        late = time.monotonic() + (_CRASHED if crashed else self._limit)
        while not one.free.wait(min(_TURN, max(0.0, late - time.monotonic()))):
            if time.monotonic() >= late or self._is_over():
                break
        return one.path

    def _begun(self, one: _One, most: int) -> str:
        """Begin, behind at most so many others; in words why that cannot be, or ""."""
        name = one.target.name
        before = tuple(thread for thread in self._busy.get(name, ()) if thread.is_alive())
        if len(before) > most:
            return _TAKEN
        args = (one, self._stuck.setdefault(name, {}), before)
        thread = threading.Thread(
            target=self._work, args=args, name=f"evidence-{name}", daemon=True
        )
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # the limit of tasks
            return str(error)
        self._busy[name] = (*before, thread)
        return ""

    def _work(
        self, one: _One, stuck: dict[str, threading.Thread], before: Sequence[threading.Thread]
    ) -> None:
        try:
            one.run(self._closed, stuck, before, self._limit * (1 - _TO_WRITE))
        finally:
            one.free.set()
        if one.path is not None:
            self._prune(one.path.parent)

    def _prune(self, directory: Path) -> None:
        # It is tried again with the next one.
        with self._pruning, contextlib.suppress(Exception):
            self._paths = MappingProxyType(
                dict(bundles.by_incident(pruned(self._sources, directory)))
            )


class _One:
    """The taking of one bundle, in a thread of its own. ``free`` is set when nobody has to wait."""

    def __init__(
        self, state_dir: Path, sources: Sources, order: Order, target: EngineTarget, state: State
    ) -> None:
        self.target = target
        self.free = threading.Event()
        self.path: Path | None = None
        self._state_dir, self._sources = state_dir, sources
        self._order, self._state = order, state

    def run(
        self,
        closed: threading.Event,
        stuck: dict[str, threading.Thread],
        before: Sequence[threading.Thread],
        patience: Seconds,
    ) -> None:
        """Take it, when those ``before`` are done; says in the journal what became of it."""
        try:
            sight = self._seen()
            try:
                if sight.beside:
                    self.free.set()
                    closed.wait(_PAUSE)
                _wait_for(before, patience + _PAUSE)
                self._take(sight, stuck, patience)
            finally:
                sight.close()
        except OSError as error:
            self.failed(f"cannot write: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - no bug here may cost more than a bundle
            words = str(error) if isinstance(error, EvidenceError) else repr(error)
            self.failed(" ".join(words.split()))

    def failed(self, reason: str) -> None:
        """There is no bundle."""
        self._sources.say(
            "warning",
            "evidence.failed",
            engine=self.target.name,
            incident=self._order.incident,
            action=self._order.action,
            reason=reason,
        )

    def _seen(self) -> Sight:
        at, wall = time.monotonic(), time.time()
        known = self._state.engines[self.target.name]
        living = self._living(known)
        beside = all(info.pid != known.leader for info in living)
        return Sight(
            order=self._order,
            engine=self.target,
            state=self._state,
            at=at,
            wall=wall,
            processes=living,
            beside=beside,
            seen=processes.look(living, at + _GLANCE) if beside else None,
            log=log_end(self.target),
        )

    def _living(self, known: EngineState) -> tuple[ProcessInfo, ...]:
        """The engine's processes. Orphans are found among our own children, which is quicker."""
        if known.leader is not None or known.adopted:
            return self.target.processes()
        others = {engine.leader for engine in self._state.engines.values()} - {None}
        orphans = self._sources.household.orphans()
        return processes.with_children(info for info in orphans if info.session not in others)

    def _take(self, sight: Sight, stuck: dict[str, threading.Thread], patience: Seconds) -> None:
        making = bundles.begin(self._state_dir / DIRECTORY, self._order.incident)
        try:
            Taking(sight, self._sources, self._state_dir, stuck, patience).make(making)
        except BaseException:
            making.undo()
            raise
        self.path = making.path
        self._sources.say(
            "info",
            "evidence.taken",
            engine=self.target.name,
            incident=self._order.incident,
            action=self._order.action,
            path=str(making.path),
            bytes=making.bytes,
            took_s=round(time.monotonic() - sight.at, 3),
            beside=sight.beside,
        )


def _wait_for(others: Iterable[threading.Thread], patience: Seconds) -> None:
    """Raises EvidenceError when they take longer."""
    until = time.monotonic() + patience
    for other in others:
        other.join(max(0.0, until - time.monotonic()))
        if other.is_alive():
            raise EvidenceError(_TAKEN)


def serves(engine: EngineState, at: Seconds) -> bool:
    """Whether it served until an action on it was begun, of which its state tells by now."""
    if engine.leader is None or engine.ready_at is None or engine.failed_at is not None:
        return False
    return verdict.judge(replace(engine, process=ProcessState.RUNNING), at).verdict in SERVING
