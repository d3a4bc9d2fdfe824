"""Processes that an engine forks on the side: compilers, and a descendant that detaches itself."""

import contextlib
import os
import signal
import time
from pathlib import Path

from watchdog.simulator.titles import set_title

DETACHED_TITLE = "VLLM::Detached"


def fork_compiler() -> int:
    """A child named ``ptxas``, as below an engine that compiles; its pid, for end_compiler."""
    pid = os.fork()
    if pid == 0:
        _forget_everything(keep_output=True)
        set_title("ptxas")
        signal.pause()
        os._exit(0)
    return pid


def end_compiler(pid: int) -> None:
    """Kill and reap."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def fork_detached(lifetime: float) -> None:
    """Double fork with setsid: the grandchild has no tie to the tree and lives so many seconds."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            _forget_everything(keep_output=False)
            set_title(DETACHED_TITLE)
            time.sleep(lifetime)
        os._exit(0)
    os.waitpid(pid, 0)


def close_all_but(*kept: int) -> None:
    """Close what was inherited: it would keep pipes open whose end others wait for."""
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor not in (0, 1, 2, *kept):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(descriptor)


def _forget_everything(*, keep_output: bool) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    close_all_but()
    if not keep_output:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
