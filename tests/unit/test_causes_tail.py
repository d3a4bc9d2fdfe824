"""The end of an engine's log: only this generation's, whole lines, also when it was rotated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchdog.supervisor.causes import TAIL_BYTES, log_tail
from watchdog.supervisor.rotation import part

LINE = b"x" * 99 + b"\n"
LONG = LINE * (TAIL_BYTES // len(LINE) + 20)


@pytest.fixture(name="log")
def fixture_log(tmp_path: Path) -> Path:
    """Where an engine logs."""
    return tmp_path / "main.log"


def rotated(log: Path, number: int, text: bytes, at: float) -> None:
    """An older part of ``log``, which came to be at ``at``."""
    part(log, number).write_bytes(text)
    os.utime(part(log, number), (at, at))


def test_only_what_stands_behind_the_offset(log: Path) -> None:
    """FACT: the words of an earlier generation do not count."""
    log.write_bytes(b"old\nnew\n")
    assert log_tail(log, 4) == b"new\n"
    assert log_tail(log, 8) == b""


def test_a_log_that_cannot_be_read_is_empty(log: Path) -> None:
    """FACT: no log, no words, no error."""
    assert log_tail(log, 0) == b""
    log.mkdir()
    assert log_tail(log, 0) == b""


def test_a_log_that_was_cut_counts_as_a_whole(log: Path) -> None:
    """FACT: somebody emptied the log: what is there now is of this generation."""
    log.write_bytes(b"new\n")
    assert log_tail(log, 1000) == b"new\n"


def test_a_cut_line_is_left_out(log: Path) -> None:
    """FACT: of a long log there are whole lines only: the beginning of a line says its level."""
    log.write_bytes(LONG)
    tail = log_tail(log, 0)
    assert TAIL_BYTES - len(LINE) <= len(tail) <= TAIL_BYTES
    assert tail == LINE * (len(tail) // len(LINE))


def test_one_endless_line_is_kept(log: Path) -> None:
    """FACT: a line longer than the tail is better than nothing."""
    log.write_bytes(b"x" * (TAIL_BYTES + 9))
    assert log_tail(log, 0) == b"x" * TAIL_BYTES


def test_the_end_is_in_the_rotated_part(log: Path) -> None:
    """FACT: a log shorter than its offset was rotated: the end is in PATH.1, behind the offset."""
    log.write_bytes(b"")
    rotated(log, 1, b"old\nnew\n", 100.0)
    assert log_tail(log, 4) == b"new\n"
    log.write_bytes(b"end")
    assert log_tail(log, 4) == b"new\nend"


def test_a_long_log_is_put_together_from_its_parts(log: Path) -> None:
    """FACT: log and rotated part are one text, of which the last 64 KiB count."""
    log.write_bytes(b"last\n")
    rotated(log, 1, LONG, 100.0)
    tail = log_tail(log, 0, since=50.0)
    assert tail.endswith(LINE + b"last\n")
    assert TAIL_BYTES - len(LINE) <= len(tail) <= TAIL_BYTES


def test_parts_of_an_earlier_generation_do_not_count(log: Path) -> None:
    """FACT: what was rotated before this generation began belongs to another."""
    log.write_bytes(b"new\n")
    rotated(log, 1, b"old\n", 100.0)
    assert log_tail(log, 0, since=100.0) == b"new\n"
    assert log_tail(log, 0) == b"new\n"


def test_a_log_that_was_rotated_twice(log: Path) -> None:
    """FACT: the offset counts from the oldest part that this generation wrote to."""
    log.write_bytes(b"three\n")
    rotated(log, 1, b"two\n", 300.0)
    rotated(log, 2, b"old\none\n", 200.0)
    rotated(log, 3, b"older\n", 100.0)
    assert log_tail(log, 4, since=150.0) == b"one\ntwo\nthree\n"


def test_a_generation_that_began_behind_the_rotated_part(log: Path) -> None:
    """FACT: what stayed in the log at the rotation is counted on: nothing old comes along."""
    log.write_bytes(b"old\nnew\n")
    rotated(log, 1, b"older\n", 200.0)
    assert log_tail(log, len(b"older\nold\n"), since=100.0) == b"new\n"
