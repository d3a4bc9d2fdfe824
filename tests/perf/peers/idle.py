"""What a subject costs while its workers are well: CPU, memory, and a scrape of its metrics."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.perf.peers.processes import cpu, memory, rest, spawned, waited
from tests.perf.peers.scenarios import PATIENCE, kept
from tests.perf.peers.subject import Purpose, Subject
from tests.support.simulated import free_port

BEFORE = 8.0
WINDOW = 15.0
"""Seconds that a subject is left to settle, and that it is watched for then."""
SCRAPES = 200
_PAUSE = 0.02
EXPORTER = "prometheus-node-exporter"


@dataclass(frozen=True, slots=True)
class Cost:
    """Per cent of one core, MiB, and how many processes that is."""

    workers: int
    core: float
    pss: float
    private: float
    processes: int


def cost(run: Path, subject: Subject, workers: int) -> Cost:
    """The subject's own processes beside so many idle workers."""
    with kept(run, subject, Purpose.IDLE, workers) as (_, keeper):
        rest(BEFORE)
        pids, began = keeper.own(), time.monotonic()
        before = cpu(pids)
        rest(WINDOW)
        share = (cpu(pids) - before) / (time.monotonic() - began) * 100
        pss, private = memory(pids)
        return Cost(workers, share, pss, private, len(pids))


@contextlib.contextmanager
def _exporter(run: Path) -> Iterator[int]:
    port, folder = free_port(), run / "exporter"
    folder.mkdir()
    with spawned([EXPORTER, f"--web.listen-address=127.0.0.1:{port}"], folder):
        yield port


def scrapes(run: Path, ours: Subject) -> dict[str, list[float]]:
    """Milliseconds of each scrape, by whose; the exporter's are none where it is missing."""
    found = {}
    with kept(run, ours, Purpose.IDLE) as (_, keeper):
        rest(BEFORE)
        found[ours.name] = _scraped(keeper.metrics)
    with contextlib.suppress(FileNotFoundError), _exporter(run) as port:
        found["node_exporter"] = _scraped(port)
    return found


def _scraped(port: int) -> list[float]:
    if not waited(lambda: _answers(port), PATIENCE):
        raise TimeoutError("/metrics does not answer")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    times = []
    for _ in range(SCRAPES):
        began = time.monotonic()
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        times.append((time.monotonic() - began) * 1000)
        rest(_PAUSE)
    connection.close()
    return times


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/metrics")
        return connection.getresponse().status == 200
    return False
