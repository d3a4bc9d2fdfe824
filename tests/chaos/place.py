"""Where a run takes place: one folder, a small disk for the state, cards, a kernel log, a clock."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.observer import RUN
from tests.support import fake_nvml
from tests.support.fake_nvml import FakeNvml
from tests.support.xids import packets

ENGINES = ("main", "second")
SPARE = "spare"
BUDGET, WINDOW = 12, 120.0
"""Restarts, and seconds."""
_STATE_SIZE = "24m"
_PORTS = range(18000, 30000)
"""Below the range from which the kernel gives ports to everybody who asks for any."""
_HERE = Path(__file__).parent
_REST = f"""
[watchdog]
starts_at_once = 2
[policy]
backoff = {{ initial = "200ms", max = "2s", jitter = 0.1, reset_after_ready = "20s" }}
restart_budget = {{ count = {BUDGET}, window = "{WINDOW:.0f}s" }}
boot_budget = {{ count = 4, window = "60s" }}
[[rule]]
name = "gpu-xid-reset"
when = 'increase(xid.class_errors.reset, "10s") > 0'
[[rule]]
name = "gpu-foreign-memory"
for = "1s"
[[rule]]
name = "tmpfs-inodes-full"
actions = []
[[rule]]
name = "standby-idle"
actions = []
"""


@dataclass
class Kernel:
    """A kernel log that the watchdog reads."""

    path: str
    sink: int
    seq: int = 0

    def says(self, text: str, priority: int = 3) -> None:
        """One record."""
        self.seq += 1
        self.raw(f"{priority},{self.seq},{self.seq},-;{text}\n".encode())

    def raw(self, record: bytes) -> None:
        """Whatever it is. A log that nobody reads is full after a while: then it is lost."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.sink, record)


@dataclass
class Place:
    """The folder of a run and all that is in it."""

    folder: Path
    nvml: FakeNvml
    kernel: Kernel
    ports: dict[str, int]
    listen: int
    small_disk: bool
    moving_clock: bool
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def state(self) -> Path:
        """The state directory, on a disk of its own where we may mount one."""
        return self.folder / "state"

    @property
    def file(self) -> Path:
        """The configuration."""
        return self.folder / "watchdog.toml"

    def flags(self, engine: str) -> Path:
        """What is added to the engine's command line at its next start."""
        return self.folder / f"{engine}.flags"

    def environment(self) -> dict[str, str]:
        """That of the watchdog, and so of everybody it starts."""
        own = {RUN: self.run, "TMPDIR": str(self.folder / "t"), **self.nvml.environment}
        own["PYTHONPATH"] = str(_HERE.parents[1])
        if self.moving_clock:
            own |= {
                "LD_PRELOAD": str(self.folder / "clock.so"),
                "CHAOS_CLOCK": str(self.folder / "offset"),
            }
        return own

    def jump(self, seconds: int) -> None:
        """Put the watchdog's wall clock so far from ours."""
        with (self.folder / "offset").open("r+b") as file:
            file.write(struct.pack("q", seconds))

    def write(self, rest: str = "") -> None:
        """The configuration, with something more at its end."""
        tables = [_REST, f'[probes.xid]\nkmsg = "{self.kernel.path}"', rest]
        for card, (name, port) in enumerate(self.ports.items()):
            argv = [sys.executable, str(_HERE / "engine.py"), str(self.flags(name))]
            argv += ["--port", str(port), "--startup-time", "0.3", "--tokens-per-second", "20"]
            tables.append(
                f"[engine.{name}]\ncommand = {json.dumps(argv)}\ngpus = [{card % 2}]\n"
                f"standby = {json.dumps(name == SPARE)}\n"
                'stop = { drain_timeout = "2s", term_timeout = "2s", kill_timeout = "5s" }\n'
                'start_timeout = "30s"'
            )
        fresh = self.folder / "watchdog.toml.new"
        fresh.write_text("\n".join(tables) + "\n")
        fresh.replace(self.file)


@contextlib.contextmanager
def place(folder: Path) -> Iterator[Place]:
    """A new one in an empty folder; its mounts are gone afterwards."""
    (folder / "state").mkdir()
    (folder / "t").mkdir()
    (folder / "logs").mkdir()
    ports = _free_ports(len(ENGINES) + 2)
    nvml = fake_nvml.idle(folder / "nvml", 2)
    moving = _moving_clock(folder)
    with packets() as (path, sink), _small_disk(folder / "state") as small:
        os.set_blocking(sink, False)
        kernel = Kernel(path.replace("self", str(os.getpid())), sink)
        named = dict(zip((*ENGINES, SPARE), ports, strict=False))
        one = Place(folder, nvml, kernel, named, ports[-1], small, moving)
        one.write()
        yield one


@contextlib.contextmanager
def _small_disk(point: Path) -> Iterator[bool]:
    """Whether there is one."""
    options = f"size={_STATE_SIZE},mode=0700"
    words = ["mount", "-t", "tmpfs", "-o", options, "chaos", str(point)]
    done = subprocess.run(words, check=False, capture_output=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(point)], check=True)


def _moving_clock(folder: Path) -> bool:
    """Whether the library that moves it could be built."""
    (folder / "offset").write_bytes(bytes(8))
    words = ["cc", "-O2", "-shared", "-fPIC", "-o", str(folder / "clock.so")]
    done = subprocess.run([*words, str(_HERE / "clock.c")], check=False, capture_output=True)
    return done.returncode == 0


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has; where to look first depends on who we are."""
    found: list[int] = []
    begin = os.getpid() * 17 % len(_PORTS)
    for port in (*_PORTS[begin:], *_PORTS[:begin]):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found
