"""HTML from text. Whatever comes from outside goes through ``text``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TypeVar

from watchdog.web.pasted import COMMAND

_T = TypeVar("_T")

LONGEST = 400
"""Characters of one text from outside; the JSON has it whole."""


def text(value: object, longest: int = LONGEST) -> str:
    """``value`` in one line: escaped, cut, control characters shown and not obeyed."""
    told = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value)[: longest + 1])
    whole = escape(told if len(told) <= longest else f"{told[:longest]}…")
    if len(whole.encode("utf-8", errors="replace")) <= 2 * longest + 3:
        return whole
    return escape(f"{told[: longest // 3]}…")  # quotes alone would be six times as long


def told(value: object, longest: int = LONGEST) -> str:
    """As ``text``, with our commands as what is to be typed."""
    return COMMAND.sub(lambda command: f"<code>{command[0]}</code>", text(value, longest))


def within(things: Sequence[_T], row: Callable[[_T], str], limit: int) -> str:
    """As many rows as ``limit`` bytes hold, and how many there are besides; nothing for nothing."""
    shown: list[str] = []
    left = limit
    for thing in things:
        made = row(thing)
        left -= len(made.encode("utf-8", errors="replace"))
        if left < 0:
            break
        shown.append(made)
    rest = len(things) - len(shown)
    return "".join(shown) + (f"<p>and {rest} more</p>" if rest else "")


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and what they are, which is markup already; without the empty ones."""
    lines = (f"<tr><th>{text(name)}</th><td>{value}</td></tr>" for name, value in rows if value)
    return f"<table>{''.join(lines)}</table>"
