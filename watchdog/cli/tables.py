"""Columns and paragraphs for people: plain text, no colour, control characters shown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from watchdog.cli.words import shown

WIDTH = 80
NOTHING = "-"


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """One line a row, each column as wide as its widest cell; the last is not padded."""
    cells = [list(head), *([shown(cell) or NOTHING for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()


def fields(pairs: Iterable[tuple[str, str]], width: int = WIDTH) -> Iterator[str]:
    """``name  text``, one below the other; what is too long goes on below its own text."""
    told = [(shown(name), shown(text) or NOTHING) for name, text in pairs]
    indent = max((len(name) for name, _ in told), default=0) + 4
    for name, text in told:
        yield textwrap.fill(
            text,
            width,
            initial_indent=f"  {name}".ljust(indent),
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


def paragraph(text: str, indent: int, width: int = WIDTH) -> str:
    """``text`` in lines of at most ``width``, all of them indented."""
    blank = " " * indent
    return textwrap.fill(shown(text), width, initial_indent=blank, subsequent_indent=blank)
