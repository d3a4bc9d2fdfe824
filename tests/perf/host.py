"""`python -m tests.perf.host [SOCKETS FILES]`: CPU of one sweep of all probes of the host. A table.

Once in a quiet network namespace with an empty tmpfs, once with so many sockets and so many files:
what a look costs must not grow with them. Run it as root; it makes its own namespaces.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.perf.table import head, line, row
from tests.support.engines import Engines, Target
from watchdog import procfs, registry
from watchdog.contracts import Endpoint, Probe

PROBES = ("conntrack", "sockets", "tmpfs", "disk", "memory", "oom", "files", "clock", "cpu")
LOOKS = 30
_INSIDE = "--inside"
_A_FOLDER = 100_000


def main(sockets: int, files: int) -> int:
    """Print it; the exit code."""
    head("probe", "looks", "CPU, ms: median", "min", "max")
    with tempfile.TemporaryDirectory(prefix="host-perf") as folder, _tmpfs(Path(folder)):
        target = Target(
            Endpoint("127.0.0.1", 1),
            living=tuple(filter(None, [procfs.stat(os.getpid())])),
            command=("vllm", "serve", folder),
            environment={"TMPDIR": folder},
        )
        probes = {
            name: (spec := registry.probes()[name]).build(
                spec.settings(), Engines((target,), state_dir="/var/lib")
            )
            for name in PROBES
        }
        _sweeps("nothing there", probes)
        with _sockets(sockets):
            _fill(Path(folder), files)
            _sweeps(f"{sockets:,} sockets, {files:,} files", probes)
        for probe in probes.values():
            probe.close()
    return 0


def _sweeps(where: str, probes: dict[str, Probe]) -> None:
    costs: dict[str, list[float]] = {name: [] for name in probes}
    for _ in range(LOOKS):
        for name, probe in probes.items():
            began = time.process_time()
            list(probe.read(time.monotonic() + 10.0))
            costs[name].append((time.process_time() - began) * 1000)
    line(f"**{where}**", "", "", "", "")
    for name, values in costs.items():
        row(name, values, 2)
    row("all of them", [sum(look) for look in zip(*costs.values(), strict=True)], 2)


@contextlib.contextmanager
def _tmpfs(folder: Path) -> Iterator[None]:
    options = "nr_inodes=1500000,size=2g"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _fill(folder: Path, files: int) -> None:
    for first in range(0, files, _A_FOLDER):
        below = folder / f"d{first}"
        below.mkdir()
        for number in range(first, min(first + _A_FOLDER, files)):
            os.close(os.open(below / str(number), os.O_CREAT | os.O_WRONLY))


@contextlib.contextmanager
def _sockets(count: int) -> Iterator[None]:
    """As many sockets, in pairs: half of them held, the others in TIME_WAIT."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    held: list[socket.socket] = [listener]
    try:
        for number in range(count // 2 + count // 4):
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
            if number < count // 4:
                held += [client, server]
            else:
                client.close()
                server.close()
        yield
    finally:
        for one in held:
            one.close()


def _inside(arguments: list[str]) -> int:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sockets, files = (int(word) for word in (*arguments, "10000", "1000000")[:2])
    return main(sockets, files)


if __name__ == "__main__":
    given = sys.argv[1:]
    if _INSIDE in given:
        sys.exit(_inside([word for word in given if word != _INSIDE]))
    again = [sys.executable, "-m", "tests.perf.host", _INSIDE, *given]
    sys.exit(subprocess.call(["unshare", "--net", "--mount", *again]))
