"""What a daemon reads beside its loop, before anything needs it."""

from __future__ import annotations

from watchdog.daemon.beginning import read_ahead
from watchdog.supervisor.signatures import SignatureError, signatures


def test_the_first_exit_finds_its_causes_read() -> None:
    """FACT: the table of exit signatures is there before an engine ends, and nothing is said."""
    signatures.cache_clear()
    said: list[str] = []
    read_ahead(said.append).join(30)
    assert signatures.cache_info().currsize == 1
    assert said == []


def test_a_broken_table_is_told_in_one_line() -> None:
    """FACT: it ends no daemon: exits are told without it."""

    def broken() -> None:
        raise SignatureError(("row: no pattern", "row: given twice"))

    said: list[str] = []
    read_ahead(said.append, broken).join(30)
    assert said == ["cannot read the table of exit causes: row: no pattern row: given twice"]
