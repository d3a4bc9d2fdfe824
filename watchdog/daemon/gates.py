"""What a start has to pass besides an empty set and a free port: the driver, and GPU memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from watchdog.command_line import EngineCommand, Form
from watchdog.contracts import Box, ProbeSpec
from watchdog.core.model import Cause
from watchdog.daemon.gpu_look import PROBE, GpuLook
from watchdog.nvidia import misfit, mismatch
from watchdog.supervisor.gate import GateStep, Refusal
from watchdog.supervisor.gpu_gate import Baselines, memory_released

_DEFAULT_SHARE = 0.9
"""``--gpu-memory-utilization`` of a vLLM that is not told another: 0.9 up to 0.18, later 0.92. The
smaller one, because a start that might work is not refused."""


@dataclass(slots=True)
class Gates:
    """Makes the steps of every engine; ``close`` gives back what they look with."""

    specs: Mapping[str, ProbeSpec]
    box: Box
    _baselines: Baselines = field(default_factory=Baselines)
    _look: GpuLook | None = None

    def steps(
        self, name: str, said: EngineCommand, environment: Callable[[], Mapping[str, str]]
    ) -> tuple[GateStep, ...]:
        """The steps for one engine, the quick ones first."""
        return (
            GateStep("driver-fits", lambda: _driver(name, said.argv, environment())),
            GateStep(
                "gpu-memory",
                memory_released(
                    self._gpus(),
                    name,
                    visible(environment()),
                    _share(said),
                    self._baselines,
                ),
            ),
        )

    def close(self) -> None:
        """No start comes any more."""
        if self._look is not None:
            self._look.close()

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


def _driver(name: str, command: Sequence[str], environment: Mapping[str, str]) -> Refusal | None:
    differs = mismatch(environment)
    if differs:
        return Refusal(Cause.DRIVER_MISMATCH, f"cannot start {name}: {differs}")
    too_old = misfit(command, environment)
    return Refusal(Cause.DRIVER_TOO_OLD, f"cannot start {name}: {too_old}") if too_old else None


def _share(said: EngineCommand) -> float | None:
    """The share of a card that the engine wants for itself; None when nobody knows."""
    if said.gpu_memory_utilization is not None:
        return said.gpu_memory_utilization
    return _DEFAULT_SHARE if said.form in {Form.SERVE, Form.API_SERVER} else None
