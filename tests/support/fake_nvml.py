"""NVIDIA cards on a machine without any: builds the C library and changes what it says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes._nvml.client import WORKER, NvmlClient, NvmlUnavailableError
from tests.support.simulated import PATIENCE, until

SOURCE = Path(__file__).resolve().parents[1] / "fakes" / "nvml" / "nvml.c"
LIBRARY = "libnvidia-ml.so.1"

LOST = 15
NOT_LOADED = 9
NOT_SUPPORTED = 3
VERSIONS_DIFFER = 18

LOADED: Mapping[str, object] = {
    "driver": "580.159.04",
    "cuda": 13000,
    "name": "NVIDIA H200",
    "utilization": 99,
    "memory_utilization": 24,
    "memory_total": 150754820096,
    "memory_reserved": 644939776,
    "memory_used": 21060452352,
    "temperature": 53,
    "power_milliwatts": 218921,
    "clock_graphics": 1545,
    "clock_sm": 1545,
    "clock_mem": 3201,
    "clock_video": 1530,
    "process": "460 21051211776",
}
"""An H200 under a matrix load (driver 580.159.04), recorded. In NVML's own units."""

IDLE: Mapping[str, object] = {
    "utilization": 0,
    "memory_utilization": 0,
    "memory_used": 0,
    "temperature": 33,
    "power_milliwatts": 79455,
    "clock_graphics": 885,
    "clock_sm": 885,
    "clock_video": 900,
    "process": None,
}
"""How the same card differs without work, recorded. None: no such line."""


def uuid(card: int) -> str:
    """The UUID of a fake card."""
    return f"GPU-{card:08x}-0000-4000-8000-000000000000"


@dataclass
class FakeNvml:
    """A library that was built, and the file that says what it answers. Changes act at once."""

    folder: Path
    cards: int = 1
    lines: dict[str, object] = field(default_factory=lambda: dict(LOADED))

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

    def do(self, deed: str, function: str = "nvmlDeviceGetCount") -> None:
        """Let a function ``hang``, be ``stuck`` or ``slow``, or ``crash``."""
        self.set({f"do.{function}": deed})

    def heal(self) -> None:
        """Take back all deeds and errors."""
        self.clear(*(key for key in self.lines if key.rpartition(".")[0]))

    def write(self) -> None:
        """Replace the file in one step: the library may be reading."""
        lines = [f"cards {self.cards}"]
        lines += [f"{card}.uuid {uuid(card)}" for card in range(self.cards)]
        for key, value in self.lines.items():
            values = value if isinstance(value, list) else [value]
            lines += [f"{key} {one}" for one in values if one is not None]
        fresh = self.folder / "state.new"
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.folder / "state")


def build(folder: Path) -> FakeNvml:
    """Compile the library into ``folder``. Raises CalledProcessError."""
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(folder / LIBRARY)]
    subprocess.run([*command, str(SOURCE)], check=True)
    return FakeNvml(folder)


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
    """One sweep that has all the time in the world."""
    return client.sweep(time.monotonic() + patience)


def trouble(client: NvmlClient, patience: float = PATIENCE) -> str:
    """The words of a sweep that must fail."""
    try:
        answer = sweep(client, patience)
    except NvmlUnavailableError as error:
        return str(error)
    raise AssertionError(f"it answered: {answer}")
