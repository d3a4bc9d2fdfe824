"""`python -m tests.perf.kills COUNT SEED`: W1, random SIGKILLs of the watchdog. Prints a table.

The moments are spread over every state of the life cycle; each kill has a successor that must put
everything right. It ends with exit code 1 when an engine was lost or doubled, or a restart was
made that is on no account.
"""

from __future__ import annotations

import collections
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.perf.table import head, line
from tests.support.killing import Ward, ward
from tests.support.killing_moments import MOMENTS, Round, kill_at

A_WARD = 26
"""Kills in front of one engine with one state directory; then another one begins."""


def main(count: int, seed: int) -> int:
    """Kill so often, and print what came of it; the exit code."""
    chance = Random(seed)  # noqa: S311 - to be repeated, not to be secret
    rounds: list[Round] = []
    wrong: list[str] = []
    began = time.monotonic()
    while len(rounds) < count and len(wrong) < 3:
        with tempfile.TemporaryDirectory(prefix="kills") as folder, ward(Path(folder)) as one:
            _kills(one, chance, rounds, wrong, count)
    _report(rounds, wrong, time.monotonic() - began)
    return 1 if wrong else 0


def _kills(one: Ward, chance: Random, rounds: list[Round], wrong: list[str], count: int) -> None:
    order = [name for name in MOMENTS for _ in range(A_WARD // len(MOMENTS))]
    chance.shuffle(order)
    made: collections.Counter[str] = collections.Counter()
    asked: collections.Counter[str] = collections.Counter()
    for name in order[: count - len(rounds)]:
        try:
            rounds.append(kill_at(one, name, chance))
        except AssertionError as error:
            wrong.append(f"{name}: {error}: {one.daemon.engine()}")
            sys.stderr.write(f"{wrong[-1]}\n{one.daemon.log_path.read_text()}\n")
            return
        engine, starts, charged = one.account()
        asked[engine] += max(MOMENTS[name].asked, int(not made[engine]))
        made[engine] = starts
        if starts > asked[engine] + charged + 1:
            wrong.append(f"{name}: {starts} starts, {asked[engine]} asked, {charged} charged")
        sys.stderr.write(f"{len(rounds)} {name} {rounds[-1].took} {engine} {starts} {charged}\n")
    wrong.extend(one.auditor.double)


def _report(rounds: list[Round], wrong: list[str], seconds: float) -> None:
    head(
        "moment",
        "kills",
        "leader lived",
        "the same engine after",
        "adopted after, s: median",
        "max",
    )
    for name in MOMENTS:
        _row(name, [one for one in rounds if one.moment == name])
    _row("all", rounds)
    print(f"\n{seconds:.0f} s; double starts, lost engines, starts on no account: {len(wrong)}")
    print(*wrong, sep="\n")


def _row(name: str, found: list[Round]) -> None:
    times = [one.took for one in found if one.took is not None]
    figures = (f"{statistics.median(times):.2f}", f"{max(times):.2f}") if times else ("", "")
    had = sum(one.had_leader for one in found)
    line(name, len(found), had, sum(one.same for one in found), *figures)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
