"""The limit of the table of connections is raised, never lowered, and only where that is possible.

Where something is written it is files below a folder of the test's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actions.raise_conntrack import RaiseConntrack, RaiseConntrackSettings
from tests.support.acting import Box
from tests.support.netns import LIMIT, Namespace
from watchdog.contracts import ActionError, Order
from watchdog.core.model import HOST, Cause

ORDER = Order("raise_conntrack", HOST, Cause.RULE)


class Machine:
    """The files of a kernel, below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        folder = root / "proc/sys/net/netfilter"
        folder.mkdir(parents=True)
        self.limit = folder / "nf_conntrack_max"
        self.count = folder / "nf_conntrack_count"
        self.initial = root / "proc/sys/net/nf_conntrack_max"
        self.hash = root / "sys/module/nf_conntrack/parameters/hashsize"
        self.hash.parent.mkdir(parents=True)
        for file, value in (
            (self.limit, 65536),
            (self.initial, 65536),
            (self.count, 61000),
            (self.hash, 16384),
        ):
            file.write_text(f"{value}\n")

    def raised(self, **settings: float) -> str:
        """What the action says."""
        said = RaiseConntrackSettings(**settings)  # type: ignore[arg-type]
        return RaiseConntrack(said, str(self.root)).run(ORDER, Box())

    def refused(self, **settings: float) -> str:
        """Why it did nothing: not one file differs afterwards."""
        files = [file for file in (self.limit, self.hash) if file.exists()]
        before = [file.read_text() for file in files]
        with pytest.raises(ActionError) as caught:
            self.raised(**settings)
        assert [file.read_text() for file in files] == before
        text = str(caught.value)
        assert "\n" not in text
        return text


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One with 61,000 of 65,536 entries."""
    return Machine(tmp_path)


def test_it_is_doubled_and_its_hash_with_it(machine: Machine) -> None:
    """FACT: twice as many entries and buckets, both told, with how many are in use."""
    assert machine.raised() == (
        "raised nf_conntrack_max from 65536 to 131072; its hash from 16384 to 32768; 61000 entries"
    )
    assert machine.limit.read_text() == "131072\n"
    assert machine.hash.read_text() == "32768\n"


def test_it_stops_at_the_ceiling(machine: Machine) -> None:
    """FACT: never above ``most``, and never lowered when it is above already."""
    assert machine.raised(most=100_000).startswith("raised nf_conntrack_max from 65536 to 100000;")
    for most in (100_000, 50_000):
        text = f"cannot raise nf_conntrack_max: it is 100000, and at most {most} is allowed here"
        assert machine.refused(most=most) == text
    assert machine.hash.read_text() == "25000\n"


def test_where_nothing_is_tracked_it_says_so(machine: Machine) -> None:
    """FACT: without the module there is no limit that could be raised; nor when it is 0: none."""
    machine.limit.write_text("0\n")
    assert machine.refused() == "cannot raise nf_conntrack_max: it is 0, which is no limit"
    machine.limit.unlink()
    assert machine.refused().endswith("connections are not tracked here")


def test_a_hash_that_cannot_be_written_is_no_failure(machine: Machine) -> None:
    """FACT: the limit is what matters; that the hash stays is told, and so is none at all."""
    machine.hash.unlink()
    machine.hash.symlink_to("/proc/version")  # read, and written by nobody
    assert machine.raised() == "raised nf_conntrack_max from 65536 to 131072; 61000 entries"
    machine.hash.unlink()
    machine.hash.symlink_to("/proc/sys/kernel/ngroups_max")  # 65536, read-only for everybody
    assert "; its hash stays at 65536; " in machine.raised()


def test_a_read_only_limit_is_named(machine: Machine) -> None:
    """FACT: a real file that the kernel lets nobody write is refused in words."""
    machine.limit.unlink()
    machine.limit.symlink_to("/proc/sys/kernel/ngroups_max")
    assert machine.refused() == "cannot raise nf_conntrack_max: it is read-only here"


@pytest.fixture
def space() -> Iterator[Namespace]:
    """A network namespace that tracks connections."""
    space = Namespace()
    yield space
    space.close()


@pytest.mark.root
def test_another_network_namespace_cannot(space: Namespace) -> None:
    """FACT (S2): in a real one the limit is the host's and read-only: why is told, nothing done."""
    before = LIMIT.read_text()
    action = RaiseConntrack(RaiseConntrackSettings())

    def run() -> None:
        assert LIMIT.read_text() == before
        assert not Path("/proc/sys/net/nf_conntrack_max").exists()
        action.run(Order("raise_conntrack", HOST, Cause.RULE, deadline=time.monotonic() + 9), Box())

    with pytest.raises(ActionError) as caught:
        space.run(run)
    assert str(caught.value) == (
        "cannot raise nf_conntrack_max: only the host's own network namespace can, and this is"
        " another one"
    )
    assert LIMIT.read_text() == before
