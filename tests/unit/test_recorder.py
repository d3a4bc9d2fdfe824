"""The flight recorder: what is kept is what happened, within bounds, whatever the disk does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.laws.clockwork import Clockwork, Fault
from tests.support.core import GENERATION, Story, http, metrics, process, serving
from tests.support.simulated import ROOT, until
from watchdog.core.model import (
    Event,
    HoldReason,
    Pause,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    Subject,
    SubjectKind,
    Tick,
    Unread,
    Verb,
)
from watchdog.recorder import Recorder, Start, Told, read
from watchdog.recorder.files import Bounds

GPU = Subject(SubjectKind.GPU, "GPU-1")
WALL = 1_000_000_000.0


def silent(text: str) -> None:
    """Nothing is expected to be skipped."""
    raise AssertionError(text)


@dataclass
class Taped:
    """A story that is recorded; time is that of its events."""

    folder: Path
    story: Story = field(default_factory=Story)
    bounds: Bounds = field(default_factory=Bounds)
    now: Seconds = 0.0
    said: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    most_samples: int = 200_000

    def __post_init__(self) -> None:
        """Begin."""
        self.recorder = Recorder(
            self.folder,
            self.said.append,
            bounds=self.bounds,
            clock=lambda: self.now,
            wall=lambda: WALL + self.now,
            most_samples=self.most_samples,
        )
        self.recorder.begin(self.story.state, self.now)
        take = self.story.take

        def recorded(event: Event) -> object:
            self.now = max(self.now, event.at)
            done = take(event)
            self.events.append(event)
            self.recorder.observe(event, done)
            return done

        self.story.take = recorded  # type: ignore[method-assign, assignment]

    def live(self, fault: Fault, seconds: int) -> None:
        """Let an engine with a fault live, minute by minute."""
        clockwork = Clockwork(fault, story=self.story)
        for minute in range(60, seconds + 1, 60):
            clockwork.run(float(minute))
            assert self.recorder.flush(30.0)

    def told(self) -> list[Told]:
        """End the recording, and what it tells."""
        self.recorder.close(30.0)
        return [entry for entry in read(self.folder, silent) if isinstance(entry, Told)]


@pytest.fixture(name="taped")
def fixture_taped(tmp_path: Path) -> Iterator[Taped]:
    """A recorded story that serves from second 0 on."""
    taped = Taped(tmp_path, serving())
    yield taped
    taped.recorder.close(30.0)


def looks(at: Seconds) -> tuple[Reading, ...]:
    """One look of every engine probe at a healthy engine."""
    busy = metrics(at, at, running=1.0)
    return process(at, cpu_seconds=at), http(at, canary="ok", status=200), busy


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


def test_recent_has_every_reading_of_the_last_minutes(taped: Taped) -> None:
    """The memory of ten minutes has all readings, the newest too, in full."""
    for second in range(1, 1001):
        taped.story.read(process(float(second), cpu_seconds=float(second)))
        if second % 100 == 0:
            assert taped.recorder.flush(30.0)
    found = taped.recorder.recent(300.0)
    wanted = [e.reading for e in taped.events if isinstance(e, ReadingTaken) and e.at >= 700.0]
    assert list(found) == wanted
    assert 600 <= len(taped.recorder.recent(1e9)) <= 720


def test_without_a_directory_there_is_the_memory_alone(tmp_path: Path) -> None:
    """A watchdog that can keep nothing still has the last minutes."""
    story = serving()
    recorder = Recorder(None, silent, clock=lambda: 10.0)
    recorder.begin(story.state, 0.0)
    one = process(5.0)
    recorder.observe(ReadingTaken(5.0, one), story.take(ReadingTaken(5.0, one)))
    assert recorder.flush(30.0)
    assert recorder.recent(60.0) == (one,)
    recorder.close(30.0)
    assert (recorder.lost, list(tmp_path.iterdir())) == (0, [])


def test_what_cannot_be_encoded_costs_only_itself(taped: Taped) -> None:
    """A value that no recording can hold is counted; what follows is written."""
    taped.story.exited(5.0)
    bad = Reading("odd", 6.0, 0.0, (Sampled(GPU, "a", 1 << 80), Sampled(GPU, "b", "\ud800")))
    taped.story.read(bad)
    taped.story.read(process(7.0))
    assert [one.event.at for one in taped.told() if isinstance(one.event, ReadingTaken)] == [7.0]
    assert taped.recorder.lost >= 1


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


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_is_told_once_and_tried_again(tmp_path: Path) -> None:
    """Events are lost and counted while the disk is full; then a new file goes on."""
    target = tmp_path / "small"
    target.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(target)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("no right to mount here")
    try:
        taped = Taped(target, serving())
        taped.story.exited(1.0)
        fill(taped, range(2, 40), target)
        ballast = target / "ballast"
        ballast.write_bytes(b"x" * room(target))
        fill(taped, range(40, 120), target)
        assert taped.recorder.lost > 0
        assert len(taped.said) == 1
        assert "No space left on device" in taped.said[0]
        ballast.unlink()
        fill(taped, range(200, 220), target)
        taped.recorder.close(30.0)
        entries = list(read(target, lambda _: None))
        assert [type(e) for e in entries].count(Start) == 2
        assert entries[-1].event.at == 219.0  # type: ignore[union-attr]
    finally:
        subprocess.run(["umount", str(target)], check=True)


def room(folder: Path) -> int:
    """Bytes that are free."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_bsize


def fill(taped: Taped, seconds: range, _: Path) -> None:
    """A reading of many values each second."""
    for second in seconds:
        noise = tuple(Sampled(GPU, f"s{n}", hash((second, n)) % 10**9) for n in range(200))
        taped.story.read(Reading("noise", float(second), 0.0, noise))
        assert taped.recorder.flush(30.0)


def test_a_sick_directory_never_reaches_the_loop(tmp_path: Path) -> None:
    """Where a file stands in the place of the directory, observing goes on and the loss counts."""
    (tmp_path / "recording").write_text("in the way")
    taped = Taped(tmp_path, serving())
    taped.story.exited(1.0)
    assert taped.recorder.flush(30.0)
    taped.recorder.close(30.0)
    assert taped.recorder.lost >= 1
    assert len(taped.said) == 1
    assert "cannot record to" in taped.said[0]


def test_held_decisions_are_kept_with_their_reason(taped: Taped) -> None:
    """Holds are recorded as well as acts."""
    taped.story.command(Verb.PAUSE, 1.0)
    taped.story.exited(2.0, generation=GENERATION)
    holds = {decision.hold for one in taped.told() for decision in one.decisions}
    assert HoldReason.PAUSED in holds
