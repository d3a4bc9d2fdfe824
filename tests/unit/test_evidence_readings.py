"""Readings of a bundle: what the recorder wrote in the last minutes, as it was."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.support.core import serving
from tests.support.taped import looks
from watchdog import procfs
from watchdog.core.model import ReadingTaken
from watchdog.evidence.blots import Blots
from watchdog.evidence.readings import Found, recent
from watchdog.recorder import Recorder
from watchdog.recorder.files import Bounds

LIMIT = 1 << 20


def recorded(folder: Path, minutes: int, boot: str, bounds: Bounds | None = None) -> float:
    """So many minutes until now of a serving engine, a look every second; the time of the last."""
    now = time.monotonic()
    began = now - 60.0 * minutes
    at = [began]
    recorder = Recorder(
        folder, lambda _: None, boot=boot, bounds=bounds, clock=lambda: at[0], wall=lambda: at[0]
    )
    story = serving(began)
    recorder.begin(story.state, began)
    for second in range(1, 60 * minutes):
        at[0] = began + second
        for reading in looks(at[0]):
            event = ReadingTaken(reading.at, reading)
            recorder.observe(event, story.take(event))
        if not second % 30:
            assert recorder.flush(30.0)
    recorder.close(30.0)
    return at[0]


def found(folder: Path, since: float, limit: int = LIMIT) -> tuple[Found, list[dict[str, Any]]]:
    """What is found since then, and its lines."""
    told = recent(folder, since, Blots(()), limit, time.monotonic() + 60.0)
    return told, [json.loads(line) for line in told.lines.splitlines()]


def test_the_last_minutes_are_there_in_order_and_nothing_older(tmp_path: Path) -> None:
    """FACT: over several files and chunks; the last look is the last line of its probe."""
    bounds = Bounds(file_seconds=100.0)
    last = recorded(tmp_path, 12, procfs.boot_id(), bounds)
    assert len(list((tmp_path / "recording").iterdir())) > 2
    told, lines = found(tmp_path, last - 300.0)
    times = [line["monotonic"] for line in lines]
    assert told.missing == ""
    assert times == sorted(times)
    assert last - 300.0 <= times[0] <= last - 285.0
    assert times[-1] >= last - 10.0
    process = next(line for line in reversed(lines) if line.get("probe") == "engine_process")
    samples = {name: value for _, name, value, *_ in process["samples"]}
    assert abs(samples["cpu_seconds"] - process["monotonic"]) < 0.01


def test_the_newest_are_kept_when_there_are_too_many(tmp_path: Path) -> None:
    """FACT: the limit holds, and it is said that something is missing."""
    last = recorded(tmp_path, 5, procfs.boot_id())
    told, lines = found(tmp_path, last - 600.0, limit=4000)
    assert len(told.lines) <= 4000
    assert "too long" in told.missing
    assert lines[-1]["monotonic"] >= last - 10.0


def test_another_boot_says_nothing_about_now(tmp_path: Path) -> None:
    """FACT: its times are others; that nothing was recorded is told."""
    last = recorded(tmp_path, 3, "another boot")
    told, lines = found(tmp_path, last - 600.0)
    assert lines == []
    assert told.missing == "nothing was recorded in that time"


def test_damage_costs_a_chunk_and_not_the_rest(tmp_path: Path) -> None:
    """FACT: what comes behind a damaged place is read, and a torn end is no trouble."""
    last = recorded(tmp_path, 12, procfs.boot_id())
    (file,) = (tmp_path / "recording").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data[:-7])
    _, lines = found(tmp_path, last - 600.0)
    assert lines
    assert lines[-1]["monotonic"] >= last - 90.0
