"""The lines of the table that `make bench` prints, and what they are computed from."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def head(*columns: str) -> None:
    """Begin a table of Markdown."""
    line(*columns)
    line(*("---" for _ in columns))


def line(*cells: object) -> None:
    """One line of it, at once: the next may take minutes."""
    print(f"| {' | '.join(map(str, cells))} |")
    sys.stdout.flush()


def row(what: str, values: Sequence[float], digits: int = 1) -> float:
    """A line with how many there are, median and range. Returns the median."""
    middle = statistics.median(values)
    figures = (f"{value:.{digits}f}" for value in (middle, min(values), max(values)))
    line(what, len(values), *figures)
    return middle


def single(what: str, count: int, value: float, digits: int = 1) -> None:
    """A line with one figure, made of ``count`` values."""
    line(what, count, f"{value:.{digits}f}", "", "")


def percentile(values: Iterable[float], share: float) -> float:
    """The value that ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def timed(call: Callable[[], object]) -> float:
    """Seconds that the call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def cpu(pids: Iterable[int]) -> float:
    """User and system seconds of all threads of the processes, in hundredths."""
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def pss(pids: Iterable[int]) -> float:
    """Proportional memory of the processes in MiB."""
    total = 0
    for pid in pids:
        for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if text.startswith("Pss:"):
                total += int(text.split()[1])
    return total / 1024


def children(pid: int) -> list[int]:
    """Processes that any of its threads started and has not reaped."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # the thread ended meanwhile
    return found
