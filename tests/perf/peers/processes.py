"""Processes of a comparison: started with the run's mark, counted, and ended one by one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.perf.table import children
from tests.support.simulated import alive, cmdline

MARK = "VLLM_WATCHDOG_PEERS"
"""A variable with the run's folder: what was started has it, or the folder in its arguments."""
_TICKS = os.sysconf("SC_CLK_TCK")
_POLL = 0.001
_COARSE = 0.05

over = threading.Event()
"""The run was interrupted: every wait ends with ``InterruptedError``."""


def environment(run: Path) -> dict[str, str]:
    """Ours, with the mark."""
    return {**os.environ, MARK: f"{run}/"}


@contextlib.contextmanager
def spawned(argv: Sequence[str], folder: Path) -> Iterator[int]:
    """A process with its output in FOLDER/log; ends it with SIGTERM, then SIGKILL."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment(folder),
        )
    try:
        yield process.pid
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
        process.kill()
        process.wait()


def called(argv: Sequence[str], folder: Path, patience: float = 20.0) -> str:
    """The output of a command that ends, whatever its status."""
    result = subprocess.run(
        argv,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
        env=environment(folder),
    )
    return result.stdout + result.stderr


def waited(look: Callable[[], bool], patience: float, *, fine: bool = False) -> bool:
    """Whether it came true within ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not look():
        if time.monotonic() > deadline:
            return False
        rest(_POLL if fine else _COARSE)
    return True


def rest(seconds: float) -> None:
    """Sleep; raises InterruptedError when the run is over."""
    if over.wait(seconds):
        raise InterruptedError


def end(pid: int, run: Path) -> bool:
    """SIGKILL a process, and only if it is of this run: its identity is held while it is asked."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _is_of(pid, run):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


def sweep(run: Path) -> int:
    """End everything of this run, until nothing is found. Returns how many were ended."""
    ended = 0
    while found := [pid for pid in _all() if alive(pid) and end(pid, run)]:
        ended += len(found)
        time.sleep(_COARSE)
    return ended


def _all() -> list[int]:
    own_pid = os.getpid()
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if pid != own_pid]


def _is_of(pid: int, run: Path) -> bool:
    mark = f"{run}/".encode()
    with contextlib.suppress(OSError):
        if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
            return True
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return any(v.startswith(f"{MARK}=".encode() + mark) for v in variables)
    return False


def own(root: int) -> list[int]:
    """A process and its descendants, without worker trees."""
    found, frontier = [root], [root]
    while frontier:
        with contextlib.suppress(OSError):
            below = [pid for pid in children(frontier.pop()) if not _works(pid)]
            found += below
            frontier += below
    return found


def _works(pid: int) -> bool:
    line = cmdline(pid)
    return "worker.py --folder" in line or line.startswith("engine-core ")


def cpu(pids: Sequence[int]) -> float:
    """Seconds of all threads, exact, and of all children that were waited for, in hundredths."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0]) / 1e9
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[13]) + int(fields[14])) / _TICKS
    return total


def memory(pids: Sequence[int]) -> tuple[float, float]:
    """PSS and private memory in MiB."""
    pss = private = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                pss += int(text.split()[1]) if text.startswith("Pss:") else 0
                private += int(text.split()[1]) if text.startswith("Private_") else 0
    return pss / 1024, private / 1024
