"""The probe ``conntrack``: on real tables of namespaces of their own, and on wrong files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from probes.conntrack import PROBE, Conntrack, Settings, counters
from tests.support import netns
from tests.support.core import Story, serving
from tests.support.engines import Engines, Target
from tests.support.netns import Namespace, namespace
from tests.support.rule_stories import fires, times
from tests.support.simulated import stat_fields, until
from watchdog.contracts import Endpoint, ProbeError, ProcessInfo
from watchdog.core.model import Reading, Sampled, Unread, Value

MANY = 2_000_000
"""Of more entries no test fills a table: they take seconds, and a third of a KiB each."""
NOBODY = Engines(())
HEADER = "entries  found new insert_failed drop early_drop icmp_error  search_restart"
TABLE = f"""{HEADER}
0000012c  00000001 00000002 00000003 00000004 00000005 00000006  00000007
0000012c  0000000a 00000000 00000000 0000000f 00000010 00000000  00000000
"""


def limit() -> int:
    """How many entries a table may have here, as the machine is set."""
    there = int(netns.LIMIT.read_text())
    if not 0 < there <= MANY:
        pytest.skip(f"a table of {there} entries cannot be filled in a test")
    return there


def seen(probe: Conntrack) -> list[Sampled]:
    """One reading; every sample is declared, of its type, and there once."""
    declared = {spec.name: spec for spec in PROBE.samples}
    found: list[Sampled] = []
    for one in probe.read(time.monotonic() + 5):
        assert not isinstance(one, Unread)
        assert type(one.value) is declared[one.sample].type
        assert tuple(key for key, _ in one.labels) == declared[one.sample].labels
        found.append(one)
    assert len({(one.subject, one.sample, one.labels) for one in found}) == len(found)
    return found


def named(samples: list[Sampled]) -> dict[str, Value]:
    """The values by name, without those that have a label of their own."""
    return {one.sample: one.value for one in samples if one.sample != "events"}


def events(samples: list[Sampled]) -> dict[str, Value]:
    """The kernel's counters by column."""
    return {one.labels[0][1]: one.value for one in samples if one.sample == "events"}


def living(*pids: int) -> Target:
    """An engine of these processes."""
    members = tuple(ProcessInfo(pid, 1, 1, 1, "S", "engine", 0.0, 0) for pid in pids)
    return Target(Endpoint("127.0.0.1", 1), living=members)


def tree(
    root: Path, table: str | None = TABLE, settings: Mapping[str, str] | None = None
) -> Conntrack:
    """The probe on a procfs that shows this of our own namespace."""
    put(root, "thread-self/ns/net", "")
    if table is not None:
        put(root, "thread-self/net/stat/nf_conntrack", table)
    for path, text in (settings or {}).items():
        put(root, f"sys/net/{path}", text)
    return Conntrack(NOBODY, str(root))


