"""Durations as Go writes them: ``500ms``, ``30s``, ``1h30m``."""

from __future__ import annotations

import re
from typing import Annotated

import durationpy
import msgspec

from watchdog.core.model import Seconds

Duration = Annotated[float, msgspec.Meta(extra={"duration": "any"})]
"""Seconds in memory, Go style in the file; zero is allowed."""

PositiveDuration = Annotated[float, msgspec.Meta(extra={"duration": "positive"})]
"""As ``Duration``, but more than zero."""

LONGEST: Seconds = 8760 * 3600.0
"""A year: everything above is a slip of the pen, and overflows somebody's timer."""

GO_STYLE = r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|μs|ms|s|m|h))+"
"""A duration as a regular expression that Python and JSON Schema read alike."""

_FRACTION = r"(?:\.[0-9]+)?"
_HOURS = "(?:[0-9]{1,3}|[1-7][0-9]{3}|8[0-6][0-9]{2}|87[0-5][0-9]|8760)"
WITHIN_A_YEAR = (
    rf"(?:0*(?:{_HOURS}{_FRACTION}h|"
    + "|".join(
        rf"[0-9]{{1,{digits}}}{_FRACTION}{unit}"
        for unit, digits in (("m", 6), ("s", 8), ("ms", 11), ("(?:us|µs|μs)", 14), ("ns", 17))
    )
    + "))+"
)
"""As ``GO_STYLE``, without most of what is longer than a year: sums are left to the reader."""
ROUNDS_TO_ZERO = (
    "0*[1-4]?[0-9]{1,2}(?:\\.[0-9]+)?ns|0+(?:\\.[0-4][0-9]*)?(?:us|µs|μs)"
    "|0+(?:\\.0{3}[0-4][0-9]*)?ms|0+(?:\\.0{6}[0-4][0-9]*)?s"
)
"""A single one that is no whole microsecond, to which times are read."""

# durationpy also knows days and months ("5mm" is five months), which Go does not.
_GO_STYLE = re.compile(GO_STYLE)
_UNITS = (("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("us", 1))


def parse_duration(text: str) -> Seconds:
    """Seconds; raises ValueError, one line, when ``text`` is no duration from 0 to a year."""
    if not _GO_STYLE.fullmatch(text):
        raise ValueError('expected a duration like "30s"')
    try:
        seconds = float(durationpy.from_str(text).total_seconds())
    except (ValueError, OverflowError):
        seconds = LONGEST + 1
    if seconds > LONGEST:
        raise ValueError('expected a duration of at most "8760h"')
    return seconds


def duration_text(seconds: Seconds) -> str:
    """``seconds`` as the file has them, to the microsecond: ``500ms``, ``1h30m``, ``0s``."""
    rest = round(seconds * 1_000_000)
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"
