"""The table of signatures is checked when it is read: what is wrong is named with its row."""

from __future__ import annotations

import pytest

from watchdog.core.model import Cause
from watchdog.supervisor.exits import ExitStatus
from watchdog.supervisor.signatures import Retry, SignatureError, parse

GOOD = {
    "name": '"disk"',
    "patterns": "['No space left on (?P<what>[a-z]{1,9})']",
    "cause": '"disk_full"',
    "retry": '"budget"',
    "explanation": '"the {what} is full"',
    "advice": '"make room"',
}


def table(**changes: str) -> str:
    """A table of one row, with ``changes``; an empty one leaves the key away."""
    lines = [f"{key} = {value}" for key, value in {**GOOD, **changes}.items() if value]
    return "[[signature]]\n" + "\n".join(lines) + "\n"


def errors(text: str) -> tuple[str, ...]:
    """What is wrong with a table."""
    with pytest.raises(SignatureError) as caught:
        parse(text)
    return caught.value.errors


def test_a_row_is_read_as_it_is_written() -> None:
    """FACT: all that a row says is kept, and its values come from the log."""
    (row,) = parse(table(exit_code="7"))
    assert (row.name, row.cause, row.retry) == ("disk", Cause.DISK_FULL, Retry.BUDGET)
    log = b"No space left on device"
    assert row.explained(7, None, log) == "the device is full"
    assert row.explained(8, None, log) is None
    assert row.explained(7, None, b"No space left") is None


def test_a_row_without_pattern_goes_by_the_status() -> None:
    """FACT: a signal alone is enough for a row that has no pattern."""
    (row,) = parse(table(patterns="", signal="7", explanation='"a bus error"'))
    assert row.explained(None, 7, b"") == "a bus error"
    assert row.explained(None, 6, b"") is None
    assert str(ExitStatus(signal=7)) == "was ended by SIGBUS"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": '"Disk full"'}, "lower case"),
        ({"patterns": ""}, "needs a pattern, an exit_code or a signal"),
        ({"patterns": "['No space [']"}, "is no pattern"),
        ({"patterns": "['(?P<what>No) space']"}, "five literal characters"),
        ({"patterns": "['[Nn]o space (?P<what>a)']"}, "five literal characters"),
        ({"patterns": "['No s?pace (?P<what>a)']"}, "five literal characters"),
        ({"patterns": "['No space (?P<what>.*)']"}, "repeats without bound"),
        ({"patterns": "['No space (?P<what>[a-z]+)']"}, "repeats without bound"),
        ({"patterns": "['No space (?P<what>[^]]{1,})']"}, "repeats without bound"),
        ({"explanation": '"the {disk} is full"'}, "has no group 'disk'"),
        ({"explanation": '"it is full."'}, "explanation must be one line"),
        ({"advice": '""'}, "advice must be one line"),
        ({"advice": '"""a\nb"""'}, "advice must be one line"),
        ({"retry": '"once"'}, "retry is once, but the policy for disk_full is budget"),
        (
            {"cause": '"bad_arguments"'},
            "retry is budget, but the policy for bad_arguments is never",
        ),
    ],
)
def test_a_broken_row_is_named(changes: dict[str, str], words: str) -> None:
    """FACT: each fault is one line with the row's name and what is wrong."""
    (error,) = errors(table(**changes))
    assert words in error
    assert error.startswith("Disk full" if "name" in changes else "disk")
    assert "\n" not in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[signature", "signatures.toml: "),
        ("", "missing required field `signature`"),
        (table(cause='"bad_luck"'), "Invalid enum value 'bad_luck'"),
        (table(retry='"twice"'), "Invalid enum value 'twice'"),
        (table(advise='"?"'), "unknown field `advise`"),
        (table(advice=""), "missing required field `advice`"),
        (table() + table(), "disk: given twice"),
    ],
)
def test_a_broken_table_is_refused(text: str, words: str) -> None:
    """FACT: no half of a table is used, and the error says why."""
    assert words in " ".join(errors(text))


def test_brackets_and_escapes_are_no_repetition() -> None:
    """FACT: a star in a class or behind a backslash is a character, and may stand there."""
    (row,) = parse(table(patterns=r"['2 \* 3 [*+\]] is (?P<what>\w{1,3})']"))
    assert row.explained(None, None, b"2 * 3 ] is 6") == "the 6 is full"
