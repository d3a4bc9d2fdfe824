"""A damaged recording: what can be read is what was written, and the rest is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.clockwork import Clockwork, Fault
from tests.support.core import Story
from watchdog.core.model import Event
from watchdog.recorder import Recorder, RecordingError, Start, Told, read


def silent(text: str) -> None:
    """Nothing is expected to be skipped."""
    raise AssertionError(text)


@pytest.fixture(name="written", scope="module")
def fixture_written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a recording of some minutes with a restart."""
    folder = tmp_path_factory.mktemp("written")
    story = Story()
    recorder = Recorder(folder, silent, clock=lambda: story.state.at or 0.0)
    recorder.begin(story.state, 0.0)
    take = story.take

    def recorded(event: Event) -> object:
        done = take(event)
        recorder.observe(event, done)
        return done

    story.take = recorded  # type: ignore[method-assign, assignment]
    clockwork = Clockwork(Fault(after=120.0, lasts=60.0, answers=False, stopped=1), story=story)
    for until in range(60, 601, 60):
        clockwork.run(float(until))
        assert recorder.flush(60.0)
    recorder.close(60.0)
    (path,) = (folder / "recording").iterdir()
    return path.read_bytes()


def survived(data: bytes, folder: Path) -> list[Start | Told]:
    """What can be read of ``data``; nothing but the one error is ever raised."""
    path = folder / "x.vwr"
    path.write_bytes(data)
    try:
        return list(read(path, lambda _: None))
    except RecordingError:
        return []


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_bit_flips_cost_a_part_and_never_more_than_that(
    written: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever bits flip, what is read is what was written, or the one error."""
    whole = survived(written, tmp_path_factory.mktemp("whole"))
    flipped = bytearray(written)
    for _ in range(data.draw(st.integers(1, 4))):
        flipped[data.draw(st.integers(0, len(written) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = survived(bytes(flipped), tmp_path_factory.mktemp("flipped"))
    texts = {repr(entry) for entry in whole}
    assert all(repr(entry) in texts for entry in found)


@given(st.floats(0.0, 1.0))
@settings(max_examples=50, deadline=None)
def test_a_cut_costs_the_end(
    written: bytes, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    """A file that was cut short tells its beginning."""
    whole = survived(written, tmp_path_factory.mktemp("whole"))
    found = survived(written[: int(len(written) * share)], tmp_path_factory.mktemp("cut"))
    assert found == whole[: len(found)]


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=200, deadline=None)
def test_garbage_is_the_one_error(
    tmp_path_factory: pytest.TempPathFactory,
    noise: bytes,
    headed: bool,  # noqa: FBT001
) -> None:
    """Any file that is no recording is refused in one line, also one that begins like one."""
    start = b"vllm-watchdog recording\n\x01\x00" if headed else b""
    assert survived(start + noise, tmp_path_factory.mktemp("garbage")) == []


def test_a_newer_format_is_refused_by_name(written: bytes, tmp_path: Path) -> None:
    """A recording of a later version is not half understood."""
    path = tmp_path / "00000001.vwr"
    path.write_bytes(written.replace(b"recording\n\x01\x00", b"recording\n\x02\x00", 1))
    with pytest.raises(RecordingError, match=r"format 2; this version reads up to 1"):
        list(read(path, silent))


@pytest.mark.parametrize("what", ["nothing", "directory", "garbage", "empty"])
def test_nothing_to_read_is_one_line(what: str, tmp_path: Path) -> None:
    """A path that is missing, empty or no recording is named in the error."""
    path = tmp_path / what
    if what == "directory":
        path.mkdir()
    elif what != "nothing":
        path.write_bytes(b"" if what == "empty" else b"garbage" * 100)
    with pytest.raises(RecordingError) as caught:
        list(read(path, silent))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
