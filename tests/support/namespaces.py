"""The watchdog as PID 1 of PID, mount and network namespaces of its own: a container by hand.

Whatever a test does to mounts, devices or the network is seen in there alone. Nothing can be left
behind: when PID 1 has ended, the kernel has ended all that lived with it. Needs the rights of root.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.support.simulated import ROOT, alive, until
from watchdog import procfs

T = TypeVar("T")

NOBODY = 2000
"""The user and group of tests that give up the rights of root."""
LISTEN = 9909
ENGINE = 8000
"""Ports: of a network namespace of its own, so that they are always free."""
UNTRUSTED = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"),
    *("--inh-caps=-all", "--bounding-set=-all"),
)
"""In front of a command: somebody with no rights at all."""

_QUICK = """
[probes]
engine_http = { period = "200ms" }
engine_metrics = { period = "200ms" }
engine_process = { period = "200ms" }
"""
_CLONE_NEWNET = 0x40000000
_OUTSIDE = 2
"""Words of the line ``NSpid:`` of a process that is in no PID namespace but ours."""
_LOOPBACK_UP = (
    "import fcntl, socket, struct\n"
    "with socket.socket() as any:\n"
    "    fcntl.ioctl(any, 0x8914, struct.pack('16sH14x', b'lo', 1))"
)


@dataclass
class Box:
    """PID 1 and what lives with it. Pids are those of the test, unless they are said inner."""

    process: subprocess.Popen[bytes]
    pid: int
    state_dir: Path
    log_path: Path
    _inside: ThreadPoolExecutor

    def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, or raises, in the network namespace of the box."""
        return self._inside.submit(work).result()

    def get(self, path: str, port: int = LISTEN) -> tuple[int, str]:
        """Status and body of a GET; 0 when nothing answers."""
        url = f"http://127.0.0.1:{port}{path}"

        def ask() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()
            except OSError:
                return 0, ""

        return self.run(ask)

    def engine(self) -> dict[str, Any]:
        """The first engine of the status, with inner pids; empty when nothing answers."""
        found = self.status()
        return dict(found["engines"][0]) if found else {}

    def status(self) -> dict[str, Any]:
        """All of the status; empty when nothing answers."""
        code, body = self.get("/api/v1/status")
        return dict(json.loads(body)) if code == 200 else {}

    def ready(self, other_than: str = "") -> dict[str, Any]:
        """The engine once it serves, of a generation ``other_than`` that."""

        def served() -> dict[str, Any]:
            assert self.process.poll() is None, self.log_path.read_text()[-2000:]
            engine = self.engine()
            good = engine.get("verdict") in {"ready", "busy"}
            return engine if good and engine["generation"] != other_than else {}

        return until(served, 120)

    def lines(self, name: str = "") -> list[dict[str, Any]]:
        """The whole lines of the log so far: all, or those of one event."""
        whole, _, _ = self.log_path.read_text(errors="replace").rpartition("\n")
        parsed = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in parsed if not name or line.get("event") == name]

    def members(self) -> dict[int, int]:
        """What lives in the box, zombies included: pids by inner pids."""
        return {inner: pid for pid in _all_pids() if (inner := self._inner(pid))}

    def outer(self, inner: int) -> int:
        """The pid, for the test, of a process that calls itself ``inner``."""
        return self.members()[inner]

    def zombies(self) -> int:
        """How many in the box are dead and not reaped."""
        return sum(not alive(pid) for pid in self.members().values())

    def send(self, number: signal.Signals) -> None:
        """Signal PID 1, as a container engine does."""
        os.kill(self.pid, number)

    def ended(self, patience: float = 90.0) -> int:
        """The exit code of PID 1."""
        until(lambda: _is_over(self.process), patience)
        return self.process.wait()

    def spawn(self, *command: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start one more process in the box, as ``docker exec`` does; its parent stays outside."""
        enter = ["nsenter", f"--target={self.pid}", "--pid", "--net", "--mount", "setsid"]
        with Path(log or os.devnull).open("ab") as out:
            return subprocess.Popen(
                [*enter, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT
            )

    def _inner(self, pid: int) -> int:
        with contextlib.suppress(OSError):
            if _namespace(pid) == _namespace(self.pid):
                status = Path(f"/proc/{pid}/status").read_text()
                (line,) = (line for line in status.splitlines() if line.startswith("NSpid:"))
                return int(line.split()[-1])
        return 0


@contextlib.contextmanager
def folder(owner: int = 0) -> Iterator[Path]:
    """A state directory that ``owner`` can reach, who cannot reach those of pytest."""
    with tempfile.TemporaryDirectory(prefix="vb-", dir="/tmp") as made:
        Path(made).chmod(0o755)
        state = Path(made) / "state"
        state.mkdir(mode=0o700)
        os.chown(state, owner, owner)
        yield state


def simulated(*flags: str, port: int = ENGINE) -> list[str]:
    """The command line of an embedded engine that starts at once."""
    words = ["--port", str(port), "--startup-time", "0", *flags]
    return [sys.executable, "-m", "watchdog.simulator", *words]


def watchdog(state_dir: Path, *words: str) -> list[str]:
    """The command line of a daemon; ``words`` are flags, and the engine behind ``--``."""
    listen = f"127.0.0.1:{LISTEN}"
    config = state_dir.parent / "quick.toml"
    config.write_text(_QUICK)
    run = [sys.executable, "-m", "watchdog", "run", "--state-dir", str(state_dir)]
    return [*run, "--config", str(config), "--listen", listen, *words]


@contextlib.contextmanager
def boxed(
    command: Sequence[str],
    state_dir: Path,
    *,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Box]:
    """A box whose PID 1 is ``command``, once ``before`` has been done in it.

    ``before`` are lines of shell, done with the rights of root. The log is a file outside.
    """
    lines = ["set -eu", shlex.join([sys.executable, "-ISc", _LOOPBACK_UP]), *before]
    lines += [f"cd {shlex.quote(str(ROOT))}", f"exec setsid {shlex.join(command)}"]
    unshare = ["unshare", "--pid", "--mount", "--net", "--fork", "--kill-child", "--mount-proc"]
    with tempfile.NamedTemporaryFile(prefix="vb-log-", dir="/tmp") as log:
        process = subprocess.Popen(
            [*unshare, "sh", "-c", "\n".join(lines)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
        pid = 0
        try:
            pid = until(lambda: _child_of(process))
            with ThreadPoolExecutor(1, initializer=_enter, initargs=(pid,)) as inside:
                yield Box(process, pid, state_dir, Path(log.name), inside)
        finally:
            _end(process, pid)


def _end(process: subprocess.Popen[bytes], pid: int) -> None:
    """First as a container engine does; then by SIGKILL to PID 1, which takes all others along."""
    if process.poll() is None and pid:
        os.kill(pid, signal.SIGTERM)  # not reaped while its parent lives: still the one we mean
        deadline = time.monotonic() + 10
        until(lambda: _is_over(process) or time.monotonic() > deadline)
    if process.poll() is None:
        os.kill(pid or process.pid, signal.SIGKILL)
    until(lambda: _is_over(process))


def _is_over(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; PID 1 does not before all are reaped that live with it.

    Those that came from outside may have been left to us: a test of this process adopts orphans.
    """
    for pid in procfs.children(os.getpid()):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            inner = next(line for line in lines if line.startswith("NSpid:")).split()
            if len(inner) > _OUTSIDE and not alive(pid):
                os.waitpid(pid, os.WNOHANG)
    return process.poll() is not None


def _child_of(process: subprocess.Popen[bytes]) -> int:
    assert process.poll() is None, "no namespaces could be made"
    me = os.getpid()
    with contextlib.suppress(OSError, ValueError):
        pid = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        if all(_namespace(pid, kind) != _namespace(me, kind) for kind in ("pid", "net")):
            return pid
    return 0


def _namespace(pid: int, kind: str = "pid") -> Path:
    return Path(f"/proc/{pid}/ns/{kind}").readlink()


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _enter(pid: int) -> None:
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
    finally:
        os.close(descriptor)


# --- what a container lacks: lines for ``before`` -----------------------------------------------


def reachable(*paths: Path) -> list[str]:
    """Let somebody without rights reach these: homes above them are opened, in the box alone."""
    closed = {p for path in paths for p in path.parents if not p.stat().st_mode & 0o001}
    return [line for path in sorted(closed) for line in _opened(shlex.quote(str(path)))]


def _opened(place: str) -> Iterator[str]:
    yield "mount -t tmpfs scratch /mnt && mkdir -m 755 /mnt/upper /mnt/work"
    layers = f"lowerdir={place},upperdir=/mnt/upper,workdir=/mnt/work"
    yield f"mount -t overlay -o {layers} overlay {place} && chmod 755 {place}"


PYTHON = Path(sys.executable).resolve()
"""What somebody without rights has to reach, besides the tree."""
READ_ONLY = ("mount -o remount,bind,ro /",)
FEW_DEVICES = (
    "mount -t tmpfs -o mode=755 dev /dev && mkdir -m 1777 /dev/shm && cd /dev",
    "mknod -m 666 null c 1 3 && mknod -m 666 zero c 1 5 && mknod -m 666 urandom c 1 9",
)
"""Those without which Python does not start; no kernel log."""
HIDDEN_PIDS = ("mount -o remount,hidepid=2 /proc",)
NO_CGROUPS = ("umount --recursive --lazy /sys/fs/cgroup",)
OLD_CGROUPS = (
    "umount --recursive --lazy /sys/fs/cgroup && mount -t tmpfs cgroups /sys/fs/cgroup",
    "mkdir /sys/fs/cgroup/memory",
    "mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory || true",
)
"""Version 1 alone, as far as the machine still has it."""
