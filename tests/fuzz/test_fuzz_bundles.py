"""Bundles of evidence that are not as they were made: left out, and nothing else is touched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.budget import mutated, times
from watchdog.evidence.bundles import META, Bundle, by_incident, kept, prune, tidy

WELL = "inc-000001-001"
META_OF_IT = {"taken_at_s": 1000.0, "files": {"log.txt": 5}, "format": 1}
SEEDS = (
    json.dumps(META_OF_IT).encode(),
    b'{"taken_at_s": 1e999, "files": {"log.txt": 5}}',
    b'{"taken_at_s": 1, "files": {"../../stranger": 5, "log.txt": 5}}',
    b'{"taken_at_s": 1, "files": {"": 5, "..": 4096, "a\\u0000b": 1}}',
    b'{"taken_at_s": 1, "files": {}, "more": ' + b"[" * 3000,
    b'{"taken_at_s": -1, "files": {"log.txt": 18446744073709551616}}',
    b'{"taken_at_s": 1, "files": {' + b'"a": 1, ' * 3000 + b'"log.txt": 5}}',
)
NAMES = st.sampled_from(
    (
        "inc-000002-001",
        "inc-000002-1000",
        "inc-999999999999-999999",
        "no-incident-001",
        "inc-000001-002.part",
        "inc-000001-001.copy",
        "inc-00001-001",
        "inc-000001-001\n",
        "inc-\N{ARABIC-INDIC DIGIT SEVEN}00001-001",
        "notes",
    )
)
THINGS = st.sampled_from(("bundle", "file", "link", "pipe", "no meta", "meta is a folder"))


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples are made, one after the other."""
    return tmp_path_factory.mktemp("evidence")


def made(path: Path, meta: bytes) -> None:
    """A bundle with one file of five bytes."""
    path.mkdir()
    (path / "log.txt").write_bytes(b"hello")
    (path / META).write_bytes(meta)


def put(path: Path, thing: str, meta: bytes) -> None:
    """Something with the name of a bundle."""
    match thing:
        case "bundle":
            made(path, meta)
        case "file":
            path.write_bytes(meta)
        case "link":
            path.symlink_to(path.with_name("stranger"))
        case "pipe":
            path.mkdir()
            os.mkfifo(path / META)
        case "no meta":
            path.mkdir()
        case _:
            (path / META).mkdir(parents=True)


def laid(root: Path, things: list[tuple[str, str, bytes]]) -> Path:
    """A directory with one whole bundle, a stranger's folder, and these things."""
    shutil.rmtree(root, ignore_errors=True)
    directory = root / "evidence"
    directory.mkdir(parents=True)
    made(directory / WELL, json.dumps(META_OF_IT).encode())
    (directory / "stranger").mkdir()
    (directory / "stranger" / "log.txt").write_bytes(b"hello")
    (root / "stranger").write_bytes(b"hello")
    for name, thing, meta in things:
        with contextlib.suppress(FileExistsError, IsADirectoryError, NotADirectoryError):
            put(directory / name, thing, meta)
    return directory


def check(directory: Path, bundles: tuple[Bundle, ...]) -> None:
    """The whole bundle is among them, and what is nobody's of ours is as it was."""
    assert directory / WELL in {one.path for one in bundles}
    assert all(one.path.parent == directory and one.bytes > 0 for one in bundles)
    assert str(directory / WELL) in by_incident(bundles)["inc-000001"]
    assert (directory / "stranger" / "log.txt").read_bytes() == b"hello"
    assert (directory.parent / "stranger").read_bytes() == b"hello"


@times(250)
@given(things=st.lists(st.tuples(NAMES, THINGS, mutated(SEEDS)), max_size=4))
def test_fuzz_bundles(folder: Path, things: list[tuple[str, str, bytes]]) -> None:
    """FACT: what only looks like a bundle hides none, and no stranger's file is removed for it."""
    directory = laid(folder / "x", things)
    strangers = {"notes", "inc-000001-001.copy", "inc-00001-001"}
    before = {one.name for one in directory.iterdir()}
    check(directory, kept(directory))
    tidy(directory)
    check(directory, prune(directory, 1 << 40, 1e9, 2000.0))
    after = {one.name for one in directory.iterdir()}
    assert before & strangers <= after


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


FILES = JSON | st.dictionaries(
    st.sampled_from(("log.txt", "../log.txt", META)), st.integers(4, 6) | JSON, max_size=2
)


@times(150)
@given(
    meta=st.fixed_dictionaries(
        {"taken_at_s": st.floats(0, 1e9) | JSON, "files": FILES}, optional={"x": JSON}
    )
)
def test_fuzz_meta(folder: Path, meta: dict[str, Any]) -> None:
    """FACT: a bundle is whole only with exactly the files and bytes that it tells of."""
    directory = laid(folder / "y", [("inc-000002-001", "bundle", json.dumps(meta).encode())])
    found = kept(directory)
    check(directory, found)
    whole = {one.path.name for one in found} - {WELL}
    if whole:
        assert all(Path(name).name == "log.txt" for name in meta["files"])
        assert all(size == 5 for size in meta["files"].values())
