"""What a start has to pass besides an empty set and a free port: the driver, and GPU memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from watchdog.command_line import EngineCommand, Form
from watchdog.contracts import Box, ProbeSpec
from watchdog.daemon.gpu_look import PROBE, GpuLook
from watchdog.nvidia import obstacle, wanted
from watchdog.supervisor.gate import GateStep, Refusal
from watchdog.supervisor.gpu_gate import Baselines, memory_released

_VLLM = frozenset({Form.SERVE, Form.API_SERVER})
_DEFAULT_SHARE = 0.9
"""``--gpu-memory-utilization`` of a vLLM that is not told another: 0.9 up to 0.18, later 0.92. The
smaller one, because a start that might work is not refused."""


@dataclass(slots=True)
class Gates:
    """Makes the steps of every engine; ``close`` gives back what they look with.

    ``floors`` are what the probe ``driver`` is told of drivers that its table lacks; ``root`` is
    where the file system begins.
    """

    specs: Mapping[str, ProbeSpec]
    box: Box
    floors: Mapping[str, str]
    root: str = "/"
    _baselines: Baselines = field(default_factory=Baselines)
    _look: GpuLook | None = None

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

        def memory() -> Refusal | None:
            around = environment()
            cuda = bool(wanted(said.argv, around, self.root))
            return memory_released(
                self._gpus(),
                name,
                tuple(seen()) or visible(around) or self._likely(said),
                _share(said) if cuda else None,
                self._baselines,
            )()

        return (
            GateStep("driver-fits", lambda: self._driver(name, said.argv, environment())),
            GateStep("gpu-memory", memory),
        )

    def close(self) -> None:
        """No start comes any more."""
        if self._look is not None:
            self._look.close()

    def _driver(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> Refusal | None:
        found = obstacle(command, environment, self.root, self.floors)
        return Refusal(found[0], f"cannot start {name}: {found[1]}") if found else None

    def _likely(self, said: EngineCommand) -> tuple[str, ...] | None:
        """Without a word CUDA takes the first cards; which those are is sure among equal ones.

        None is all cards, and no card where they differ: nothing is then refused for memory.
        """
        if said.form not in _VLLM:
            return None
        found = self._gpus()() or ()
        if len({card.total_bytes for card in found}) > 1:
            return ()
        count = said.tensor_parallel * said.pipeline_parallel * said.data_parallel
        return tuple(str(index) for index in range(count))

    def _gpus(self) -> GpuLook:
        if self._look is None:
            spec = self.specs[PROBE]
            self._look = GpuLook(spec.build(spec.settings(), self.box))
        return self._look


def visible(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The cards that an engine of this environment may use; None for all of them.

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


def _share(said: EngineCommand) -> float | None:
    """The share of a card that the engine wants for itself; None when nobody knows."""
    if said.gpu_memory_utilization is not None:
        return said.gpu_memory_utilization
    return _DEFAULT_SHARE if said.form in _VLLM else None
