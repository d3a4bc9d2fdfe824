"""Weeks by the dozen: ``python -m tests.laws.weeks 50 [FIRST]`` prints a line a seed."""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.laws.troubles import trouble
from tests.laws.week import WEEK, Week


def lived(seed: int, seconds: float = WEEK) -> Week:
    """The week of that seed; raises AssertionError with the law that it broke."""
    return Week(seed).live(trouble, seconds)


def line(seed: int, week: Week, took: float) -> str:
    """What came of it."""
    reached = week.auditor.reached
    acts = sum(n for name, n in reached.items() if name.startswith("rung "))
    stories = sum(n for name, n in reached.items() if name.startswith("incident "))
    return (
        f"seed {seed:3}: every law held on {week.steps} steps: {week.starts} starts, {acts} acts "
        f"of our own, {stories} incidents closed, {took:.1f} s"
    )


def main(count: int, first: int = 0) -> None:
    """``count`` seeds from ``first`` on; the sum of all that was reached comes last."""
    reached: Counter[str] = Counter()
    for seed in range(first, first + count):
        began = time.process_time()
        week = lived(seed)
        sys.stdout.write(f"{line(seed, week, time.process_time() - began)}\n")
        sys.stdout.flush()
        reached.update(week.auditor.reached)
    for name, times in sorted(reached.items()):
        sys.stdout.write(f"{name}: {times}\n")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] or ["50"]))
