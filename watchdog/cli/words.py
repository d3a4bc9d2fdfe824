"""Lines that several commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = "?"
_GIB = 1 << 30
_TIME = 19


def shown(line: str) -> str:
    """``line`` with control characters shown, not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def second(stamp: object) -> str:
    """An RFC 3339 time in UTC without its fractions, for people; "" for none."""
    return str(stamp or "")[:_TIME].replace("T", " ")


def gpu_line(card: Mapping[str, Any]) -> str:
    """One line for a GPU; what is not known is a question mark."""
    used, total = _of(card, "memory_used_bytes", _GIB), _of(card, "memory_total_bytes", _GIB)
    parts = (
        f"GPU {card['index']}",
        str(card.get("name", card.get("state", UNKNOWN))),
        str(card["uuid"]) or "no uuid",
        f"{_of(card, 'utilization_percent')} %",
        f"{used}/{total} GiB",
        f"{_of(card, 'temperature_celsius')} °C",
        f"{_of(card, 'power_watts')} W",
    )
    return "  ".join(parts)


def _of(card: Mapping[str, Any], name: str, unit: float = 1.0) -> str:
    value = card.get(name)
    return UNKNOWN if value is None else f"{value / unit:.{0 if unit == 1.0 else 1}f}"
