"""Memory cgroups for tests: real ones of version 1, and files as version 2 has them.

Version 2 with the memory controller cannot be had where version 1 holds it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated import until
from tests.support.trees import script
from watchdog.contracts import Probe, ProbeSpec
from watchdog.core.model import Event, ReadingTaken, Value
from watchdog.runner import ProbeRun

MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT = 48 << 20
NOTHING = "/nowhere"
BOOT_PIDS = "pid:[4026531836]"
_GREEDY = script(
    "sys.stdin.read(1)\nheld = []\nwhile True: held.append(bytearray(b'x') * (1 << 20))\n"
)
_GROWING = script(
    "import mmap\nheld, shared = [], mmap.mmap(-1, 16 << 20)\n"
    "for line in sys.stdin:\n"
    "    kind, count = line.split()\n"
    "    if kind == 'private': held.append(bytearray(b'x') * int(count))\n"
    "    if kind == 'shared': shared.write(b'x' * int(count))\n"
    "    if kind == 'fork' and os.fork() == 0: sys.stdin.close(); signal.pause()\n"
    "    if kind == 'file': open(sys.argv[1], 'wb').write(bytes(int(count)))\n"
    "    print(flush=True)\n"
)

kernel = pytest.mark.skipif(
    not (MEMORY / "memory.oom_control").exists() or os.geteuid() != 0,
    reason="needs a memory cgroup of version 1 and the rights to make one",
)


Found = dict[tuple[str, ...], Value]
"""Name and the values of all labels, to value."""


def read(spec: ProbeSpec, probe: Probe) -> Found:
    """One reading through the runner, which refuses what is not declared."""
    posted: list[Event] = []
    ProbeRun(spec, probe, None, None, posted.append).run()
    (event,) = posted
    assert isinstance(event, ReadingTaken)
    assert event.reading.error is None
    assert event.reading.unread == ()
    found = {}
    for one in event.reading.samples:
        key = (one.sample, *(value for _, value in one.labels))
        assert key not in found
        found[key] = one.value
    return found


@contextlib.contextmanager
def limited(limit: int = LIMIT) -> Iterator[Path]:
    """A memory cgroup with a limit in bytes, which is gone afterwards."""
    folder = MEMORY / f"vllm-watchdog-test-{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit))
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


@contextlib.contextmanager
def greedy(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the cgroup that takes all memory there is, once it may."""
    with subprocess.Popen(_GREEDY, stdin=subprocess.PIPE) as process:
        try:
            (folder / "cgroup.procs").write_text(str(process.pid))
            yield process
        finally:
            process.kill()


def devour(process: subprocess.Popen[bytes]) -> None:
    """Let it take memory until the kernel ends it."""
    process.communicate(b"x")
    assert process.returncode == -9


class Growing:
    """A process that takes memory when it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def takes(self, count: int, kind: str = "private") -> None:
        """So many bytes more: ``private``, ``shared`` (16 MiB at most) or as a ``file``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {count}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "\n"


@contextlib.contextmanager
def growing(folder: Path | None = None, file: Path | None = None) -> Iterator[Growing]:
    """Such a process, in the cgroup if there is one; ``file`` is where it writes files."""
    command = (*_GROWING, str(file))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            if folder is not None:
                (folder / "cgroup.procs").write_text(str(process.pid))
            grown = Growing(process)
            grown.takes(0)  # it has started up
            yield grown
        finally:
            process.kill()


class Written:
    """A procfs and a cgroup v2 tree made of files; one process in ``/box/engine``."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.box = root / "cgroup" / "box"
        self.engine = self.box / "engine"
        self.engine.mkdir(parents=True)
        (self.proc / "self/ns").mkdir(parents=True)
        (self.proc / "self/ns/pid").symlink_to(BOOT_PIDS)
        self.puts(7, "/box/engine")
        mount = f"41 31 0:38 / {root}/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
        (self.proc / "self/mountinfo").write_text(mount)
        self.log = root / "kmsg"
        self.log.write_text("")
        self.count(self.box, 0)
        (self.box / "memory.max").write_text(f"{64 << 30}\n")
        (self.box / "memory.peak").write_text(f"{(64 << 30) - (1 << 26)}\n")

    def puts(self, pid: int, path: str) -> None:
        """A process into a cgroup."""
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::{path}\n")

    def count(self, folder: Path, kills: int) -> None:
        """Let a cgroup and the box have counted so many kills."""
        text = f"low 0\nhigh 0\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n"
        (folder / "memory.events").write_text(text)
        (self.proc / "vmstat").write_text(f"pgfault 1\noom_kill {kills}\n")

    def uses(self, folder: Path, anon: int, shmem: int = 0, most: str = "max") -> None:
        """Let a cgroup use so many bytes of a limit, beside as much page cache again."""
        text = f"anon {anon}\nfile {anon + shmem}\nkernel 4096\nshmem {shmem}\n"
        (folder / "memory.stat").write_text(text)
        (folder / "memory.max").write_text(f"{most}\n")
