"""A probe of memory over one engine, with the time as a test wants it, and a box made of files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from probes.memory import PROBE, Memory, Settings, Surroundings
from tests.support.engines import Engines, Target, engines
from tests.support.memory_cgroups import Found, Written, read
from watchdog import procfs
from watchdog.contracts import ProcessInfo

MIB, GIB = 1 << 20, 1 << 30
MINUTE, HOUR = 60.0, 3600.0
ME = os.getpid()
MEMINFO = f"MemTotal: {256 * MIB} kB\nMemAvailable: {64 * MIB} kB\nSwapTotal: 0 kB\n"


@dataclass
class Desk:
    """A probe, the one engine that it sees, and the time as the test wants it."""

    settings: Settings = field(default_factory=Settings)
    proc: str = procfs.ROOT
    now: float = 1000.0
    target: Target = field(default_factory=lambda: engines("main")[0])

    def __post_init__(self) -> None:
        """Build the probe."""
        around = Surroundings(self.proc, clock=lambda: self.now)
        self.probe = Memory(self.settings, Engines((self.target,)), around)

    def read(self, *pids: int, later: float = 0.0) -> Found:
        """What is read of an engine of these processes."""
        self.now += later
        self.target.living = tuple(info for pid in pids if (info := procfs.stat(pid, self.proc)))
        return read(PROBE, self.probe)


def box_of_files(root: Path) -> Written:
    """A box of 256 GiB with version 2: us in ``/box/us``, an engine (pid 7) in ``/box/engine``."""
    tree = Written(root)
    (tree.proc / "meminfo").write_text(MEMINFO)
    us = tree.box / "us"
    us.mkdir()
    tree.puts(ME, "/box/us")
    for folder in (us, tree.engine, tree.box):
        tree.count(folder, 0)
        tree.uses(folder, GIB)
    return tree


def looked(tree: Written) -> Found:
    """What is read there."""
    desk = Desk(proc=str(tree.proc))
    desk.target.living = (ProcessInfo(7, 1, 1, 7, "S", "x", 0.0, 1),)
    return read(PROBE, desk.probe)
