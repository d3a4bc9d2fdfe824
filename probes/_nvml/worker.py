"""The child that talks to the driver, and may hang there without harm to anybody else.

One request a line on stdin, one JSON object a line on stdout; ends when stdin does. It creates no
CUDA context and costs no GPU memory. pynvml's errors are never compared or turned into text: some
of that calls into the library again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

NAMES = {
    1: "uninitialized",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "insufficient size",
    8: "external power is not connected",
    9: "driver not loaded",
    10: "timeout",
    11: "interrupts do not arrive",
    12: "library not found",
    13: "function not found",
    14: "corrupted infoROM",
    15: "GPU is lost",
    16: "GPU needs a reset",
    17: "blocked by the operating system",
    18: "library and driver versions differ",
    19: "in use",
    20: "out of memory",
    21: "no data",
    23: "out of resources",
    25: "argument version mismatch",
    26: "deprecated",
    27: "not ready",
    28: "GPU not found",
    29: "invalid state",
    999: "unknown error",
}
"""NVML's return codes in words (``nvml.h``, nvmlReturn_t)."""

_ABSENT = frozenset({3, 6, 13})
"""This card, or this driver, does not have it; asked once, then left out."""

_ALL_ONES = 0xFFFFFFFFFFFFFFFF


def main() -> None:
    """Answer until stdin ends. Ctrl-C in a terminal is meant for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sweeper = Sweeper()
    for _ in sys.stdin:
        answer = sweeper.sweep()
        sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
        sys.stdout.flush()


def describe(error: pynvml.NVMLError) -> str:
    """An error in words, without asking the library."""
    code = int(error.value)
    return NAMES.get(code, f"error {code}")


class Sweeper:
    """One sweep over all cards a request. What a card cannot do is remembered for that card."""

    def __init__(self) -> None:
        self._ready = False
        self._absent: set[tuple[int, str]] = set()
        self._known: dict[int, dict[str, str]] = {}
        self._facts: dict[str, str] = {}

    def sweep(self) -> dict[str, Any]:
        """``{"gpus": [...], "driver": …}`` or ``{"error": …}`` when nothing can be read."""
        try:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
                self._facts = _driver()
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self._ready = False
            return {"error": describe(error)}
        return {"gpus": [self._card(index) for index in range(count)], **self._facts}

    def _card(self, index: int) -> dict[str, Any]:
        """What one card says. A lost one does not say who it is, but it is who it was."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self._known[index] = _identity(handle)
        except pynvml.NVMLError as error:
            return {"index": index, "errors": {"": describe(error)}, **self._known.get(index, {})}
        card: dict[str, Any] = {"index": index, "errors": {}, **self._known[index]}
        for name, look in LOOKS.items():
            if (index, name) not in self._absent:
                self._look(card, index, name, partial(look, handle))
        return card

    def _look(
        self, card: dict[str, Any], index: int, name: str, look: Callable[[], dict[str, float]]
    ) -> None:
        try:
            card.update(look())
        except pynvml.NVMLError as error:
            if int(error.value) in _ABSENT:
                self._absent.add((index, name))
            else:
                card["errors"][name] = describe(error)
        except (AttributeError, pynvml.NVMLLibraryMismatchError):
            self._absent.add((index, name))  # a binding or a library older than the call


def _identity(handle: object) -> dict[str, str]:
    return {
        "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
    }


def _driver() -> dict[str, str]:
    """Versions, as far as they are told: nothing else depends on them."""
    facts: dict[str, str] = {}
    with contextlib.suppress(pynvml.NVMLError):
        facts["driver"] = _text(pynvml.nvmlSystemGetDriverVersion())
    with contextlib.suppress(pynvml.NVMLError):
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        facts["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    return facts


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _utilization(handle: object) -> dict[str, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization_percent": rates.gpu, "memory_utilization_percent": rates.memory}


def _memory(handle: object) -> dict[str, float]:
    """Version 2: what the driver reserves for itself is not used by anybody."""
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return {"memory_used_bytes": info.used, "memory_total_bytes": info.total}


def _temperature(handle: object) -> dict[str, float]:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    return {"temperature_celsius": pynvml.nvmlDeviceGetTemperature(handle, sensor)}


def _power(handle: object) -> dict[str, float]:
    return {"power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _clock(handle: object) -> dict[str, float]:
    megahertz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    return {"sm_clock_hertz": megahertz * 1_000_000}


def _processes(handle: object) -> dict[str, Any]:
    """Compute processes as (pid, bytes); bytes None where the driver does not tell."""
    found = {
        (info.pid, info.gpuInstanceId, info.computeInstanceId): info.usedGpuMemory
        for info in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    }
    return {
        "processes": [
            (pid, None if used in {None, _ALL_ONES} else used)
            for (pid, _, _), used in found.items()
        ]
    }


LOOKS: dict[str, Callable[[object], dict[str, Any]]] = {
    "utilization": _utilization,
    "memory": _memory,
    "temperature": _temperature,
    "power": _power,
    "clock": _clock,
    "processes": _processes,
}

if __name__ == "__main__":
    main()
