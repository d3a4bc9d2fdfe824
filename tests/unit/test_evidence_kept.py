"""Bundles on the disk: what is believed, what is removed, and what is never touched."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from watchdog.evidence import bundles
from watchdog.evidence.blots import Blots
from watchdog.evidence.bundles import META

DAY = 86400.0
NOTHING = Blots(())


def made(folder: Path, incident: str, at: float, size: int = 100) -> Path:
    """A whole bundle of that time and about that size."""
    folder.mkdir(exist_ok=True)
    path = folder / incident
    path.mkdir()
    (path / "engine.log").write_bytes(b"x" * size)
    (path / META).write_text(json.dumps({"taken_at_s": at, "files": {"engine.log": size}}))
    return path


def test_a_bundle_is_seen_by_nobody_before_it_is_done(tmp_path: Path) -> None:
    """FACT: until the rename it has another name, and undone nothing is left; numbers go on."""
    making = bundles.begin(tmp_path, "inc-000001")
    making.add("engine.log", NOTHING.text("a\n", 100))
    assert [path.name for path in tmp_path.iterdir()] == ["inc-000001-001.part"]
    assert bundles.kept(tmp_path) == ()
    making.add(META, NOTHING.json({"taken_at_s": 5.0, "files": dict(making.files)}))
    making.done()
    (one,) = bundles.kept(tmp_path)
    assert (one.path.name, one.incident, one.at) == ("inc-000001-001", "inc-000001", 5.0)
    assert one.bytes == making.bytes
    other = bundles.begin(tmp_path, "inc-000001")
    assert other.path.name == "inc-000001-002"
    other.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["inc-000001-001"]


def test_who_may_read_it_is_its_owner_alone(tmp_path: Path) -> None:
    """FACT: directories are 0700 and files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        making = bundles.begin(tmp_path / "evidence", "inc-000001")
        making.add("engine.log", NOTHING.text("a", 100))
        making.done()
    finally:
        os.umask(before)
    assert (tmp_path / "evidence").stat().st_mode & 0o777 == 0o700
    assert making.path.stat().st_mode & 0o777 == 0o700
    assert (making.path / "engine.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("incident", ["", "../../etc", "Inc/1", "a" * 100, "inc 1", "inc-1.part"])
def test_what_is_no_incident_names_no_directory(tmp_path: Path, incident: str) -> None:
    """FACT: a bundle lies in its directory whatever the incident is called."""
    assert bundles.begin(tmp_path, incident).path == tmp_path / "no-incident-001"


def test_a_name_that_is_taken_meanwhile_is_not_used_again(tmp_path: Path) -> None:
    """FACT: whatever has the next name by then, a bundle done later replaces and loses nothing."""
    (tmp_path / "inc-000001-001").write_text("mine")
    (tmp_path / "inc-000001-002").symlink_to("/etc")
    making = bundles.begin(tmp_path, "inc-000001")
    assert making.path.name == "inc-000001-003"
    making.done()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"inc-000001-001", "inc-000001-002", "inc-000001-003"}


def test_a_bundle_that_is_done_while_others_are_removed_stays(tmp_path: Path) -> None:
    """FACT: two engines at once: what one has just taken is no ruin to the other."""
    for number in range(40):
        made(tmp_path, f"inc-{number:06}-001", float(number))
    over = threading.Event()

    def prunes() -> None:
        while not over.is_set():
            bundles.prune(tmp_path, 1 << 20, DAY, 60.0)

    pruning = threading.Thread(target=prunes)
    pruning.start()
    try:
        for number in range(100, 150):
            making = bundles.begin(tmp_path, f"inc-{number:06}")
            making.add("engine.log", NOTHING.text("a", 9))
            making.add(META, NOTHING.json({"taken_at_s": 50.0, "files": dict(making.files)}))
            making.done()
    finally:
        over.set()
        pruning.join()
    names = {one.path.name for one in bundles.kept(tmp_path)}
    assert {f"inc-{number:06}-001" for number in range(101, 150)} <= names


