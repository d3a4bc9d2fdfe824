"""What the engine's Python processes are at, as ``py-spy`` tells it. Nobody is stopped for it."""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from watchdog.contracts import EngineTarget, ProcessInfo
from watchdog.core.model import Seconds
from watchdog.supervisor import hooks
from watchdog.supervisor.household import Household
from watchdog.supervisor.spawn import Launch

PROGRAM = "py-spy"
STACK_BYTES = 256 << 10
EACH: Seconds = 2.0
"""For one process: half a second is usual, and a box under load needs more."""
_AT_ONCE = 4
_MOST = 24
_LEAST: Seconds = 0.2
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Take = Callable[[int, bytes], None]
"""Takes the pid of a process and what was said of it."""


def program(engine: EngineTarget) -> str | None:
    """Where ``py-spy`` is: in the engine's PATH, in ours, or beside what its command runs."""
    theirs = engine.environment.get("PATH", _PATH)
    found = shutil.which(PROGRAM, path=theirs) or shutil.which(PROGRAM)
    if found is not None:
        return found
    runs = (shutil.which(word, path=theirs) for word in engine.command if "=" not in word)
    places = (Path(run).parent / PROGRAM for run in runs if run is not None)
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)


def dump(
    path: str,
    processes: Iterable[ProcessInfo],
    household: Household,
    take: Take,
    until: Seconds,
) -> str:
    """Hand over the stacks of each Python process; in words what could not be had, or "".

    A few at a time, none for longer than EACH, and nothing after ``until`` (CLOCK_MONOTONIC).
    """
    waiting: queue.SimpleQueue[ProcessInfo] = queue.SimpleQueue()
    for info in [one for one in processes if one.state != "Z" and is_python(one.pid)][:_MOST]:
        waiting.put(info)
    wrong: list[str] = []

    def work() -> None:
        while True:
            try:
                info = waiting.get_nowait()
            except queue.Empty:
                return
            why = _dumped(path, info, household, take, until)
            if why:
                wrong.append(f"{info.pid}: {why}")

    threads = [threading.Thread(target=work, name="py-spy", daemon=True) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "; ".join(wrong)


def is_python(pid: int) -> bool:
    """Whether it runs Python, whatever title it gives itself."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("python")  # noqa: PTH115
    except OSError:
        return False


def _dumped(path: str, info: ProcessInfo, household: Household, take: Take, until: Seconds) -> str:
    if info.state == "D":
        return "stuck in the kernel"
    left, pid = until - time.monotonic(), info.pid
    if left < _LEAST:
        return "no time"
    said = os.memfd_create("stacks", os.MFD_CLOEXEC)  # with the secrets that a command line has
    try:
        command = (path, "dump", "--nonblocking", "--pid", str(pid))
        launch = Launch("", command, Path(f"/proc/self/fd/{said}"))
        env = {"PATH": os.environ.get("PATH", _PATH), "LC_ALL": "C.UTF-8"}
        hook = hooks.Hook(command, min(EACH, left))
        wrong = hooks.once(hook, launch, env, household, lambda: _is_too_much(said, until))
        take(pid, os.pread(said, STACK_BYTES, 0))
    except OSError as error:
        return str(error.strerror)
    finally:
        os.close(said)
    return wrong or ""


def _is_too_much(said: int, until: Seconds) -> bool:
    return os.fstat(said).st_size > STACK_BYTES or time.monotonic() >= until
