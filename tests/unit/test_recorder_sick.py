"""The recorder in trouble: a sick disk, values beyond encoding, bugs; it goes on recording."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.core import Story, engine, process, serving
from tests.support.taped import GPU, Taped, looks, silent
from watchdog.core.model import EngineExited, Reading, ReadingTaken, Sampled, Tick, Verb
from watchdog.core.state import State
from watchdog.recorder import Recorder, Start, Told, read
from watchdog.recorder.files import Bounds, Files, listed


@pytest.fixture(name="taped")
def fixture_taped(tmp_path: Path) -> Iterator[Taped]:
    """A recorded story that serves from second 0 on."""
    taped = Taped(tmp_path, serving())
    yield taped
    taped.recorder.close(30.0)


def test_what_cannot_be_encoded_costs_only_itself(taped: Taped) -> None:
    """A value that no recording can hold is counted; what follows is written, from its state on."""
    taped.story.exited(5.0)
    taped.story.read(Reading("odd", 6.0, 0.0, (Sampled(GPU, "a", 1 << 80),)))
    taped.story.read(process(7.0))
    taped.recorder.close(30.0)
    entries = list(read(taped.folder, silent))
    told = [one for one in entries if isinstance(one, Told)]
    assert [one.event.at for one in told if isinstance(one.event, ReadingTaken)] == [7.0]
    assert taped.recorder.lost == 1
    (again,) = (one for one in entries[1:] if isinstance(one, Start))
    assert (again.fresh, again.lost) == (False, 1)


def test_texts_that_are_no_utf8_are_written_with_escapes(tmp_path: Path) -> None:
    """FACT: a lone surrogate in a checkpoint, a reading or another event costs nothing."""
    odd = "x\udcff"
    state = State(engines={odd: engine(name=odd, explanation=odd)})
    taped = Taped(tmp_path, Story(state))
    taped.story.read(Reading("odd", 1.0, 0.0, (Sampled(GPU, "b", odd, (("l", odd),)),), error=odd))
    taped.story.exited(2.0, name=odd)
    taped.story.command(Verb.PAUSE, 3.0)
    told = taped.told()
    assert (taped.recorder.lost, taped.said) == (0, [])
    assert [o.event.engine for o in told if isinstance(o.event, EngineExited)] == ["x\\udcff"]
    (start,) = (one for one in read(tmp_path, silent) if isinstance(one, Start))
    assert list(start.state.engines) == ["x\\udcff"]


def test_a_header_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    """FACT: the thread outlives any error but a full disk too: told once, and counted."""
    story = serving()
    sound = story.state
    broken = replace(story.engine, xids=(1 << 80, 0))
    story.state = story.state.with_engine(broken)
    taped = Taped(tmp_path, story)
    story.read(*looks(1.0))
    story.exited(2.0)
    assert taped.recorder.flush(30.0)
    assert (len(taped.said), taped.recorder.lost > 0) == (1, True)
    story.state = sound
    taped.recorder.begin(sound, 20.0)
    taped.now = 20.0
    story.exited(21.0)
    told = taped.told()
    assert [one.event.at for one in told if isinstance(one.event, EngineExited)] == [21.0]
    assert len(taped.said) == 1


def test_a_bug_in_the_thread_costs_an_event(tmp_path: Path) -> None:
    """FACT: whatever is raised while writing, here by the clock, the next event is written."""
    story, seen = serving(), list[str]()
    story.exited(0.5)
    bad = [True]

    def clock() -> float:
        if bad[0]:
            raise ZeroDivisionError
        return 1.0

    def warn(line: str) -> None:
        seen.append(line)
        raise ZeroDivisionError

    recorder = Recorder(tmp_path, warn, clock=clock)
    recorder.begin(story.state, 0.5)
    for at in (1.0, 2.0):
        event = ReadingTaken(at, process(at))
        recorder.observe(event, story.take(event))
        assert recorder.flush(30.0)
        bad[0] = False
    recorder.close(30.0)
    assert len(seen) == 1
    assert recorder.lost >= 1
    told = [entry for entry in read(tmp_path, silent) if isinstance(entry, Told)]
    assert [one.event.at for one in told] == [2.0]


def test_what_cannot_be_observed_leaves_a_new_beginning(taped: Taped) -> None:
    """FACT: after a step that could not be looked at, replay is told the state again."""
    taped.story.exited(5.0)
    spoilt = replace(taped.story.take(Tick(6.0)), findings=None)  # type: ignore[arg-type]
    taped.recorder.observe(None, spoilt)  # type: ignore[arg-type]
    taped.story.read(process(7.0))
    taped.recorder.close(30.0)
    entries = list(read(taped.folder, silent))
    again = [one for one in entries[1:] if isinstance(one, Start)]
    assert [(one.fresh, one.lost) for one in again] == [(False, 1)]


def test_only_our_own_files_are_listed(tmp_path: Path) -> None:
    """FACT: digits of other scripts, signs and other endings are no numbers of files."""
    for name in ("00000002.vwr", "²x.vwr", "².vwr", "٣.vwr", "+1.vwr", "1.txt", f"{'9' * 200}.vwr"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in listed(tmp_path)] == ["00000002.vwr"]


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


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_room_is_made_before_a_full_disk_is_written_to(tmp_path: Path) -> None:
    """FACT: where our own old files fill the disk, the oldest go and a new one begins."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("no right to mount here")
    try:
        (tmp_path / "00000001.vwr").write_bytes(b"x" * room(tmp_path))
        files = Files(tmp_path, Bounds(file_bytes=8_000, total_bytes=40_000))
        files.begin(0.0, b"start")
        files.close()
        assert [path.name for path in listed(tmp_path)] == ["00000002.vwr"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


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
