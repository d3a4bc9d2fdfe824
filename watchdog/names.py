"""Refuses to run beside a distribution that installs one of our three top-level names."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_RIVALS = ("watchdog", "probes", "actions")
"""Distributions on PyPI that are named as our packages are; the first is popular."""


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
