"""The child that matches a user's regular expressions, which may take for ever, against lines.

Python holds its lock while it matches: in the daemon one bad expression would stop everything. One
JSON object comes in on stdin: ``patterns``, ``lines``, ``end`` (CLOCK_MONOTONIC) and ``each``,
seconds for one expression on one line. One goes out: ``found`` and ``slow``, positions of
expressions, and ``done``, how many lines were looked at. The kernel ends a child that takes longer.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import time

_COMPILE = 0.5
_MEMORY = 1 << 29
"""Bytes: an expression may be small and its program huge."""


class _SlowError(Exception):
    """One expression takes too long."""


def _give_up(*_: object) -> None:
    raise _SlowError


def _bounded(seconds: float) -> None:
    """What a signal handler cannot interrupt, the kernel does."""
    limit = int(seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _give_up)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


def _compiled(patterns: list[str], slow: set[int]) -> dict[int, re.Pattern[str]]:
    """Expressions by position, without those that cannot be had: they were checked long before."""
    compiled = {}
    for position, pattern in enumerate(patterns):
        try:
            signal.setitimer(signal.ITIMER_REAL, _COMPILE)
            compiled[position] = re.compile(pattern)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except (_SlowError, MemoryError, RecursionError, OverflowError, re.error):
            slow.add(position)
    return compiled


def _matches(pattern: re.Pattern[str], line: str, seconds: float) -> bool | None:
    """None when it cannot be told in time."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        found = pattern.search(line) is not None
        signal.setitimer(signal.ITIMER_REAL, 0)
    except (_SlowError, MemoryError, RecursionError):
        return None
    return found


def main() -> None:
    """Answer one request."""
    asked = json.load(sys.stdin)
    end = asked["end"]
    _bounded(max(end - time.monotonic(), 0.0))
    slow: set[int] = set()
    found: set[int] = set()
    wanted = _compiled(asked["patterns"], slow)
    done = 0
    for line in asked["lines"]:
        for position in [p for p in wanted if p not in found]:
            told = _matches(wanted[position], line, asked["each"])
            if told:
                found.add(position)
            elif told is None:
                slow.add(position)
        done += 1
        if time.monotonic() > end:
            break
    json.dump({"found": sorted(found), "slow": sorted(slow), "done": done}, sys.stdout)


if __name__ == "__main__":
    main()
