"""A daemon of the drill's own, in front of the simulated engine, that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from watchdog import procfs
from watchdog.core.model import Seconds
from watchdog.drill import members
from watchdog.drill.asking import AskError, Daemon
from watchdog.drill.results import SkippedError, Stage
from watchdog.drill.uninterrupted import uninterrupted

_START: Seconds = 60.0
_END: Seconds = 60.0
_POLL: Seconds = 0.05
_BASE = """\
[engine.main]
gpus = []
stop = { drain_timeout = "1s", term_timeout = "3s" }
"""
"""No card of this box is any business of a simulated engine; and no drill waits for its clients."""
_ELSEWHERE = """
[probes.tmpfs]
enabled = false
"""
"""What is found there may be swept, and a drill sweeps no box."""
_TMPFS = "size=16m,nr_inodes=500"
_FOREIGN = ("VLLM_", "CUDA_", "NVIDIA_")


@dataclass(slots=True)
class Own:
    """One daemon below ``folder``."""

    stage: Stage
    folder: Path
    engine_port: int
    listen_port: int
    daemon: Daemon
    _process: subprocess.Popen[bytes] | None = None
    _seen: set[tuple[int, int]] = field(default_factory=set)

    @property
    def temporary(self) -> Path:
        """Where the engine's temporary files are."""
        return self.folder / "tmp"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def start(self) -> None:
        """Start it, and wait until it answers. Raises AskError."""
        with self._log.open("ab") as file, uninterrupted():
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env=self._environment(),
                start_new_session=True,  # ^C is for us, who then end it
            )
        self._await_answer(self._process)
        self.remember()

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(AskError):
                self.daemon.status()
                return
            time.sleep(_POLL)
        said = self._log.read_text(errors="replace").splitlines()
        raise AskError(f"a watchdog of its own does not start: {said[-1] if said else 'no word'}")

    def remember(self) -> None:
        """Note the engine's processes, to end them should the daemon not be able to."""
        with contextlib.suppress(AskError):
            for info in map(procfs.stat, self.daemon.engine().pids):
                if info is not None:
                    self._seen.add((info.pid, info.start_ticks))

    def kill(self) -> None:
        """SIGKILL to the daemon, and to nobody else."""
        self.remember()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """End the daemon the polite way, then the other, and what it may have left."""
        self.remember()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END)
            self._process.kill()
            self._process.wait()
        members.end(tuple(self._seen))
        self.daemon.close()

    def _command(self) -> list[str]:
        watchdog = [sys.executable, "-m", "watchdog", "run"]
        watchdog += ["--config", str(self.folder / "watchdog.toml")]
        watchdog += ["--state-dir", str(self.folder / "state")]
        watchdog += ["--listen", f"127.0.0.1:{self.listen_port}"]
        engine = [sys.executable, "-m", "watchdog.simulator", "--port", str(self.engine_port)]
        return [*_with_us(), *watchdog, "--", *engine, *self.stage.flags]

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        return {**kept, "TMPDIR": str(self.temporary)}


def _with_us() -> tuple[str, ...]:
    """What has it end when we are killed in a way that nobody can obey, where that is known."""
    program = shutil.which("setpriv")
    return () if program is None else (program, "--pdeathsig", "TERM", "--")


@contextlib.contextmanager
def own(stage: Stage) -> Iterator[Own]:
    """A running daemon for that stage. Raises SkippedError, AskError."""
    with contextlib.ExitStack() as held:
        name = held.enter_context(tempfile.TemporaryDirectory(prefix="vllm-watchdog-drill-"))
        folder = Path(name)
        (folder / "tmp").mkdir()
        if stage.small_tmpfs:
            held.enter_context(_mounted(folder / "tmp"))
        extra = "" if stage.small_tmpfs else _ELSEWHERE
        (folder / "watchdog.toml").write_text(f"{_BASE}{extra}{stage.config}")
        ports = _free_ports()
        one = Own(stage, folder, *ports, Daemon(folder / "state" / "control.sock"))
        held.callback(_end, one)
        one.start()
        yield one


def _end(one: Own) -> None:
    """A second ^C does not leave behind what the first one was to end."""
    with uninterrupted():
        one.end()


def _free_ports() -> tuple[int, int]:
    """Two ports that nobody is bound to at the moment."""
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(two.getsockname()[1])


@contextlib.contextmanager
def _mounted(point: Path) -> Iterator[None]:
    """A small file system in memory. Raises SkippedError."""
    command = ["mount", "-t", "tmpfs", "-o", _TMPFS, "tmpfs", str(point)]
    with contextlib.ExitStack() as held:
        with uninterrupted():
            try:
                done = subprocess.run(command, check=False, capture_output=True, text=True)
            except OSError as error:
                raise SkippedError(f"cannot mount a tmpfs here: {error.strerror}") from error
            if done.returncode:
                raise SkippedError("cannot mount a tmpfs here: that takes root and CAP_SYS_ADMIN")
            held.callback(_unmounted, point)
        yield


def _unmounted(point: Path) -> None:
    with uninterrupted():
        subprocess.run(["umount", "-l", str(point)], check=False, capture_output=True)


def until_ready(one: Own, seconds: Seconds = _START) -> None:
    """Wait until the engine serves; raises AskError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not one.daemon.engine().serves:
        if time.monotonic() > deadline:
            raise AskError(f"the simulated engine is not ready within {seconds:.0f} s")
        time.sleep(_POLL)
    one.remember()
