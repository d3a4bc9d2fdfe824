"""What names tell: a distribution in our way, and a value that nobody may be shown.

We refuse to run beside a distribution that installs one of our three top-level names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

_RIVALS = ("watchdog", "probes", "actions")
"""Distributions on PyPI that are named as our packages are; the first is popular."""
_SECRET = re.compile(r"key(?!file|ed)|token(?!i[sz])|secret|passw|passphrase|credential")
_COUNTED = re.compile(r"(?:max|num|batched|min|new)[\w-]*tokens?")
"""``--max-num-batched-tokens`` and the like are numbers of the other sort of token."""
_ACCOUNT = re.compile(r"(?<=://)[^/\s?#]*@")
_QUERY = re.compile(r"([?&;][\w.-]*(?:key|token|secret|passw|sig)[\w.-]*=)[^&\s#]+", re.IGNORECASE)
BLOT = "***"


def is_secret(name: str) -> bool:
    """Whether a setting, variable or flag of that name may hold what nobody may be shown."""
    low = name.lower()
    return bool(_SECRET.search(low)) and not _COUNTED.search(low)


def blotted(text: str) -> str:
    """``text`` with what a URL in it says of users, passwords and keys blotted out."""
    return _QUERY.sub(rf"\1{BLOT}", _ACCOUNT.sub(f"{BLOT}@", text))


def without_secrets(value: Any, name: str = "") -> Any:  # noqa: ANN401 - the same again
    """``value`` (texts, numbers, lists and tables) of a setting called ``name``, to be shown."""
    if isinstance(value, Mapping):
        return {key: without_secrets(one, str(key)) for key, one in value.items()}
    if value and is_secret(name) and not isinstance(value, bool):
        return BLOT
    if isinstance(value, str):
        return blotted(value)
    if isinstance(value, list | tuple):
        return [without_secrets(one) for one in value]
    return value


def conflict() -> str | None:
    """One line about the distribution in the way, or None."""
    for rival in _RIVALS:
        try:
            found = distribution(rival)
        except PackageNotFoundError:
            continue
        place = Path(str(found.locate_file("")))
        return (
            f"cannot run: the distribution {rival!r} in {place} installs the same module name; "
            "install vllm-watchdog into a virtual environment of its own"
        )
    return None
