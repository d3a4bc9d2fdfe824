"""Where a window stands in a condition: only beside a comparison is a bound of it worth something.

``increase(x, "5m") > 3`` is true as soon as the rise so far is above 3, whatever comes. Of a sum, a
list or a call with a window in it no bound is known.
"""

from __future__ import annotations

from watchdog.rules.drafts import MacroName
from watchdog.rules.tokens import Source

_COMPARISONS = ("<", "<=", ">", ">=")
_BEFORE = ("(", "&&", "||", "!", "?", ":", ",")
_BEHIND = (")", "&&", "||", "?", ":", ",")
_MACROS = frozenset(macro.value for macro in MacroName)


def is_compared(source: Source, start: int, end: int) -> bool:
    """Whether the tokens from ``start`` to ``end`` are one whole side of a comparison."""
    before, behind = start - 1, end + 1
    left = source.sign(behind, *_COMPARISONS) and _at_edge(source, before, *_BEFORE)
    right = source.sign(before, *_COMPARISONS) and _at_edge(source, behind, *_BEHIND)
    return (left or right) and all(
        _is_plain(source, opening)
        for opening, closing in source.closing.items()
        if opening < start and end < closing
    )


def _at_edge(source: Source, index: int, *signs: str) -> bool:
    return not 0 <= index < len(source.tokens) or source.sign(index, *signs)


def _is_plain(source: Source, opening: int) -> bool:
    """Brackets that only group, and those of macros: each argument is an expression of its own."""
    if not source.sign(opening, "("):
        return False
    called = source.name(opening - 1)
    macro = called and source.tokens[opening - 1].text in _MACROS
    return not called or (macro and not source.sign(opening - 2, "."))
