"""`python -m tests.perf.coldstart [ROUNDS [COMMAND]] [cold]`: from exec to the first probe.

COMMAND is that of an installed watchdog, ``vllm-watchdog`` in a container's environment; without it
this tree's. Each round has a state directory of its own, so that nothing is remembered; what the
kernel keeps of files in memory is left as it is, or with ``cold`` asked to be forgotten first.
Nothing is asserted: a number belongs to one machine and one moment.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import datetime
from pathlib import Path

from tests.perf.table import head, line, percentile
from tests.support.simulated import ROOT, free_port, until

ROUNDS = 20
_PAGE_CACHE = Path("/proc/sys/vm/drop_caches")


def main() -> None:
    """Measure and print a table."""
    words = sys.argv[1:]
    cold = "cold" in words
    words = [word for word in words if word != "cold"]
    rounds = int(words[0]) if words else ROUNDS
    command = words[1:] or [sys.executable, "-m", "watchdog"]
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, ", end="")
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, {rounds} rounds\n")
    found = [started(command, cold=cold) for _ in range(rounds)]
    head("exec of the daemon to", "median ms", "p95 ms", "max ms")
    for number, what in enumerate(("its first probe's answer", "the spawn of the engine")):
        values = [one[number] * 1000 for one in found]
        line(what, *(f"{percentile(values, share):.0f}" for share in (0.5, 0.95, 1.0)))


def started(command: list[str], *, cold: bool) -> tuple[float, float]:
    """Seconds to the first answer of a probe, and to the spawn of an engine."""
    if cold:
        os.sync()
        _PAGE_CACHE.write_text("1")
    with tempfile.TemporaryDirectory(prefix="vc-") as folder:
        listen, log = f"127.0.0.1:{free_port()}", Path(folder) / "log"
        with log.open("wb") as out:
            at = time.time()
            words = ["run", "--simulate", "--state-dir", folder, "--listen", listen]
            process = subprocess.Popen([*command, *words], stdout=out, stderr=out, cwd=ROOT)
        try:
            until(lambda: '"engine.started"' in log.read_text())
            spawned = _spawned(log) - at
            return until(lambda: _first_success(listen)) - at, spawned
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _first_success(listen: str) -> float:
    """When the first probe had its first answer, since the epoch; 0.0 while none has."""
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=5) as page:
        text = page.read().decode()
    name = r"^vllm_watchdog_probe_last_success_timestamp_seconds\{.*\} (\S+)$"
    times = [float(value) for value in re.findall(name, text, re.MULTILINE)]
    return min((one for one in times if one > 0), default=0.0)


def _spawned(log: Path) -> float:
    """When the engine was started, by the log; since the epoch."""
    (told,) = (json.loads(one) for one in log.read_text().splitlines() if '"engine.started"' in one)
    return datetime.fromisoformat(told["timestamp"]).timestamp()


if __name__ == "__main__":
    main()
