"""Numbers in words: exact enough to be added up by a reader."""

from __future__ import annotations

_STEP = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size(amount: float) -> str:
    """Bytes: ``15.23 GiB``, ``128 KiB``, ``512 bytes``."""
    if abs(amount) < _STEP:
        return f"{amount:.0f} bytes"
    unit = ""
    for unit in _UNITS:  # noqa: B007 - the last one is used
        amount /= _STEP
        if abs(amount) < _STEP:
            break
    return f"{amount:.2f}".rstrip("0").rstrip(".") + f" {unit}"


def number(amount: float) -> str:
    """``131,072``; what is no whole number with two decimals."""
    return f"{amount:,.0f}" if float(amount).is_integer() else f"{amount:,.2f}"


def plural(amount: int, word: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{amount:,} {word}" if amount == 1 else f"{amount:,} {word}s"
