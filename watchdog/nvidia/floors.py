"""Whether a driver runs a CUDA. The rule is here, the figures and their sources in floors.toml.

Within a family (a major version) every toolkit runs on a driver from the family's floor on, and
without limits from the toolkit's own driver on. A newer driver runs every older toolkit.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_DATA = Path(__file__).with_name("floors.toml")
_NONE: Mapping[str, str] = MappingProxyType({})
_NUMBER = re.compile(r"[0-9]{1,9}")
"""A longer one is no version, and more digits than Python turns into a number."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A judgement. ``fits`` None: not known, because the family or the driver is not.

    ``words`` is one sentence: why it does not fit, or what is limited; "" when all is well.
    """

    fits: bool | None
    words: str = ""


def numbers(version: str) -> tuple[int, ...]:
    """A version to compare by: ``580.9`` is below ``580.82``. Empty when it is none."""
    parts = version.strip().split(".")
    if not all(_NUMBER.fullmatch(part) for part in parts):
        return ()
    return tuple(int(part) for part in parts)


def judge(driver: str, wanted: str, floors: Mapping[str, str] = _NONE) -> Fit:
    """Whether ``driver`` (580.65.06) runs the CUDA ``wanted`` (13.0).

    ``floors`` adds to the table or replaces what it says: "13.5" for a toolkit, "14" for a family.
    """
    families, toolkits = _table()
    toolkits = toolkits | {key: value for key, value in floors.items() if "." in key}
    families = families | {key: value for key, value in floors.items() if "." not in key}
    family = wanted.partition(".")[0]
    floor, own = _floor(family, families, toolkits), toolkits.get(wanted, "")
    if not numbers(driver) or not numbers(wanted) or not floor:
        return Fit(fits=None)
    if numbers(driver) < numbers(floor):
        return Fit(fits=False, words=f"{_has(driver, toolkits)}; {_needs(wanted, floor)}")
    if numbers(driver) < numbers(own):
        return Fit(fits=True, words=f"{_has(driver, toolkits)}; {_limited(wanted, own)}")
    return Fit(fits=True)


def _floor(family: str, families: Mapping[str, str], toolkits: Mapping[str, str]) -> str:
    """The family's, or for an unknown one the least of what the settings say of its toolkits."""
    given = [own for toolkit, own in toolkits.items() if toolkit.partition(".")[0] == family]
    return families.get(family) or min(given, key=numbers, default="")


def _has(driver: str, toolkits: Mapping[str, str]) -> str:
    supported = [key for key, own in toolkits.items() if numbers(own) <= numbers(driver)]
    if not supported:
        return f"driver {driver} supports no CUDA from {min(toolkits, key=numbers)} on"
    return f"driver {driver} supports CUDA {max(supported, key=numbers)}"


def _needs(wanted: str, floor: str) -> str:
    return f"the engine's torch wants CUDA {wanted}, which needs driver {floor} or newer"


def _limited(wanted: str, own: str) -> str:
    return (
        f"the engine's torch wants CUDA {wanted}, which runs on it with limited features "
        f"and in full from driver {own} on"
    )


@functools.cache
def _table() -> tuple[dict[str, str], dict[str, str]]:
    table = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    return table["families"], table["toolkits"]
