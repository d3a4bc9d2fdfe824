"""What reading GPUs costs, as JSON: ``python tests/gpu/measure.py [SWEEPS]``, in the repository.

A sweep is what the probe asks every second; what it asks seldom is in ``start``, where all of it is
due at once. Without a GPU the fake library answers as slowly as a recorded card, for 1 to 16 cards.
Times are milliseconds: ``wall`` as the probe sees it, ``cpu`` of the worker and of its client.
Needs nvidia-ml-py and msgspec; the fake needs a C compiler.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from probes._nvml.client import NvmlClient, NvmlUnavailableError
from tests.support import fake_nvml
from tests.support.fake_nvml import asking, sweep

SWEEPS = 200
REAL = Path("/dev/nvidia0")
CARDS = (1, 2, 4, 8, 16)
_PAUSE = 0.01


def main() -> None:
    """Measure what there is and print it."""
    sweeps = int(sys.argv[1]) if len(sys.argv) > 1 else SWEEPS
    if REAL.exists():
        found = {"real": measured({}, sweeps), "idle_without_library": None}
    else:
        found = {**faked(sweeps), "idle_without_library": absent()}
    json.dump(found, sys.stdout, indent=2)
    sys.stdout.write("\n")


def faked(sweeps: int) -> dict[str, Any]:
    """The fake library at the latencies of the loaded card."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        fake = fake_nvml.build(Path(folder))
        recorded = fake_nvml.from_recording(fake_nvml.RECORDINGS["load"], latencies=True)
        for cards in CARDS:
            fake.cards = cards
            fake.set(recorded)
            found[f"fake_{cards}"] = measured(fake.environment, sweeps)
    return found


def measured(environment: dict[str, str], sweeps: int) -> dict[str, Any]:
    """One worker over all its sweeps."""
    with asking(environment) as client:
        began = time.monotonic()
        answer = sweep(client, 60)
        first_wall = time.monotonic() - began
        (worker,) = client.pids
        started = cpu(worker)
        ours = time.process_time()
        walls = timed(client, "cards", sweeps)
        spent, ours = cpu(worker) - started, time.process_time() - ours
        return {
            "cards": len(answer["gpus"]),
            "sweeps": sweeps,
            "start": {"wall": ms(first_wall), "cpu": ms(started)},
            "sweep_wall": spread(walls),
            "sweep_cpu_worker": ms(spent / sweeps),
            "sweep_cpu_client": ms(ours / sweeps),
            "processes_wall": spread(timed(client, "processes", sweeps)),
            "events_wall": spread(timed(client, "events", sweeps)),
            "worker_bytes": memory(worker),
            "worker_gpu_bytes": held_by(worker, client.ask("processes", time.monotonic() + 60)),
            "errors": [card["errors"] for card in answer["gpus"] if card["errors"]],
            "readings": answer if REAL.exists() else "as recorded",
        }


def timed(client: NvmlClient, request: str, times: int) -> list[float]:
    """Seconds of every request."""
    walls = []
    for _ in range(times):
        began = time.monotonic()
        client.ask(request, began + 60)
        walls.append(time.monotonic() - began)
        time.sleep(_PAUSE)
    return walls


def absent() -> dict[str, Any]:
    """What a machine without a library pays: one start of the worker a minute."""
    before = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        with asking({}) as client:
            sweep(client)
    except NvmlUnavailableError as error:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before[1].ru_utime - before[1].ru_stime
        return {
            "error": str(error),
            "start_cpu_worker": ms(spent),
            "start_cpu_client": ms(time.process_time() - before[0]),
            "next_sweep_wall": ms(refused(NvmlClient())),
        }
    return {"error": None}


def refused(client: NvmlClient) -> float:
    """Seconds of a sweep while the client rests."""
    fake_nvml.trouble(client)
    began = time.monotonic()
    fake_nvml.trouble(client)
    took = time.monotonic() - began
    client.close()
    return took


def held_by(worker: int, answer: dict[str, Any]) -> int:
    """Bytes of GPU memory that NVML's own list gives to the worker."""
    rows = [row for card in answer["gpus"] for row in card.get("processes", ())]
    return sum(row[1] or 0 for row in rows if row[0] == worker)


def cpu(pid: int) -> float:
    """User and system time of a process in seconds, to the nanosecond where the kernel tells."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        parts = [int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()]
        return sum(parts) / 1e9
    except OSError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> dict[str, int]:
    """Resident, proportional and private bytes."""
    names = {"Rss": "rss", "Pss": "pss", "Private_Clean": "private", "Private_Dirty": "private"}
    found = dict.fromkeys(names.values(), 0)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[names[name]] += int(value.split()[0]) * 1024
    return found


def spread(seconds: list[float]) -> dict[str, float]:
    """Median, 99th percentile and extremes in milliseconds."""
    ordered = sorted(seconds)
    return {
        "min": ms(ordered[0]),
        "median": ms(statistics.median(ordered)),
        "p99": ms(ordered[int(0.99 * (len(ordered) - 1))]),
        "max": ms(ordered[-1]),
    }


def ms(seconds: float) -> float:
    """Milliseconds with three decimals."""
    return round(seconds * 1000, 3)


if __name__ == "__main__":
    main()
