"""What a start has to pass besides an empty set and a free port, each wait of it visible.

The gate has a probe ``gpu_processes`` of its own with default settings: ``[probes.gpu_processes]``
and its ``enabled = false`` are about the samples, and a start is checked all the same.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from watchdog import places
from watchdog.command_line import EngineCommand, Form
from watchdog.contracts import Box, ProbeSpec
from watchdog.core.model import Cause, Seconds
from watchdog.daemon.gate_cards import first_cards, share, unsets, visible
from watchdog.daemon.gpu_look import PROBE, GpuLook
from watchdog.daemon.turns import Turns
from watchdog.daemon.waits import Say, Waits, silent
from watchdog.nvidia import obstacle
from watchdog.nvidia.engine_cuda import wish
from watchdog.places import assigned
from watchdog.supervisor import leftovers, room
from watchdog.supervisor.bounded import Bounded
from watchdog.supervisor.gate import GateStep, GateVerdict, Refusal, Step
from watchdog.supervisor.gpu_gate import Baselines, CardMemory, memory_released
from watchdog.supervisor.leftovers import Sweeper
from watchdog.supervisor.room import Room

__all__ = ["Gates", "visible"]

_VLLM = frozenset({Form.SERVE, Form.API_SERVER})
_NEVER = object()
_GLANCE = 0.1
"""Seconds between two looks at an engine that is about to leave."""


@dataclass(slots=True)
class Gates:
    """Makes the steps of every engine; ``close`` gives back what they look with.

    ``floors`` are what the probe ``driver`` is told of drivers that its table lacks; ``root`` is
    where the file system begins; ``patience`` is how many seconds an engine may take to leave a
    place, ``unwanted`` whether nobody wants the start any more, ``hurried`` whether a start may
    still be made and may not wait. ``turns`` says who starts first, None lets all start at once;
    ``sweeper`` removes leftovers, None leaves them; ``say`` takes lines for the journal about an
    engine. Steps may be taken from any thread, and the settings replaced.
    """

    specs: Mapping[str, ProbeSpec]
    box: Box
    floors: Mapping[str, str]
    root: str = "/"
    patience: Callable[[], Seconds] = lambda: 120.0
    unwanted: Callable[[str], bool] = lambda _: False
    hurried: Callable[[], bool] = lambda: False
    turns: Turns | None = None
    sweeper: Sweeper | None = None
    say: Say = silent
    _cut: set[str] = field(default_factory=set)
    _swept: set[str] = field(default_factory=set)
    _baselines: Baselines = field(default_factory=Baselines)
    _waits: Waits = field(init=False)
    _sweeps: Bounded = field(default_factory=lambda: Bounded(leftovers.TIME))
    _disks: Bounded = field(default_factory=lambda: Bounded(room.TIME))
    _look: GpuLook | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._waits = Waits(self._tell)

    def waiting(self, name: str) -> str | None:
        """What the start of ``name`` waits for and since when; None when it does not wait."""
        return self._waits.of(name)

    def steps(
        self,
        name: str,
        said: EngineCommand,
        environment: Callable[[], Mapping[str, str]],
        seen: Callable[[], Iterable[str]],
    ) -> tuple[GateStep, ...]:
        """The steps for one engine, the quick one first.

        ``seen`` gives the UUIDs of the cards that it was last seen on.
        """

        def driver() -> Refusal | None:
            around = {**environment(), **assigned(said.argv)}
            found = obstacle(said.argv, around, self.root, self.floors)
            if found is None:
                return None
            text = f"cannot start {name}: {found[1]}"
            return Refusal(found[0], text, GateVerdict.DRIVER_UNFIT)

        def memory() -> Refusal | None:
            return self._memory(name, said, environment(), tuple(seen()))

        return (
            GateStep("driver-fits", self._guarded(name, driver), again=True),
            GateStep("gpu-memory", self._guarded(name, memory), again=True),
        )

    def roomy(
        self,
        name: str,
        said: EngineCommand,
        environment: Callable[[], Mapping[str, str]],
        log: str,
    ) -> tuple[GateStep, ...]:
        """Sweep what dead engines left, then see whether there is room to start.

        ``log`` is the path of its log. The sweep refuses nothing. Both are bounded in time.
        """

        def swept() -> Refusal | None:
            sweeper = self.sweeper
            if sweeper is not None:
                around = {**environment(), **assigned(said.argv)}
                folders = leftovers.socket_folders(around)
                found = self._sweeps(lambda: sweeper.sweep(folders, quick=True))
                for text in () if found is None else found.lines():
                    if text not in self._swept:  # what is kept is kept at every start
                        self._swept.add(text)
                        self._tell(name, text)
            return None

        def fits() -> Refusal | None:
            around = {**environment(), **assigned(said.argv)}
            return self._room(name, said, around, log)

        return (
            GateStep("leftovers", self._guarded(name, swept)),
            GateStep("room", self._guarded(name, fits), again=True),
        )

    def turn(self, name: str) -> GateStep:
        """The last step: waits until it is the turn of ``name`` to load its weights."""

        def its() -> Refusal | None:
            turns = self.turns
            while turns is not None and (ahead := turns.ask(name)) is not None:
                self._waits.on(name, f"its turn to start: {ahead} first")
                if self._waited(name, _GLANCE):
                    break
            return None

        guarded = self._guarded(name, its)

        def step() -> Refusal | None:
            refusal = guarded()
            if refusal is not None:
                self.left(name)
            return refusal

        return GateStep("turn", step)

    def left(self, name: str) -> None:
        """Its start has failed behind the gate: the next one may have its turn."""
        if self.turns is not None:
            self.turns.left(name)

    def place(self, name: str, in_the_way: Callable[[], str | None]) -> GateStep:
        """A step that waits until no other engine of ours is where ``name`` is to start.

        ``in_the_way`` names one that is about to go; what does not go is started on top of never.
        """

        def gone() -> Refusal | None:
            began, before = time.monotonic(), None
            while (other := in_the_way()) is not None:
                if other != before:  # one after the other may have to go
                    began, before = time.monotonic(), other
                if time.monotonic() - began > self.patience():
                    text = f"cannot start {name}: {other} has not left its place yet"
                    return Refusal(Cause.PLACE_TAKEN, text, GateVerdict.PLACE_TAKEN)
                self._waits.on(name, f"engine {other} to leave its place")
                if self._waited(name, _GLANCE):
                    return None
            return None

        return GateStep("place-free", self._guarded(name, gone), again=True)

    def end(self) -> None:
        """Refuse every start from now on, also the one that waits. From any thread, at once."""
        self._ended.set()

    def close(self) -> None:
        """As ``end``, and nothing is looked at any more."""
        self.end()
        with self._lock:
            look, self._look = self._look, None
        if look is not None:
            look.close()

    def _tell(self, name: str, text: str) -> None:
        with contextlib.suppress(Exception):  # no start is lost for a line of the journal
            self.say(name, text)

    def _waited(self, name: str, seconds: Seconds) -> bool:
        """Whether the wait was for nothing: nobody wants the start any more."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self.hurried():
                self._cut.add(name)
                return True
            if self.unwanted(name) or self._ended.wait(min(left, _GLANCE)):
                return True
        return self.unwanted(name)

    def _guarded(self, name: str, look: Step) -> Step:
        def step() -> Refusal | None:
            refusal = None
            self._cut.discard(name)
            if not self._ended.is_set():
                try:
                    refusal = look()
                except Exception:  # noqa: BLE001 - what we cannot find out must stop no engine
                    refusal = None
                finally:
                    self._waits.over(name)
            if self._ended.is_set() or name in self._cut:
                text = f"cannot start {name}: the watchdog is stopping"
                return Refusal(Cause.OPERATOR, text, GateVerdict.STOPPING)
            if self.unwanted(name):
                text = f"cannot start {name}: it is no longer asked for"
                return Refusal(Cause.OPERATOR, text, GateVerdict.NOT_WANTED)
            return refusal

        return step

    def _memory(
        self,
        name: str,
        said: EngineCommand,
        environment: Mapping[str, str],
        seen: tuple[str, ...],
    ) -> Refusal | None:
        around = {**environment, **assigned(said.argv)}
        cards = visible(around)
        wanted = wish(said.argv, around, self.root)
        if cards == () or wanted.cpu_only:
            return None
        look = self._gpus()
        first = look()
        if first is None:
            return None
        sure = said.form in _VLLM and not said.spread and not unsets(said.argv)
        looks = chain((first,), iter(look, _NEVER))
        return memory_released(
            lambda: next(looks),
            name,
            seen or (first_cards(said, cards, first) if sure else cards),
            share(said) if sure and wanted.cuda else None,
            self._baselines,
            wait=partial(self._waited, name),
            tell=partial(self._waits.on, name),
        )()

    def _room(
        self, name: str, said: EngineCommand, around: Mapping[str, str], log: str
    ) -> Refusal | None:
        used = places.of_engine(said.argv, around, log)
        disk = self._disks(lambda: room.on_disk(name, used.places))
        for found in (disk or Room(), room.in_shared_memory(name, used.shm_bytes)):
            for text in found.warnings:
                self._tell(name, text)
            if found.refusal is not None:
                return found.refusal
        return None

    def _gpus(self) -> Callable[[], tuple[CardMemory, ...] | None]:
        """One for all engines, built at the first start and not after the end."""
        with self._lock:
            if self._ended.is_set():
                return lambda: None
            if self._look is None:
                spec = self.specs[PROBE]
                self._look = GpuLook(spec.build(spec.settings(), self.box))
            return self._look
