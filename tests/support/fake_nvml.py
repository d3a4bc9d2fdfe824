"""NVIDIA cards on a machine without any: builds the C library and changes what it says."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes._nvml.client import WORKER, NvmlClient, NvmlUnavailableError
from tests.support.simulated import PATIENCE, until

_TESTS = Path(__file__).resolve().parents[1]
_SOURCES = _TESTS / "fakes" / "nvml"
RECORDINGS = {
    load: _TESTS / "recordings" / f"h200-580.159-nvml-{load}.json" for load in ("idle", "load")
}
"""An H200 (driver 580.159.04) without work, and under a matrix load."""
LIBRARY = "libnvidia-ml.so.1"
OLD_LIBRARY = "-DOLD_LIBRARY"
"""For ``build``: a library that lacks the calls that came after R510."""
LONG_PROCESSES = "-DLONG_PROCESSES"
"""For ``build``: an early R535, whose list of processes has longer rows."""

LOST = 15
NOT_LOADED = 9
NOT_SUPPORTED = 3
VERSIONS_DIFFER = 18

_VALUES: Mapping[str, tuple[str, str]] = {
    "driver": ("driver", "nvmlSystemGetDriverVersion"),
    "cuda": ("cuda", "nvmlSystemGetCudaDriverVersion"),
    "count": ("", "nvmlDeviceGetCount"),
    "UUID": ("", "nvmlDeviceGetUUID"),
    "Name": ("name", "nvmlDeviceGetName"),
    "PciInfo": ("pci_ids", "nvmlDeviceGetPciInfo"),
    "PowerUsage": ("power_milliwatts", "nvmlDeviceGetPowerUsage"),
    "EnforcedPowerLimit": ("power_limit_milliwatts", "nvmlDeviceGetEnforcedPowerLimit"),
    "PerformanceState": ("performance_state", "nvmlDeviceGetPerformanceState"),
    "CurrentClocksEventReasons": ("reasons", "nvmlDeviceGetCurrentClocksEventReasons"),
    "SupportedClocksEventReasons": (
        "reasons_supported",
        "nvmlDeviceGetSupportedClocksEventReasons",
    ),
    "CurrPcieLinkGeneration": ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    "CurrPcieLinkWidth": ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    "MaxPcieLinkGeneration": ("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    "MaxPcieLinkWidth": ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    "PcieReplayCounter": ("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    "MigMode": ("mig_mode", "nvmlDeviceGetMigMode"),
    "EccMode": ("ecc_mode", "nvmlDeviceGetEccMode"),
    "RemappedRows": ("remapped_rows", "nvmlDeviceGetRemappedRows"),
    "TotalEnergyConsumption": ("energy_millijoules", "nvmlDeviceGetTotalEnergyConsumption"),
    "Temperature": ("temperature", "nvmlDeviceGetTemperature"),
    "MarginTemperature": ("margin_temperature", "nvmlDeviceGetMarginTemperature"),
    "UtilizationRates": ("", "nvmlDeviceGetUtilizationRates"),
    "MemoryInfo": ("", "nvmlDeviceGetMemoryInfo"),
    "MemoryInfo_v2": ("", "nvmlDeviceGetMemoryInfo_v2"),
    "ComputeRunningProcesses_v3": ("process", "nvmlDeviceGetComputeRunningProcesses"),
    "samples_gpu": ("samples", "nvmlDeviceGetSamples"),
}
"""A recorded call: the key of its value ("" where ``_parts`` has it), and its function."""

_FAMILIES: Mapping[str, str] = {
    r"TempThreshold_(.+)": "threshold.{}",
    r"clock_(.+)": "clock_{}",
    r"maxclock_(.+)": "clock_max_{}",
    r"violation_(.+)": "violation.{}",
    r"field_(.+)": "field.{}",
    r"nvlink_(.+)": "nvlink.{}",
}
"""Recorded calls that differ by an argument, each with a value and a latency of its own."""

_THRESHOLDS = {"SHUTDOWN": 0, "SLOWDOWN": 1, "MEM_MAX": 2, "GPU_MAX": 3, "ACOUSTIC_CURR": 5}
_SIZED = frozenset({"ComputeRunningProcesses_v3", "samples_gpu"})
"""pynvml asks twice, first for the size: the library is half as slow as the recording."""
_DOUBLE, _SIGNED_INT = 0, 5

_POLICY_FIELDS = {74: 0, 75: 1, 76: 2, 77: 3, 78: 4, 79: 5}
"""Fields that count what a violation policy counts (nvml.h)."""

UNRECORDED: Mapping[str, object] = {
    "ecc_corrected": 0,
    "ecc_uncorrected": 0,
    "ecc_corrected_aggregate": 0,
    "ecc_uncorrected_aggregate": 0,
    "fabric": "0 0 0 0 0",
    "mig_slots": 7,
    "event_types": 8,
    "field.142": "0 1 0",
    "field.143": "0 1 0",
    "field.144": "0 1 0",
    "field.165": "3 1 0",
    "field.226": "3 3 0",
    "field.227": "3 3 0",
}
"""What the recordings lack. ECC and remapped rows: zero, as ``nvidia-smi -q`` of that card says.
The rest is assumed: no fabric, no NVLink, seven MIG slots, Xid events, no reset status."""


def from_recording(path: Path, *, latencies: bool = False) -> dict[str, object]:
    """The lines of nvml.c that make it answer as recorded, without who the card is.

    ``latencies`` adds the median of every call in microseconds.
    """
    lines: dict[str, object] = {}
    for call, recorded in json.loads(path.read_text()).items():
        if not isinstance(recorded, dict):
            continue
        lines.update(_lines(call, recorded))
        name = _VALUES.get(call, ("", ""))[1] or _family(call)
        if latencies and name and "p50_us" in recorded:
            halves = 2 if call in _SIZED and recorded["value"] else 1
            lines[f"latency.{name}"] = recorded["p50_us"] / halves
    return lines


def _lines(call: str, recorded: Mapping[str, Any]) -> dict[str, object]:
    key = _VALUES.get(call, ("", ""))[0] or _family(call)
    value = recorded.get("value")
    if "error" in recorded:
        code = re.fullmatch(r"NVMLError_\w+\((\d+)\)", recorded["error"])
        return {key: f"!{code[1]}"} if key and code else {}
    if isinstance(value, dict) and not key:
        return _parts(call, value)
    return {key: _line(key, value)} if key and value != [] else {}


def _family(call: str) -> str:
    """The key of a call with an argument, or ""."""
    for pattern, key in _FAMILIES.items():
        found = re.fullmatch(pattern, call)
        if found:
            return key.format(_THRESHOLDS.get(found[1], found[1]))
    return ""


def _parts(call: str, value: Mapping[str, object]) -> dict[str, object]:
    """The lines of a structure whose members have names of their own."""
    if call == "UtilizationRates":
        return {"utilization": value["gpu"], "memory_utilization": value["memory"]}
    if call == "MemoryInfo_v2":
        return {f"memory_{part}": value[part] for part in ("total", "reserved", "used")}
    return {}


def _line(key: str, value: Any) -> object:  # noqa: ANN401 - whatever was recorded
    """A value as a line has it."""
    if key.startswith("field."):
        told = ast.literal_eval(value)
        part = {_DOUBLE: "d", _SIGNED_INT: "si"}.get(told["type"], "ull")
        return f"{told['ret']} {told['type']} {told[part]:.0f}"
    if key == "process":
        return [f"{one['pid']} {one['usedGpuMemory']}" for one in value]
    if key == "pci_ids":
        return f"{value['pciDeviceId']} {value['pciSubSystemId']}"
    if isinstance(value, dict):
        value = list(value.values())
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _card(recording: Path) -> dict[str, object]:
    """All lines of a card that was recorded."""
    lines = from_recording(recording)
    for one, policy in _POLICY_FIELDS.items():
        lines[f"field.{one}"] = f"0 3 {str(lines[f'violation.{policy}']).split()[1]}"
    return {**UNRECORDED, **lines}


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, object]:
    keys = dict.fromkeys((*before, *after))
    return {key: after.get(key) for key in keys if before.get(key) != after.get(key)}


LOADED: Mapping[str, object] = _card(RECORDINGS["load"])
"""An H200 under a matrix load, recorded. In NVML's own units."""

