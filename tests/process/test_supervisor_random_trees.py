"""Whatever a random tree forks, detaches, ignores, orphans or stops: nobody outlives its stop."""

import random
import sys

import pytest

from tests.support.simulated import until
from tests.support.trees import QUICK, carriers, grown, living, random_tree
from watchdog.core.model import Cause
from watchdog.supervisor.cgroup import made
from watchdog.supervisor.ladder import StopLadder

TREES = 40
CAUSES = (Cause.OPERATOR, Cause.STALLED, Cause.CRASH)


@pytest.fixture(scope="module")
def can_house() -> bool:
    """Whether a cgroup of one's own can be had here."""
    probe = made(f"probe-{random.SystemRandom().getrandbits(48):x}").cgroup
    return probe is not None and probe.remove()


@pytest.mark.parametrize("number", range(TREES))
def test_no_tree_survives(number: int, *, can_house: bool) -> None:
    """FACT: after the stop not one process of the tree lives, with a cgroup and without.

    A process is known by a word in its command line: the proof needs nothing of the code. Another
    tree every time; the seed is printed, and given again makes the same one.
    """
    seed = random.SystemRandom().getrandbits(32)
    sys.stdout.write(f"seed {seed}\n")
    luck = random.Random(seed)  # noqa: S311
    tree = random_tree(luck)
    with grown(tree.text, housed=can_house and bool(number % 2), token=tree.token) as set_:
        wanted = luck.choice((1, tree.nodes))  # a stop may come while it still grows
        until(lambda: len(set_.said("pid")) >= wanted)
        if luck.random() < 1 / 2:
            set_.table.refresh()

        StopLadder(set_.table, set_.household, QUICK).run(drain=False, cause=luck.choice(CAUSES))

        assert carriers(tree.token) == []
        assert living(set_.said("pid")) == []
        assert set_.cgroup is None or set_.cgroup.is_empty()