def put(root: Path, path: str, text: str) -> None:
    """A file with everything above it."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


class Watched:
    """A table of a namespace, and what the default rules make of it as time goes on."""

    def __init__(self, space: Namespace) -> None:
        self.story: Story = serving()
        self.space = space
        self.now = 0.0
        self.fixes: dict[str, str] = {}
        self._probe = Conntrack(NOBODY)

    def looks(self, seconds: float = 5.0) -> dict[str, Value]:
        """What is read now; the same again every five seconds for so long."""
        found = self.space.run(lambda: seen(self._probe))
        for at in times(self.now + 5.0, self.now + seconds):
            self.story.read(Reading("conntrack", at, 0.0, tuple(found)))
            self.now = at
            if self.story.last is not None:
                self.fixes |= {one.rule: one.fix for one in self.story.last.findings}
        return named(found)

    def fires(self, rule: str) -> bool:
        """Whether the rule fires."""
        return fires(self.story, rule)


@pytest.mark.root
def test_a_real_table_that_fills_up_and_overflows() -> None:
    """FACT: at 80 percent a warning, at 95 critical, then drops and evictions, each with its fix.

    The table is the kernel's, the connections lead to loopback addresses, and what is dropped are
    real packets. No engine is restarted.
    """
    room = limit()
    with namespace() as space:
        space.run(netns.track)
        table = Watched(space)
        assert table.looks()["entries"] == 0
        space.run(lambda: netns.established(room * 80 // 100))
        assert 79.9 < float(table.looks(125.0)["used_percent"]) <= 80
        assert table.fires("conntrack-filling")
        assert not table.fires("conntrack-full")
        space.run(lambda: netns.established(room * 16 // 100, room * 80 // 100))
        assert 95 <= float(table.looks(10.0)["used_percent"]) < 100
        assert table.fires("conntrack-full")
        assert not table.fires("conntrack-dropping")
        refused = space.run(lambda: netns.datagrams(room * 5 // 100))
        found = table.looks()
        assert found["entries"] in range(room - 64, room + 1)
        assert found["drops"] == refused > 0
        assert int(found["early_drops"]) > 0
        assert table.fires("conntrack-dropping")
        assert table.fires("conntrack-evicting")
        twice = f"sysctl -w net.netfilter.nf_conntrack_max={2 * room}"
        rules = ("filling", "full", "dropping", "evicting")
        assert table.fixes == {f"conntrack-{rule}": twice for rule in rules}
        assert not table.story.acts


@pytest.mark.root
def test_our_own_table_is_not_anothers() -> None:
    """FACT: what is told of the host is of the namespace that we are in, entry by entry."""
    probe = Conntrack(NOBODY)
    with namespace() as space, namespace() as other:
        other.run(netns.track)
        other.run(lambda: netns.datagrams(50))
        assert named(space.run(lambda: seen(probe)))["entries"] == 0
        assert named(other.run(lambda: seen(probe)))["entries"] == 50


@pytest.mark.root
def test_an_engine_in_a_namespace_of_its_own() -> None:
    """FACT: its table is read without entering it, beside ours and against the same limit."""
    room = limit()
    with namespace() as ours, namespace() as its, ours.process() as shell, its.process() as leader:
        its.run(netns.track)
        its.run(lambda: netns.datagrams(30))
        probe = Conntrack(Engines((living(shell.pid, leader.pid),)))
        found = named(ours.run(lambda: seen(probe)))
        assert (found["entries"], found["engine_entries"]) == (0, 30)
        assert found["engine_used_percent"] == pytest.approx(3000 / room)
        assert found["engine_suggested_limit"] == 2 * room
        assert (found["engine_drops"], found["engine_early_drops"]) == (0, 0)


@pytest.mark.root
def test_an_engine_beside_us_has_no_table_of_its_own() -> None:
    """FACT: where the namespace is ours there is one table, and nothing is told twice."""
    with namespace() as space, space.process() as process:
        probe = Conntrack(Engines((living(process.pid),)))
        found = named(space.run(lambda: seen(probe)))
        assert not [name for name in found if name.startswith("engine_")]
        assert found["loaded"] is True


@pytest.mark.root
def test_a_namespace_that_cannot_be_seen() -> None:
    """FACT: of an engine that is gone, dead, or out of sight nothing is told, and never 0."""
    with namespace() as its, its.process() as process:
        engines = Engines((living(process.pid),))
        assert "engine_entries" in named(seen(Conntrack(engines)))
        process.kill()
        until(lambda: stat_fields(process.pid)[0] == "Z")
        assert not [name for name in named(seen(Conntrack(engines))) if "engine" in name]


def test_not_loaded(tmp_path: Path) -> None:
    """FACT: without the module there is no table: nothing is counted, and that is no error."""
    assert named(seen(tree(tmp_path, None))) == {"loaded": False}


def test_every_column_by_its_name(tmp_path: Path) -> None:
    """FACT: the counters of all CPUs are summed, under the kernel's own names."""
    settings = {f"netfilter/nf_conntrack_{name}": "400\n" for name in ("max", "buckets")}
    found = seen(tree(tmp_path, TABLE, settings))
    assert named(found) == {
        "loaded": True,
        "entries": 300,
        "limit": 400,
        "suggested_limit": 800,
        "used_percent": 75.0,
        "buckets": 400,
        "drops": 19,
        "early_drops": 21,
    }
    assert events(found) == {
        "found": 11,
        "new": 2,
        "insert_failed": 3,
        "drop": 19,
        "early_drop": 21,
        "icmp_error": 6,
        "search_restart": 7,
    }


def test_the_columns_of_another_kernel(tmp_path: Path) -> None:
    """FACT: columns in another order, missing and unknown ones change nothing about the rest."""
    found = seen(tree(tmp_path, "drop brand_new entries\n0a 0b 0c\n01 02 0c\n"))
    assert named(found) == {"loaded": True, "entries": 12, "drops": 11}
    assert events(found) == {"drop": 11, "brand_new": 13}


@pytest.mark.parametrize(
    ("table", "known"),
    [
        ("drop early_drop\n0a xx\n01 02\n", {"drop": 11}),
        ("drop early_drop\n0a -1\n01 02\n", {"drop": 11}),
        ("drop early_drop\n0a 1_0\n01 0x2\n", {"drop": 11}),
        ("drop early_drop\n0a " + "f" * 9000 + "\n01 02\n", {"drop": 11}),
        ("drop drop new\n0a 0b 0c\n", {"new": 12}),
        ("drop a-b ünknown new\n0a 0b 0c 0d\n", {"drop": 10, "new": 13}),
        ("drop early_drop\n0a 0b\n01\n", {}),
        ("drop early_drop\n0a 0b 0c\n", {}),
        ("drop early_drop\n", {}),
        ("\n0a\n", {}),
        ("\0\0\0", {}),
        ("", {}),
    ],
)
def test_counters_that_are_none(table: str, known: dict[str, int]) -> None:
    """FACT: what is no number is left out with its column; a row too short or long ends it all."""
    assert counters(table).columns == known


