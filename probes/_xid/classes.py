"""What each Xid asks for: the table ``classes.toml``, with the operator's changes."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

from probes._xid.line import XidLine


class XidClass(StrEnum):
    """What an Xid asks for; ``classes.toml`` says what each word means."""

    APPLICATION = "application"
    RESET = "reset"
    REBOOT = "reboot"
    HARDWARE = "hardware"
    IGNORED = "ignored"


_UNKNOWN = XidClass.HARDWARE


@dataclass(frozen=True, slots=True)
class Table:
    """The classes by number; ``severities`` those whose text decides; ``actions`` of ``pointer``.

    ``pointer`` is the Xid that announces a recovery action.
    """

    classes: Mapping[int, XidClass]
    severities: frozenset[int]
    fatal: XidClass
    nonfatal: XidClass
    pointer: int
    untold: XidClass
    unknown_action: XidClass
    actions: Mapping[int, XidClass]

    def of(self, line: XidLine) -> XidClass:
        """The class of one Xid, by its number and, where that decides, its text."""
        if line.xid in self.severities and line.fatal is not None:
            return self.fatal if line.fatal else self.nonfatal
        if line.xid == self.pointer:
            if line.action is None:
                return self.untold
            return self.actions.get(line.action, self.unknown_action)
        return self.classes.get(line.xid, _UNKNOWN)


@functools.cache
def table() -> Table:
    """The table as it is shipped, read once."""
    text = resources.files("probes._xid").joinpath("classes.toml").read_text("utf-8")
    return _table(tomllib.loads(text))


def _table(data: Mapping[str, Any]) -> Table:
    severity, recovery = data["severity"], data["recovery"]
    return Table(
        classes={n: XidClass(name) for name, xids in data["classes"].items() for n in xids},
        severities=frozenset(severity["xids"]),
        fatal=XidClass(severity["fatal"]),
        nonfatal=XidClass(severity["nonfatal"]),
        pointer=recovery["xid"],
        untold=XidClass(recovery["untold"]),
        unknown_action=XidClass(recovery["unknown"]),
        actions={int(n): XidClass(name) for n, name in recovery["actions"].items()},
    )


class Classes:
    """The table with changes: a number that was moved is in its new class whatever its text."""

    def __init__(self, changes: Mapping[int, XidClass]) -> None:
        self._changes = changes

    def of(self, line: XidLine) -> XidClass:
        """The class of one Xid."""
        return self._changes.get(line.xid) or table().of(line)


def changes(settings: Mapping[str, str]) -> dict[int, XidClass]:
    """The operator's changes, ``{"43": "ignored"}``. Raises ValueError, one line."""
    found = {}
    for number, name in settings.items():
        if not (number.isascii() and number.isdigit() and len(number) <= len("99999")):
            raise ValueError(f"cannot use {number!r} as an Xid: it is no number")
        if name not in list(XidClass):
            known = ", ".join(XidClass)
            raise ValueError(
                f"cannot use {name!r} as the class of Xid {number}: not one of {known}"
            )
        found[int(number)] = XidClass(name)
    return found
