"""The table of log signatures: ``signatures.toml``, read once, when an engine first ends.

Root causes stand before their consequences: the first row that matches wins. Every pattern begins
with literal text and repeats nothing without bound, so that a search runs at the speed of memory
whatever the log holds. ``python -m watchdog.supervisor.signatures`` prints docs/exit-causes.md.
"""

from __future__ import annotations

import re
import string
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec

from watchdog.core.model import Cause
from watchdog.core.state import RETRIES

FILE = "signatures.toml"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_LITERAL = re.compile(r"(?:\\n|\\[^\w]|[\w ,;:'`_/=<>!@#%&~\"-](?![?{*+])){5}")
_ESCAPED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]")
_UNBOUNDED = re.compile(r"[*+]|\{\d*,\}")


class Retry(StrEnum):
    """How often a start is tried again: not at all, once in a row, or as the budgets allow."""

    NEVER = "never"
    ONCE = "once"
    BUDGET = "budget"

    @property
    def restarts(self) -> int | None:
        """As ``RETRIES`` has it."""
        return {Retry.NEVER: 0, Retry.ONCE: 1, Retry.BUDGET: None}[self]


class SignatureError(Exception):
    """The table is broken; ``errors`` has a line for each fault, with the name of its row."""

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row as it is written."""

    name: str
    cause: Cause
    retry: Retry
    explanation: str
    advice: str
    patterns: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    quiet: bool = False


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signature: tuple[_Row, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """What betrays a cause. All that is given must hold: one of ``patterns``, the exit, the signal.

    ``quiet`` patterns are also looked for in lines below the level of an error. ``explanation`` may
    name groups of the patterns in braces.
    """

    name: str
    cause: Cause
    retry: Retry
    explanation: str
    advice: str
    patterns: tuple[re.Pattern[bytes], ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    quiet: bool = False

    def explained(self, exit_code: int | None, number: int | None, text: bytes) -> str | None:
        """The explanation with its values from ``text``; None when this is not what happened."""
        if self.exit_code is not None and self.exit_code != exit_code:
            return None
        if self.signal is not None and self.signal != number:
            return None
        if not self.patterns:
            return self.explanation
        for pattern in self.patterns:
            if found := pattern.search(text):
                values = {name: _legible(value) for name, value in found.groupdict(b"?").items()}
                return self.explanation.format_map(values)
        return None


def _legible(value: bytes) -> str:
    text = value.decode(errors="replace").strip()
    return "".join(one for one in text if one.isprintable())


@cache
def signatures() -> tuple[Signature, ...]:
    """The table, checked. Raises SignatureError when our own file is broken."""
    return parse(resources.files(__package__ or "").joinpath(FILE).read_text("utf-8"))


def parse(text: str) -> tuple[Signature, ...]:
    """The rows of a table. Raises SignatureError with all that is wrong with it."""
    try:
        rows = msgspec.convert(tomllib.loads(text), _Table).signature
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SignatureError((f"{FILE}: {error}",)) from None
    names = [row.name for row in rows]
    errors = [f"{row.name}: {fault}" for row in rows for fault in _faults(row)]
    errors += [f"{name}: given twice" for name in sorted(set(names)) if names.count(name) > 1]
    if errors:
        raise SignatureError(tuple(errors))
    return tuple(_signature(row) for row in rows)


def _signature(row: _Row) -> Signature:
    patterns = tuple(re.compile(pattern.encode()) for pattern in row.patterns)
    given = {name: getattr(row, name) for name in row.__struct_fields__}
    return Signature(**{**given, "patterns": patterns})


def _faults(row: _Row) -> Iterator[str]:
    if not _NAME.fullmatch(row.name):
        yield "the name must be lower case letters, digits and underscores"
    if not row.patterns and row.exit_code is None and row.signal is None:
        yield "needs a pattern, an exit_code or a signal"
    wanted = RETRIES.get(row.cause)
    if row.retry.restarts != wanted:
        given = next(one for one in Retry if one.restarts == wanted)
        yield f"retry is {row.retry}, but the policy for {row.cause} is {given}"
    for key, text in (("explanation", row.explanation), ("advice", row.advice)):
        if not text or text != text.strip(" .\n") or "\n" in text:
            yield f"{key} must be one line, and not end in a full stop"
    for pattern in row.patterns:
        yield from _faults_of_pattern(pattern, row.explanation)


def _faults_of_pattern(pattern: str, explanation: str) -> Iterator[str]:
    try:
        groups = re.compile(pattern.encode()).groupindex
    except re.error as error:
        yield f"{pattern!r} is no pattern: {error}"
        return
    if not _LITERAL.match(pattern):
        yield f"{pattern!r} must begin with five literal characters"
    if _UNBOUNDED.search(_ESCAPED.sub("", pattern)):
        yield f"{pattern!r} repeats without bound"
    for _, name, _, _ in string.Formatter().parse(explanation):
        if name is not None and name not in groups:
            yield f"{pattern!r} has no group {name!r}, which the explanation names"


# --- the page -------------------------------------------------------------------------------------

_HEAD = """\
# Why an engine ended

Written by `python -m watchdog.supervisor.signatures` from `watchdog/supervisor/signatures.toml`.

When an engine ends although nobody asked for it, the last 64 KiB of what this generation logged are
searched for these signatures, from the top: the first that matches names the cause. Lines of the
levels INFO, WARNING and DEBUG do not count (a prompt that is logged is no evidence), but for those
rows that say so. `engine.exited` in the journal has `cause`, `explanation` and `advice`.

`never`: nothing is tried again before a person says `vllm-watchdog start`. `once`: one more start;
the same again and it is given up. `budget`: as often as the backoff and the budgets allow. An
engine that has served with the same command is worth one restart at least.

Before the table: what the kernel's or the cgroup's record of an OOM kill explains is `oom_killed`,
and a SIGKILL, SIGTERM, SIGINT, SIGHUP or SIGQUIT is `signal`. After it: `engine_core_died` or
`worker_died` when such a process went first, else `crash`.

"""


def page() -> str:
    """docs/exit-causes.md."""
    lines = [
        "| signature | cause | retry | what happened | what to do |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in signatures():
        quiet = " (any level)" if row.quiet else ""
        happened = re.sub(r"\{(\w+)\}", r"*\1*", row.explanation)
        cells = (f"`{row.name}`{quiet}", f"`{row.cause}`", row.retry, happened, row.advice)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
