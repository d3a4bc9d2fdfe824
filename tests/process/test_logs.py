"""The journal on real pipes, files and terminals: a sick one costs lines, never the caller."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.simulated import ROOT, until
from watchdog.core.model import Record
from watchdog.logs import open_journal

SPEAK = (
    "from watchdog.logs import open_journal;"
    "j = open_journal('-'); j.log('info', 'engine.ready', engine={!r}); j.flush(5)"
)


def lines(path: Path) -> list[dict[str, Any]]:
    """Every line, taken apart as strict JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return [json.loads(x, parse_constant=refuse) for x in path.read_text().splitlines()]


@contextlib.contextmanager
def full_fifo(path: Path) -> Iterator[int]:
    """A pipe that a journal can open and that holds not one byte more; yields its reading end."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    filler = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    fcntl.fcntl(filler, fcntl.F_SETPIPE_SZ, 4096)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(filler, b"\n" * 4096)
        yield reader
    finally:
        os.close(filler)
        os.close(reader)


class Rude:
    """A value that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_line_is_one_json_object(tmp_path: Path) -> None:
    """A record becomes timestamp (RFC 3339, UTC, ms), level, event and its keys, in order."""
    journal = open_journal(str(tmp_path / "log"))
    journal.write(Record("engine.exited", "error", (("engine", "main"), ("exit_code", 1))))
    assert journal.flush(5)
    (line,) = lines(tmp_path / "log")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
    expected = {"level": "error", "event": "engine.exited", "engine": "main", "exit_code": 1}
    assert list(line.items()) == list(expected.items())


def test_any_value_stays_one_line_of_strict_json(tmp_path: Path) -> None:
    """Newlines, escapes, lone surrogates, NaN, bytes, sets and deep nests are all made safe."""
    deep: list[object] = []
    for _ in range(3000):
        deep = [deep]
    hostile: dict[str, object] = {
        "text": 'a\nb\x1b[31m"\u2028\ud800',
        "nan": float("nan"),
        "inf": float("-inf"),
        "bytes": b"\xff\n",
        "path": Path("x"),
        "keys": {(1, 2): {None: float("inf")}},
        "tuple": (1, "b", None, True),
    }
    journal = open_journal(str(tmp_path / "log"))
    journal.log("info", "x.y", **hostile)
    journal.log("info", "x.deep", deep=deep)
    journal.log("info", "x.after")
    assert journal.flush(5)
    told = lines(tmp_path / "log")
    assert told[0]["text"] == hostile["text"]
    assert (told[0]["nan"], told[0]["inf"]) == ("nan", "-inf")
    assert told[0]["keys"] == {"(1, 2)": {"None": "inf"}}
    assert told[0]["tuple"] == [1, "b", None, True]
    assert told[-1]["event"] in {"x.after", "log.lost"}


def test_keys_cannot_change_what_a_line_is(tmp_path: Path) -> None:
    """A record whose keys are called as ours are is written, with our values."""
    journal = open_journal(str(tmp_path / "log"))
    journal.write(Record("a.b", "info", (("event", "forged"), ("level", "x"), ("timestamp", 0))))
    assert journal.flush(5)
    (line,) = lines(tmp_path / "log")
    assert (line["event"], line["level"]) == ("a.b", "info")
    assert line["timestamp"] != 0


def test_a_value_that_cannot_be_told_costs_one_line(tmp_path: Path) -> None:
    """The journal outlives a value whose __str__ raises; the loss is counted and told."""
    journal = open_journal(str(tmp_path / "log"))
    journal.log("info", "a.bad", value=Rude())
    journal.log("info", "a.good")
    assert journal.flush(5)
    told = lines(tmp_path / "log")
    assert [line["event"] for line in told] == ["a.good", "log.lost"]
    assert (told[1]["lines"], journal.lost) == (1, 1)


def test_a_full_pipe_never_blocks_and_losses_are_told(tmp_path: Path) -> None:
    """Behind a pipe that nobody reads all lines are taken, and those that did not fit counted.

    Flush gives up in time, and when somebody reads again the count is told.
    """
    with full_fifo(tmp_path / "fifo") as reader:
        journal = open_journal(str(tmp_path / "fifo"))
        for number in range(30_000):
            journal.log("info", "a.line", number=number)
        lost = journal.lost
        assert lost >= 19_000
        assert not journal.flush(0.05)
        data = b""

        def told() -> bool:
            nonlocal data
            with contextlib.suppress(BlockingIOError):
                data += os.read(reader, 65536)
            return b"log.lost" in data and data.endswith(b"\n")

        until(told)
    found = [json.loads(line) for line in data.splitlines() if line.strip()]
    assert found[0] == {**found[0], "event": "a.line", "number": 0}
    (line,) = [one for one in found if one["event"] == "log.lost"]
    assert line["total"] == lost
    assert len(found) - 1 + lost == 30_000


def test_a_full_disk_costs_lines_and_not_the_caller() -> None:
    """On /dev/full every line is lost and counted, and the journal goes on taking them."""
    journal = open_journal("/dev/full")
    for _ in range(100):
        journal.log("info", "a.line")
    assert journal.flush(5)
    assert journal.lost == 100


def test_a_log_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    """The place of the log is checked when the journal is opened, not at the first line."""
    with pytest.raises(OSError, match="No such file"):
        open_journal(str(tmp_path / "missing" / "log"))


def test_stderr_that_is_a_pipe_gets_json() -> None:
    """Without a terminal a line on stderr is JSON."""
    done = subprocess.run(
        [sys.executable, "-c", SPEAK.format("main")],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert json.loads(done.stderr)["engine"] == "main"


@pytest.mark.parametrize("plain", [False, True])
def test_a_terminal_gets_readable_text(plain: bool) -> None:  # noqa: FBT001 - a parameter
    """On a terminal a line is text, coloured unless NO_COLOR is set; hostile escapes are shown."""
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    if plain:
        environment["NO_COLOR"] = "1"
    try:
        subprocess.run(
            [sys.executable, "-c", SPEAK.format("a\x1b]0;owned\x07")],
            cwd=ROOT,
            stderr=theirs,
            env=environment,
            check=True,
            timeout=30,
        )
        text = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "engine.ready" in text
    assert not text.startswith("{")
    assert ("\x1b[" in text) is not plain
    assert "\x1b]" not in text
    assert r"\x1b]0;owned" in text
