"""Recordings of which one file was damaged, cut or swapped: the others are read as they were."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.budget import mutated, times
from tests.perf.replay import Week
from tests.support.rules import DEFAULT_RULES
from watchdog.core import rule_set
from watchdog.core.model import Tick
from watchdog.core.state import PolicySettings, State, Step
from watchdog.recorder import Recorder, RecordingError, Start, Told, read
from watchdog.replay import replay

MINUTES = 5
RULES = rule_set.of(DEFAULT_RULES)
SUFFIX = ".vwr"


@dataclass(frozen=True, slots=True)
class Written:
    """The bytes of a whole file, and what it tells."""

    data: bytes
    told: tuple[Told, ...]


@pytest.fixture(scope="module", name="written")
def fixture_written() -> Written:
    """Some minutes of one engine and one card."""
    lived = Week(1, 1)
    try:
        lived.run(MINUTES * 60)
        (path,) = (lived.folder / "recording").iterdir()
        return Written(path.read_bytes(), only_told(read(path, print)))
    finally:
        shutil.rmtree(lived.folder)


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples are made, one after the other."""
    return tmp_path_factory.mktemp("recordings") / "recording"


def only_told(entries: Iterable[Start | Told]) -> tuple[Told, ...]:
    """Without where runs begin."""
    return tuple(one for one in entries if isinstance(one, Told))


def laid(folder: Path, *files: bytes) -> None:
    """A recording of these files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, data in enumerate(files, 1):
        (folder / f"{number:08}{SUFFIX}").write_bytes(data)


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """A file that was damaged, that begins well and is noise, or of which a part came twice."""
    half = len(data) // 2
    return draw(
        mutated([data], most=3)
        | st.binary(max_size=60)
        | st.binary(max_size=60).map(lambda noise: data[:40] + noise)
        | st.just(data[:half] + data)
        | st.just(data[half:])
    )


@times(60)
@given(data=st.data(), first=st.booleans())
def test_fuzz_one_file(
    written: Written,
    folder: Path,
    data: st.DataObject,
    first: bool,  # noqa: FBT001
) -> None:
    """FACT: a damaged file costs lines of words; the whole one beside it is told to its end."""
    broken = data.draw(spoiled(written.data))
    laid(folder, *((broken, written.data) if first else (written.data, broken)))
    said: list[str] = []
    entries: list[Start | Told] = []
    refused = ""
    try:
        entries += read(folder, said.append)
    except RecordingError as error:
        refused = str(error)
    if refused:
        assert refused.isprintable()
        assert "reads up to" in refused  # a newer format is named, and not half understood
        return
    told, size = only_told(entries), len(written.told)
    assert (told[-size:] if first else told[:size]) == written.told
    assert all(line.isprintable() for line in said)
    report = replay(entries, RULES, PolicySettings())
    assert report.bugs == 0


@times(60)
@given(data=st.data())
def test_fuzz_going_on(written: Written, folder: Path, data: st.DataObject) -> None:
    """FACT: a watchdog that finds a damaged recording goes on, and can read its own part."""
    laid(folder, data.draw(spoiled(written.data)))
    said: list[str] = []
    recorder = Recorder(folder.parent, said.append, clock=lambda: 5.0)
    recorder.begin(State(at=0.0), 0.0)
    for second in range(1, 6):
        event = Tick(float(second))
        recorder.observe(event, Step(State(at=event.at)))
    assert recorder.flush(60.0)
    recorder.close(60.0)
    assert not said
    (newest,) = sorted(folder.iterdir())[-1:]
    assert any(isinstance(one, Start) for one in read(newest, said.append))
