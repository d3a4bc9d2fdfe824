"""The flight recorder: what is kept is what happened, within bounds, whatever the disk does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.laws.clockwork import Clockwork, Fault
from tests.support.core import GENERATION, process, serving
from tests.support.simulated import ROOT, until
from tests.support.taped import GPU, WALL, Taped, looks, silent
from watchdog.core.model import (
    Finding,
    HoldReason,
    Pause,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    Severity,
    Tick,
    Unread,
    Verb,
)
from watchdog.core.state import Track, Watch
from watchdog.recorder import Recorder, Start, Told, read
from watchdog.recorder.files import Bounds
from watchdog.recorder.thinning import Calm


@pytest.fixture(name="taped")
def fixture_taped(tmp_path: Path) -> Iterator[Taped]:
    """A recorded story that serves from second 0 on."""
    taped = Taped(tmp_path, serving())
    yield taped
    taped.recorder.close(30.0)


def test_what_comes_back_equals_what_happened(taped: Taped) -> None:
    """Events of every kind come back as equal values, in order, with what was decided then."""
    story = taped.story
    strange = Reading(
        "gpu",
        1.5,
        0.25,
        (Sampled(GPU, "a", True), Sampled(GPU, "a", 1, (("x", "y"),)), Sampled(GPU, "b", 1.0)),  # noqa: FBT003
        (Unread(GPU, "odd", "c"),),
        None,
        None,
    )
    story.read(*looks(1.0))
    story.take(ReadingTaken(1.75, strange))
    story.command(Verb.PAUSE, 2.0, until=3.0)
    story.exited(4.0)
    story.spawned(5.0, "0000000b")
    story.finished(5.0, "restart_engine")
    told = taped.told()
    kept = [event for event in taped.events if not isinstance(event, Tick)]
    assert [one.event for one in told if not isinstance(one.event, Tick)] == kept
    back = next(o.event for o in told if isinstance(o.event, ReadingTaken) and o.event.at == 1.75)
    assert [type(s.value) for s in back.reading.samples] == [bool, int, float]
    decided = [decision for one in told for decision in one.decisions]
    assert decided == story.decisions
    assert {d.hold for d in decided} >= {None}
    assert all(one.offset == WALL for one in told)


def test_a_file_begins_with_what_replay_starts_from(tmp_path: Path) -> None:
    """Mode, pause, engines with their accounts and ladders are in the header of every file."""
    story = serving()
    story.command(Verb.PAUSE, 1.0)
    story.exited(2.0)
    taped = Taped(tmp_path, story)
    story.read(*looks(3.0))
    taped.recorder.close(30.0)
    start = next(iter(read(tmp_path, silent)))
    assert isinstance(start, Start)
    assert start.fresh
    assert start.state.engines == {"main": taped_engine(taped, before=3.0)}
    assert start.state.pause == Pause("why", "me", 1.0)


def taped_engine(taped: Taped, before: Seconds) -> object:
    """The engine as it was before the first recorded event."""
    fresh = serving()
    fresh.command(Verb.PAUSE, 1.0)
    fresh.exited(2.0)
    assert before > 2.0
    assert taped.story.engine.name == "main"
    return fresh.engine


def test_quiet_times_are_thinned_and_trouble_has_its_minute_before(tmp_path: Path) -> None:
    """In quiet one reading of a probe in ten seconds is written; a minute before trouble, all."""
    taped = Taped(tmp_path)
    taped.live(Fault(after=1800.0, lasts=100.0, answers=False, stopped=1), 2400)
    told = [one.event for one in taped.told() if isinstance(one.event, ReadingTaken)]
    processes = [e.at for e in told if e.reading.probe == "engine_process"]
    quiet = [at for at in processes if 600 <= at < 1700]
    assert 100 <= len(quiet) <= 111
    assert max(b - a for a, b in pairwise(quiet)) <= 15.0
    lead = [e for e in taped.events if isinstance(e, ReadingTaken) and 1745 <= e.at < 1810]
    assert [e for e in told if 1745 <= e.at < 1810] == lead
    assert len(told) < len(taped.events) / 3


def test_what_nobody_writes_does_not_pile_up(tmp_path: Path) -> None:
    """When more comes than may wait, it is counted, and not kept."""
    taped = Taped(tmp_path, serving(), most_samples=100)
    taped.recorder.close(30.0)  # nobody takes anything from the queue
    for second in range(1, 100):
        taped.story.read(*looks(float(second)))
    assert taped.recorder.lost > 0


def test_the_disk_is_bounded(tmp_path: Path) -> None:
    """Files are short, the oldest go, and what is left can be read on its own."""
    bounds = Bounds(file_bytes=8_000, total_bytes=40_000)
    taped = Taped(tmp_path, bounds=bounds)
    folder = tmp_path / "recording"
    clockwork = Clockwork(Fault(after=60.0, answers=False, computes=True), story=taped.story)
    for minute in range(1, 181):
        clockwork.run(minute * 60.0)
        assert taped.recorder.flush(30.0)
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 40_000
    told = taped.told()
    assert not (folder / "00000001.vwr").exists()
    assert told[-1].event.at > 10_700
    starts = [entry for entry in read(tmp_path, silent) if isinstance(entry, Start)]
    assert len(starts) == 1, "the files continue one run"
    for path in folder.iterdir():
        alone = list(read(path, silent))
        assert isinstance(alone[0], Start)
        assert set(alone[0].state.engines) == {"main"}


def test_a_restart_begins_a_new_run(tmp_path: Path) -> None:
    """The next life of the watchdog writes its own files; a reader is told where it begins."""
    for _ in range(2):
        taped = Taped(tmp_path, serving())
        taped.story.exited(5.0)
        taped.recorder.close(30.0)
    starts = [entry for entry in read(tmp_path, silent) if isinstance(entry, Start)]
    assert [start.fresh for start in starts] == [True, True]


def test_a_gap_is_recorded_with_its_beginning(taped: Taped) -> None:
    """After a time in which nobody looked, the next event says since when."""
    taped.story.read(*looks(1.0))
    taped.story.asleep(500.0)
    assert taped.told()[-1].gap_since == 1.0


def test_without_a_directory_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FACT: a watchdog that can keep nothing writes nowhere, whatever it is told."""
    monkeypatch.chdir(tmp_path)
    story = serving()
    recorder = Recorder(None, silent, clock=lambda: 10.0)
    for at in (5.0, 6.0):
        recorder.begin(story.state, at)
        event = ReadingTaken(at, process(at))
        recorder.observe(event, story.take(event))
    recorder.close(30.0)
    assert (recorder.lost, list(tmp_path.iterdir())) == (0, [])


