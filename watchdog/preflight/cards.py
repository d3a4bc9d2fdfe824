"""The cards that an engine would use, as the driver or ``--memory`` tells them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIZE = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)\s*([kmgt])(i?b?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Card:
    """``total`` as CUDA sees it and ``used`` of it, in bytes, None when unknown.

    ``name`` is how people call it, ``model`` the product, ``words`` where the total comes from.
    ``holders`` are who holds memory. "" for what is not known.
    """

    name: str
    total: int | None
    used: int | None = None
    words: str = ""
    holders: str = ""
    model: str = ""


def memory_of(text: str) -> int:
    """The bytes of ``80GiB``, ``80G`` (the same), ``80GB`` or ``81920MiB``. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    step = 1000 if match is not None and match[3].lower() == "b" else 1024
    amount = 0
    if match is not None:
        amount = int(float(match[1]) * step ** " kmgt".index(match[2].lower()))
    if amount <= 0:
        raise ValueError(f"expected a size as 80GiB, got {text[:40]!r}")
    return amount
