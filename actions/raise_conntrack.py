"""Raises the limit of the kernel's table of connections, up to a ceiling, and never lowers it.

Only the initial network namespace may do so: in every other one the files are read-only, and the
limit is the host's.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from watchdog.contracts import ActionError, ActionSpec, BoxControl, Order, SideAction
from watchdog.core.model import SubjectKind

_FILES = "proc/sys/net/netfilter"
_INITIAL = "proc/sys/net/nf_conntrack_max"
"""The old name of the limit: the kernel shows it in the initial network namespace alone."""
_HASH = "sys/module/nf_conntrack/parameters/hashsize"


class RaiseConntrackSettings(Struct, frozen=True, kw_only=True):
    """How far it goes."""

    factor: Annotated[float, Meta(gt=1.0, le=16.0)] = 2.0
    """Twice as many at a time: a table that fills again tells so again."""
    most: Annotated[int, Meta(ge=1, le=1 << 26)] = 1_048_576
    """Entries at most. A million take about 400 MB of memory that the kernel never swaps."""


class RaiseConntrack:
    """Does it with the files below ``root``."""

    def __init__(self, settings: RaiseConntrackSettings, root: str = "/") -> None:
        self._settings = settings
        self._root = Path(root)

    def run(self, order: Order, box: BoxControl) -> str:  # noqa: ARG002 - the contract
        """Raise the limit, and the hash with it where that can be; raises ``ActionError``."""
        path = self._root / _FILES / "nf_conntrack_max"
        before = self._limit(path)
        wanted = min(int(before * self._settings.factor), self._settings.most)
        if before == 0 or wanted <= before:
            is_what = f"{before}, and at most {self._settings.most} is allowed here"
            text = is_what if before else "0, which is no limit"
            raise ActionError(f"cannot raise nf_conntrack_max: it is {text}")
        self._write(path, wanted)
        after = _number(path)
        if after is None or after <= before:
            raise ActionError(f"cannot raise nf_conntrack_max: it is still {before}")
        told = f"raised nf_conntrack_max from {before} to {after}"
        return "; ".join((told, *self._hash(after / before), *self._entries()))

    def _limit(self, path: Path) -> int:
        found = _number(path)
        if found is None:
            raise ActionError("cannot raise nf_conntrack_max: connections are not tracked here")
        if not (self._root / _INITIAL).exists():
            why = "only the host's own network namespace can, and this is another one"
            raise ActionError(f"cannot raise nf_conntrack_max: {why}")
        return found

    def _write(self, path: Path, value: int) -> None:
        try:
            path.write_text(f"{value}\n")
        except OSError as error:
            read_only = error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}
            why = "it is read-only here" if read_only else str(error.strerror).lower()
            raise ActionError(f"cannot raise nf_conntrack_max: {why}") from error

    def _hash(self, factor: float) -> tuple[str, ...]:
        """Grow the hash as the table grew, so that looking up stays as fast."""
        path = self._root / _HASH
        before = _number(path)
        if not before:
            return ()
        with contextlib.suppress(OSError):
            path.write_text(f"{int(before * factor)}\n")
        after = _number(path)
        grown = after is not None and after > before
        return (f"its hash from {before} to {after}" if grown else f"its hash stays at {before}",)

    def _entries(self) -> tuple[str, ...]:
        count = _number(self._root / _FILES / "nf_conntrack_count")
        return () if count is None else (f"{count} entries",)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _build(settings: RaiseConntrackSettings) -> SideAction:
    return RaiseConntrack(settings)


ACTION = ActionSpec(
    "raise_conntrack",
    "raise the limit of the table of connections (no rule does unless you say so)",
    _build,
    subjects=frozenset({SubjectKind.HOST}),
    timeout=30.0,
    settings=RaiseConntrackSettings,
)