@pytest.mark.parametrize("name", ["copy-2024", "inc-000001-001-copy", "inc-1-001", "keep-001"])
def test_what_somebody_else_put_there_is_not_ours(tmp_path: Path, name: str) -> None:
    """FACT: a directory is removed only when its name is one that we give."""
    (tmp_path / name).mkdir()
    (tmp_path / f"{name}.part").mkdir()
    bundles.prune(tmp_path, 1, 1.0, 1e9)
    bundles.tidy(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}.part"}


@pytest.mark.parametrize("kind", ["pipe", "link", "device"])
def test_a_meta_that_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    """FACT: nobody waits for a pipe, and what a link leads to is not believed."""
    path = made(tmp_path, "inc-000001-001", 5.0)
    (path / META).rename(path / "other.json")
    match kind:
        case "pipe":
            os.mkfifo(path / META)
        case "link":
            (path / META).symlink_to("other.json")
        case _:
            (path / META).symlink_to("/dev/zero")
    assert bundles.kept(tmp_path) == ()


@pytest.mark.parametrize("harm", ["cut", "gone", "no meta", "half meta", "outside"])
def test_half_a_bundle_is_not_believed(tmp_path: Path, harm: str) -> None:
    """FACT: a file that is shorter than told or missing, and a meta.json that is none."""
    path = made(tmp_path, "inc-000001-001", 5.0)
    match harm:
        case "cut":
            os.truncate(path / "engine.log", 99)
        case "gone":
            (path / "engine.log").unlink()
        case "no meta":
            (path / META).unlink()
        case "half meta":
            os.truncate(path / META, 10)
        case _:
            files = {"../inc-000001-001/none": 1}
            (path / META).write_text(json.dumps({"taken_at_s": 5.0, "files": files}))
    assert bundles.kept(tmp_path) == ()
    bundles.prune(tmp_path, 1 << 20, DAY, 6.0)
    assert not path.exists()


def test_the_oldest_go_by_size_and_by_age_and_by_number(tmp_path: Path) -> None:
    """FACT: the bounds hold, the newest stays whatever they are, and strangers are let be."""
    for number in range(60):
        made(tmp_path, f"inc-{number:06}-001", float(number))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "inc-000000-999").symlink_to("/etc")
    left = bundles.prune(tmp_path, 1 << 20, DAY, 60.0)
    assert [one.at for one in left] == [float(number) for number in range(10, 60)]
    assert left == bundles.kept(tmp_path)
    assert len(bundles.prune(tmp_path, 3 * left[0].bytes, DAY, 60.0)) == 3
    assert [one.at for one in bundles.prune(tmp_path, 1 << 20, 1.5, 60.0)] == [59.0]
    assert [one.at for one in bundles.prune(tmp_path, 1, 1.0, 1e9)] == [59.0]
    assert {path.name for path in tmp_path.iterdir()} == {
        "notes.txt",
        "inc-000000-999",
        "inc-000059-001",
    }


def test_what_a_dead_watchdog_was_making_is_removed(tmp_path: Path) -> None:
    """FACT: only that, and only what has such a name."""
    bundles.begin(tmp_path, "inc-000001").add("engine.log", NOTHING.text("a", 9))
    whole = made(tmp_path, "inc-000002-001", 5.0)
    (tmp_path / "mine.part").mkdir()
    bundles.tidy(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {whole.name, "mine.part"}
    bundles.tidy(tmp_path / "nowhere")


def test_bundles_are_known_by_their_incident(tmp_path: Path) -> None:
    """FACT: several restarts of one incident leave several, oldest first."""
    paths = [made(tmp_path, f"inc-000001-{number:03}", float(number)) for number in (2, 1)]
    found = bundles.by_incident(bundles.kept(tmp_path))
    assert found == {"inc-000001": (str(paths[1]), str(paths[0]))}