CHILD = """
import sys, time
from pathlib import Path
from tests.support.core import process, serving
from watchdog.core.model import ReadingTaken
from watchdog.recorder import Recorder
story = serving()
story.exited(1.0)
recorder = Recorder(Path(sys.argv[1]), print)
recorder.begin(story.state, 1.0)
second = 1.0
while True:
    second += 0.001
    event = ReadingTaken(second, process(second, cpu_seconds=second))
    recorder.observe(event, story.take(event))
    time.sleep(0.001)
"""


def test_after_sigkill_all_but_the_end_is_readable(tmp_path: Path) -> None:
    """A writer that is killed leaves a recording without a hole, up to the last seconds."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], cwd=ROOT)
    try:
        path = tmp_path / "recording" / "00000001.vwr"
        until(lambda: path.exists() and path.stat().st_size > 20_000, 60.0)
    finally:
        child.kill()
        child.wait()
    said: list[str] = []
    told = [entry for entry in read(tmp_path, said.append) if isinstance(entry, Told)]
    times = [one.event.at for one in told]
    assert len(times) > 500
    assert all(0 < b - a < 0.0015 for a, b in pairwise(times))
    assert not [line for line in said if "damaged" in line]


def test_held_decisions_are_kept_with_their_reason(taped: Taped) -> None:
    """Holds are recorded as well as acts."""
    taped.story.command(Verb.PAUSE, 1.0)
    taped.story.exited(2.0, generation=GENERATION)
    holds = {decision.hold for one in taped.told() for decision in one.decisions}
    assert HoldReason.PAUSED in holds


def test_what_was_done_lately_is_not_quiet() -> None:
    """FACT: the next rung waits for a look, so none is left out soon after the one before."""
    story = serving()
    story.serve(700.0)
    assert Calm().quiet(story.state, 700.0)
    key, track = ("any", story.engine.subject), Track(1, acted_at=650.0, ended_at=660.0)
    finding = Finding("any", key[1], Severity.WARNING, "so", since=0.0)
    watches = {key: Watch(pending_since=0.0, firing=finding)}
    assert Calm().quiet(replace(story.state, watches=watches), 700.0)
    acted = replace(story.state, watches=watches, tracks={key: track})
    assert not Calm().quiet(acted, 700.0)
    assert Calm().quiet(acted, 1300.0)
    aside = story.state.with_engine(replace(story.engine, aside="look"))
    assert not Calm().quiet(aside, 700.0)
