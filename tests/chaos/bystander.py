"""Strangers who look like processes of an engine, and who report every signal that they get.

As a program: ``python bystander.py REPORT [PORT SECONDS]`` writes a line for each signal, with its
sender; with a port it takes that port as soon as it is free, and keeps it for so long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_PATIENCE = 8.0
"""Seconds in which the port has to become free."""
_NEVER = {signal.SIGKILL, signal.SIGSTOP}


def main(report: Path, port: int, seconds: float) -> None:
    """Report until who started it is gone."""
    wanted = signal.valid_signals() - _NEVER - {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    parent = os.getppid()
    report.write_text("ready\n")
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        taken = False
        while os.getppid() == parent and not (port and time.monotonic() > began + seconds):
            taken = taken or not port or time.monotonic() > began + _PATIENCE or _take(held, port)
            told = signal.sigtimedwait(wanted, 0.5 if taken else 0.002)
            if told is not None:
                with report.open("a") as file:
                    file.write(f"signal {told.si_signo} from {told.si_pid}\n")


def _take(held: contextlib.ExitStack, port: int) -> bool:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError:
        listener.close()
        return False
    held.enter_context(listener)
    return True


@dataclass
class Bystander:
    """One of them."""

    name: str
    process: subprocess.Popen[bytes]
    report: Path
    ends: bool = False

    @classmethod
    def start(cls, folder: Path, name: str, words: tuple[str, ...], port: int = 0) -> Bystander:
        """With ``words`` at the end of its command line, which is named ``name``."""
        report = folder / f"bystander-{time.monotonic_ns()}"
        argv = [name, "-I", "-S", __file__, str(report), str(port), "12", *words]
        process = subprocess.Popen(
            argv,
            executable=sys.executable,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(name, process, report, bool(port))

    def trouble(self) -> str:
        """What was done to it; empty while nothing was."""
        code = self.process.poll()
        if code is not None and not (self.ends and code == 0):
            return f"{self.name} (pid {self.process.pid}) ended with {code}"
        with contextlib.suppress(OSError):
            told = self.report.read_text().split("\n")[1:-1]
            if told:
                return f"{self.name} (pid {self.process.pid}) got {', '.join(told)}"
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state in "Tt":
                return f"{self.name} (pid {self.process.pid}) was stopped"
        return ""

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