@pytest.mark.parametrize("table", ["", "drop\nxx\n", "\n\n"])
def test_a_table_that_shows_nothing(tmp_path: Path, table: str) -> None:
    """FACT: a file that is there and says nothing is trouble: neither a 0 nor "not loaded"."""
    with pytest.raises(ProbeError, match=r"^cannot read the conntrack table: the kernel"):
        seen(tree(tmp_path, table))


def test_a_table_that_cannot_be_read(tmp_path: Path) -> None:
    """FACT: a file that is there and cannot be read is trouble too, in the kernel's words."""
    (tmp_path / "thread-self/net/stat/nf_conntrack").mkdir(parents=True)
    with pytest.raises(ProbeError, match=r"^cannot read the conntrack table: Is a directory$"):
        seen(Conntrack(NOBODY, str(tmp_path)))


@pytest.mark.parametrize("word", ["", "x", "-5", "9" * 5000])
def test_a_limit_that_is_no_number(tmp_path: Path, word: str) -> None:
    """FACT: without a limit there is no share of it; what else is known is told."""
    probe = tree(tmp_path, TABLE, {"netfilter/nf_conntrack_max": word})
    found = named(seen(probe))
    assert found["entries"] == 300
    assert not found.keys() & {"limit", "used_percent", "suggested_limit"}


def test_no_limit_at_all(tmp_path: Path) -> None:
    """FACT: a limit of 0 is none: nothing can be full, and nothing is to be doubled."""
    found = named(seen(tree(tmp_path, TABLE, {"netfilter/nf_conntrack_max": "0\n"})))
    assert found["limit"] == 0
    assert not found.keys() & {"used_percent", "suggested_limit"}


def test_where_older_kernels_show_the_limit(tmp_path: Path) -> None:
    """FACT: the limit is also found where only the first namespace has it."""
    found = named(seen(tree(tmp_path, TABLE, {"nf_conntrack_max": "600\n"})))
    assert (found["limit"], found["used_percent"]) == (600, 50.0)


def test_without_counters(tmp_path: Path) -> None:
    """FACT: a kernel without the file of counters still tells how full the table is."""
    settings = {"netfilter/nf_conntrack_max": "100\n", "netfilter/nf_conntrack_count": "80\n"}
    found = named(seen(tree(tmp_path, None, settings)))
    assert found.pop("used_percent") == 80.0
    assert found == {"loaded": True, "entries": 80, "limit": 100, "suggested_limit": 200}


def test_a_cpu_that_comes_and_goes_is_no_rise(tmp_path: Path) -> None:
    """FACT: the sum over fewer or more CPUs is another one: it is not compared with the last."""
    probe = tree(tmp_path)
    file = tmp_path / "thread-self/net/stat/nf_conntrack"
    rows = TABLE.splitlines(keepends=True)
    for shown, drops in ((rows, 19), (rows[:2], None), (rows[:2], 4), (rows, None), (rows, 19)):
        file.write_text("".join(shown))
        assert named(seen(probe)).get("drops") == drops


def test_an_engine_elsewhere_in_a_broken_procfs(tmp_path: Path) -> None:
    """FACT: an engine whose counters make no sense is without samples; ours are not touched."""
    tree(tmp_path)
    put(tmp_path, "5/ns/net", "")
    put(tmp_path, "5/net/stat/nf_conntrack", "entries drop\nzz zz\n")
    found = named(seen(Conntrack(Engines((living(5),)), str(tmp_path))))
    assert found["entries"] == 300
    assert not [name for name in found if name.startswith("engine_")]


def test_an_engine_elsewhere_without_a_limit(tmp_path: Path) -> None:
    """FACT: its entries are counted also where nothing limits them."""
    tree(tmp_path, TABLE, {"netfilter/nf_conntrack_max": "0\n"})
    put(tmp_path, "5/ns/net", "")
    put(tmp_path, "5/net/stat/nf_conntrack", TABLE)
    found = named(seen(Conntrack(Engines((living(5),)), str(tmp_path))))
    assert (found["engine_entries"], found["engine_drops"]) == (300, 19)
    assert not found.keys() & {"engine_used_percent", "engine_suggested_limit"}


def test_the_machine_that_we_are_on() -> None:
    """FACT: with its own settings, on any machine, it reads the table or says there is none."""
    probe = PROBE.build(Settings(), NOBODY)
    assert isinstance(probe, Conntrack)
    assert "loaded" in named(seen(probe))
    probe.close()
