"""Stops so many random trees of processes that resist: how many outlive that, and how long it took.

``python -m tests.perf.stops [COUNT [SEED]]``; every other tree sits in a cgroup of its own. A tree
is known by a word in its processes' command lines, so the count needs nothing of the code.
"""

from __future__ import annotations

import contextlib
import random
import sys
from dataclasses import dataclass, field

from tests.perf.table import head, line, percentile, row, single, timed
from tests.support.simulated import until
from tests.support.trees import RandomTree, carriers, grown, living, random_tree
from watchdog.contracts import ActionError
from watchdog.core.model import Cause
from watchdog.supervisor.ladder import StopLadder, StopSettings

COUNT = 1000
SETTINGS = StopSettings(drain_timeout=0.0, term_timeout=0.2, kill_timeout=10.0)
"""Short: what resists its TERM costs the whole of it in each of the trees."""
_CAUSES = (Cause.OPERATOR, Cause.STALLED, Cause.CRASH)
_MS = 1000


@dataclass
class Stops:
    """What became of the trees; durations in milliseconds."""

    processes: int = 0
    unkillable: int = 0
    survivors: int = 0
    survived: list[int] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    def stop(self, tree: RandomTree, luck: random.Random, seed: int, *, housed: bool) -> None:
        """Grow one tree, stop it, and count who is left."""
        with grown(tree.text, housed=housed, token=tree.token) as set_:
            wanted = luck.choice((1, tree.nodes))  # a stop may come while it still grows
            until(lambda: len(set_.said("pid")) >= wanted)
            if luck.random() < 1 / 2:
                set_.table.refresh()
            ladder = StopLadder(set_.table, set_.household, SETTINGS)
            cause = luck.choice(_CAUSES)

            def climb() -> None:
                with contextlib.suppress(ActionError):
                    ladder.run(drain=False, cause=cause)
                    return
                self.unkillable += 1

            self.took.append(timed(climb) * _MS)
            left = {*carriers(tree.token), *living(set_.said("pid"))}
            self.survivors += len(left)
            self.survived += [seed] if left else []
            self.processes += len(set_.said("pid"))


def main() -> None:
    """Print the table; fail when anything survived."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    first = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().getrandbits(32)
    print(f"seeds {first} to {first + count - 1}\n", flush=True)
    stops = Stops()
    for seed in range(first, first + count):
        luck = random.Random(seed)  # noqa: S311
        stops.stop(random_tree(luck), luck, seed, housed=bool(seed % 2))
    head("stops of random trees", "n", "median", "least", "most")
    row("stop (ms)", stops.took)
    single("stop, 95th percentile (ms)", count, percentile(stops.took, 0.95))
    line("processes that said their pid", stops.processes, "", "", "")
    line("stops that were given up", stops.unkillable, "", "", "")
    line("processes that outlived the stop", stops.survivors, "", "", "")
    if stops.survived or stops.unkillable:
        sys.exit(f"something survived the trees of the seeds {stops.survived}")


if __name__ == "__main__":
    main()
