"""What a start has to pass besides an empty set and a free port: the driver, and GPU memory.

The gate has a probe ``gpu_processes`` of its own with default settings: ``[probes.gpu_processes]``
and its ``enabled = false`` are about the samples, and a start is checked all the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path

from watchdog.command_line import EngineCommand, Form
from watchdog.contracts import Box, ProbeSpec
from watchdog.core.model import Cause, Seconds
from watchdog.daemon.gpu_look import PROBE, GpuLook
from watchdog.nvidia import obstacle
from watchdog.nvidia.engine_cuda import wish
from watchdog.supervisor.gate import GateStep, Refusal, Step
from watchdog.supervisor.gpu_gate import Baselines, CardMemory, memory_released

_VLLM = frozenset({Form.SERVE, Form.API_SERVER})
_DEFAULT_SHARE = 0.9
"""``--gpu-memory-utilization`` of a vLLM that is not told another: 0.9 up to 0.18, later 0.92. The
smaller one, because a start that might work is not refused."""
_NEVER = object()
_GLANCE = 0.1
"""Seconds between two looks at an engine that is about to leave."""
_WRAPPED = 12
"""Words in front of the engine that are looked through for an ``env``."""


@dataclass(slots=True)
class Gates:
    """Makes the steps of every engine; ``close`` gives back what they look with.

    ``floors`` are what the probe ``driver`` is told of drivers that its table lacks; ``root`` is
    where the file system begins; ``patience`` is how many seconds an engine may take to leave a
    place, ``unwanted`` whether nobody wants the start any more, ``hurried``
    whether a start may still be made and may not wait. Steps may be taken from any
    thread, and the settings replaced.
    """

    specs: Mapping[str, ProbeSpec]
    box: Box
    floors: Mapping[str, str]
    root: str = "/"
    patience: Callable[[], Seconds] = lambda: 120.0
    unwanted: Callable[[str], bool] = lambda _: False
    hurried: Callable[[], bool] = lambda: False
    _cut: set[str] = field(default_factory=set)
    _baselines: Baselines = field(default_factory=Baselines)
    _look: GpuLook | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

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
            return Refusal(found[0], f"cannot start {name}: {found[1]}") if found else None

        def memory() -> Refusal | None:
            return self._memory(name, said, environment(), tuple(seen()))

        return (
            GateStep("driver-fits", self._guarded(name, driver)),
            GateStep("gpu-memory", self._guarded(name, memory)),
        )

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
                    return Refusal(Cause.PORT_IN_USE, text)
                if self._waited(name, _GLANCE):
                    return None
            return None

        return GateStep("place-free", self._guarded(name, gone))

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
            if self._ended.is_set() or name in self._cut:
                text = f"cannot start {name}: the watchdog is stopping"
                return Refusal(Cause.OPERATOR, text)
            if self.unwanted(name):
                return Refusal(Cause.OPERATOR, f"cannot start {name}: it is no longer asked for")
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
        sure = said.form in _VLLM and not said.spread and not _unsets(said.argv)
        looks = chain((first,), iter(look, _NEVER))
        return memory_released(
            lambda: next(looks),
            name,
            seen or (_first(said, cards, first) if sure else cards),
            _share(said) if sure and wanted.cuda else None,
            self._baselines,
            wait=partial(self._waited, name),
        )()

    def _gpus(self) -> Callable[[], tuple[CardMemory, ...] | None]:
        """One for all engines, built at the first start and not after the end."""
        with self._lock:
            if self._ended.is_set():
                return lambda: None
            if self._look is None:
                spec = self.specs[PROBE]
                self._look = GpuLook(spec.build(spec.settings(), self.box))
            return self._look


def visible(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The cards that an engine of this environment may use; None for all, () for none.

    CUDA ends the list at the first entry that names no device, so "-1" and "" are none at all.
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    cards: list[str] = []
    for entry in value.split(","):
        name = entry.strip()
        if not name or name.startswith("-"):
            break
        cards.append(name)
    return tuple(cards)


def assigned(command: Sequence[str]) -> dict[str, str]:
    """The variables that an ``env`` in front of the engine sets: ``env A=b vllm serve``."""
    words = (word.partition("=") for word in _of_env(command))
    return {name: value for name, equals, value in words if equals and name.isidentifier()}


def _unsets(command: Sequence[str]) -> bool:
    """Whether an ``env`` takes variables away: then what we know of them may be wrong."""
    return any(word.startswith("-") for word in _of_env(command))


def _of_env(command: Sequence[str]) -> Iterator[str]:
    """Options and assignments of every ``env`` in front of the engine."""
    inside = False
    for word in command[:_WRAPPED]:
        if Path(word).name == "env":
            inside = True
        elif inside and ("=" in word or word.startswith("-")):
            yield word
        else:
            inside = False


def _first(
    said: EngineCommand, cards: tuple[str, ...] | None, found: Sequence[CardMemory]
) -> tuple[str, ...]:
    """CUDA takes the first cards; without a list, which those are is sure among equal ones only.

    Where it is not, those with most room: what does not fit there fits nowhere.
    """
    count = said.tensor_parallel * said.pipeline_parallel * said.data_parallel
    if cards is not None:
        return cards[:count]
    ordered = sorted(found, key=lambda card: card.index)
    if len({card.total_bytes for card in found}) > 1:
        ordered = sorted(found, key=_room, reverse=True)
    return tuple(str(card.index) for card in ordered[:count])


def _room(card: CardMemory) -> float:
    """Free bytes; a card that does not tell may have any number of them."""
    if card.total_bytes is None or card.used_bytes is None:
        return inf
    return card.total_bytes - card.used_bytes


def _share(said: EngineCommand) -> float:
    """The share of a card that the engine wants for itself."""
    told = said.gpu_memory_utilization
    return _DEFAULT_SHARE if told is None else told
