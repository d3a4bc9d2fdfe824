"""Whatever a random tree forks, detaches, ignores, orphans or stops: nobody outlives its stop."""

import os
import random
import signal
import sys

import pytest

from tests.support.simulated import until
from tests.support.trees import QUICK, carriers, grown, living, random_tree
from watchdog import procfs
from watchdog.contracts import ProcessInfo
from watchdog.core.model import Cause
from watchdog.supervisor.cgroup import made
from watchdog.supervisor.household import Household
from watchdog.supervisor.ladder import StopLadder
from watchdog.supervisor.members import MemberTable

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


class Late(Household):
    """Reads what its list has shown when the runner has just gone on, for the next ``steps`` times.

    A busy box makes every look late now and then.
    """

    steps = 4

    def orphans(self) -> list[ProcessInfo]:
        """As the real one, had it been preempted between the list and the reading."""
        listed = super().orphans()
        for info in listed:
            if procfs.lives(info) and self.steps:
                self.steps -= 1
                os.kill(info.pid, signal.SIGUSR1)
                until(lambda pid=info.pid: not living([pid]))  # type: ignore[misc]
        return [now for info in listed if (now := procfs.stat(info.pid)) is not None]


def test_a_runner_that_slips_through_a_look_is_not_taken_for_nobody() -> None:
    """FACT: who forks and exits just before it is read leaves a corpse: the stop looks again."""
    runner = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
        "def step():\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid(); os.write(1, f'pid={os.getpid()} '.encode())\n"
        "while True: step(); signal.sigwait({signal.SIGUSR1})\n"
    )
    leader = (
        "if os.fork() == 0:\n"
        f"    os.execve(sys.executable, ['x', '-ISc', {runner!r}], {{}})\n"
        "os._exit(0)\n"
    )
    with grown(leader, housed=False) as set_:
        until(lambda: set_.said("pid"))
        until(lambda: not living([set_.process.pid]))
        late = Late()
        late.register(set_.process.pid)
        late.generation_began(set_.table.generation)
        table = MemberTable(set_.table.generation, set_.table.leader, late)

        StopLadder(table, late, QUICK).run(drain=False, cause=Cause.CRASH)

        assert late.steps == 0  # it did slip away
        assert living(set_.said("pid")) == []
