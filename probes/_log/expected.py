"""Which of the expressions that a log must match have matched. They are matched in a child."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from watchdog.core.model import Seconds

_MATCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("matcher.py")))
_EACH: Seconds = 0.05
"""For one expression on one line; a sound one takes a thousandth of it."""
_MARGIN: Seconds = 0.25
"""Before the deadline the child is ended; as long before that it is to answer."""
_LEAST: Seconds = 0.6
"""It takes 20 ms to start; with less time than this the lines wait for the next look."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """``found`` and ``slow`` are positions of expressions, ``done`` a number of lines."""

    found: frozenset[int]
    slow: frozenset[int]
    done: int


class Expected:
    """The expressions of one start. For one thread."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._missing = list(patterns)
        self._waiting: list[str] = []
        self._count = len(patterns)
        self.known = not patterns
        """Whether the log has been looked at."""

    @property
    def missing(self) -> str:
        """The first that has not matched yet, "" when all have."""
        return self._missing[0] if self._missing else ""

    @property
    def found(self) -> int:
        """How many have matched."""
        return self._count - len(self._missing)

    @property
    def busy(self) -> bool:
        """Whether lines wait that were not looked at yet: no more should be read."""
        return bool(self._waiting)

    def look(self, lines: Sequence[str], deadline: Seconds) -> str:
        """Match what waits and ``lines`` until ``deadline`` (CLOCK_MONOTONIC); the rest waits.

        Returns what went wrong in one line, or "". An expression that takes too long on a line
        counts as one that does not match it.
        """
        self._waiting.extend(lines)
        if not self._missing or not self._waiting:
            self._waiting.clear()
            self.known = True
            return ""
        if deadline - time.monotonic() < _LEAST:
            return ""
        try:
            answer = _asked(self._missing, self._waiting, deadline)
        except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as error:
            return f"cannot match expect_log: {type(error).__name__} of the child that matches"
        self.known = True
        slow = [p for at, p in enumerate(self._missing) if at in answer.slow]
        del self._waiting[: answer.done]
        self._missing = [p for at, p in enumerate(self._missing) if at not in answer.found]
        if not self._missing:
            self._waiting.clear()
        return f"cannot match expect_log '{slow[0]}': it takes too long on a line" if slow else ""


def _asked(patterns: Sequence[str], lines: Sequence[str], deadline: Seconds) -> _Answer:
    """The child's answer. It stays in our session, and is waited for here alone."""
    end = deadline - 2 * _MARGIN
    asked = {"patterns": patterns, "lines": lines, "end": end, "each": _EACH}
    done = subprocess.run(
        _MATCHER,
        input=json.dumps(asked).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=max(deadline - _MARGIN - time.monotonic(), _MARGIN / 2),
        check=True,
    )
    answer = json.loads(done.stdout)
    return _Answer(frozenset(answer["found"]), frozenset(answer["slow"]), int(answer["done"]))