IDLE: Mapping[str, object] = _changes(LOADED, _card(RECORDINGS["idle"]))
"""How the same card differs without work, recorded. None: no such line."""


def uuid(card: int) -> str:
    """The UUID of a fake card."""
    return f"GPU-{card:08x}-0000-4000-8000-000000000000"


def bus_id(card: int) -> str:
    """Where a fake card sits, as the kernel writes it."""
    return f"0000:00:{card + 6:02x}.0"


@dataclass
class FakeNvml:
    """A library that was built, and the file that says what it answers. Changes act at once."""

    folder: Path
    cards: int = 1
    lines: dict[str, object] = field(default_factory=lambda: dict(LOADED))
    _events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.write()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs besides its own environment to load the fake."""
        path = os.pathsep.join(filter(None, (str(self.folder), os.environ.get("LD_LIBRARY_PATH"))))
        return {"LD_LIBRARY_PATH": path, "FAKE_NVML_FILE": str(self.folder / "state")}

    def set(self, changes: Mapping[str, object] | None = None, **more: object) -> None:
        """Change keys (nvml.c lists them); None removes one, a list makes several lines."""
        self.lines.update({**(changes or {}), **more})
        self.write()

    def clear(self, *keys: str) -> None:
        """Remove keys."""
        self.set(dict.fromkeys(keys))

    def do(self, deed: object, function: str = "nvmlDeviceGetCount") -> None:
        """Let a function ``hang``, be ``stuck`` or ``slow``, take milliseconds, or ``crash``."""
        self.set({f"do.{function}": deed})

    def xid(self, number: int, card: int = 0, gi: int | None = None, ci: int | None = None) -> None:
        """An Xid happens now: who registered before is told."""
        instances = "" if gi is None or ci is None else f" {gi} {ci}"
        self._events.append(f"{len(self._events) + 1} {card} {number}{instances}")
        self.set(event=self._events)

    def heal(self) -> None:
        """Take back all deeds, errors and losses."""
        ill = re.compile(r"(\d+\.)?(do\..*|error\..*|after\..*|lost)")
        self.clear(*(key for key in self.lines if ill.fullmatch(key)))

    def write(self) -> None:
        """Replace the file in one step: the library may be reading."""
        lines = [f"cards {self.cards}"]
        for key, value in self.lines.items():
            values = value if isinstance(value, list) else [value]
            lines += [f"{key} {one}" for one in values if one is not None]
        for card in range(self.cards):  # of two lines the first counts, so those above go before
            lines += [f"{card}.uuid {uuid(card)}", f"{card}.bus_id 0000{bus_id(card).upper()}"]
        fresh = self.folder / "state.new"
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.folder / "state")


def build(folder: Path, *flags: str) -> FakeNvml:
    """Put the library into ``folder``, compiled with ``flags``. Raises CalledProcessError."""
    (folder / LIBRARY).write_bytes(_compiled(flags))
    return FakeNvml(folder)


def idle(folder: Path, cards: int) -> FakeNvml:
    """So many idle cards, told by a library in ``folder``, which is made."""
    folder.mkdir()
    fake = build(folder)
    fake.cards = cards
    fake.set(IDLE)
    return fake


@functools.cache
def _compiled(flags: tuple[str, ...]) -> bytes:
    """The library, compiled once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / LIBRARY
        strict = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")
        sources = map(str, sorted(_SOURCES.glob("*.c")))
        subprocess.run(["cc", *strict, *flags, "-o", str(library), *sources], check=True)
        return library.read_bytes()


@contextlib.contextmanager
def asking(
    environment: Mapping[str, str], argv: tuple[str, ...] = WORKER, retry: float = 60.0
) -> Iterator[NvmlClient]:
    """A client of a worker in ``environment``, all of whose processes are gone afterwards."""
    client = NvmlClient(argv, {**os.environ, **environment}, retry)
    try:
        yield client
    finally:
        client.close()
        until(lambda: not client.pids)


def sweep(client: NvmlClient, patience: float = PATIENCE) -> dict[str, Any]:
    """One look at all cards that has all the time in the world."""
    return client.ask("cards", time.monotonic() + patience)


def trouble(client: NvmlClient, patience: float = PATIENCE) -> str:
    """The words of a sweep that must fail."""
    try:
        answer = sweep(client, patience)
    except NvmlUnavailableError as error:
        return str(error)
    raise AssertionError(f"it answered: {answer}")
