"""The probe ``sockets``: on real sockets in namespaces of their own, and on wrong files."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from probes._netns import diag
from probes.sockets import PROBE, Settings, Sockets
from tests.support import netns
from tests.support.core import Story, serving
from tests.support.engines import Engines, Target
from tests.support.netns import Namespace, namespace
from tests.support.rule_stories import fires, times
from tests.support.simulated import until
from watchdog.contracts import Endpoint, ProbeError, ProcessInfo
from watchdog.core.model import Reading, Sampled, Unread, Value

NOBODY = Engines(())
PORT = 8000
HERE = ("127.0.0.1", PORT)
PATIENCE = 5.0
SOCKSTAT = "sockets: used 26\nTCP: inuse 6 orphan 1 tw 483 alloc 6 mem 2\nUDP: inuse 9 mem 9\n"
NETSTAT = (
    "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 20 30\n"
    "IpExt: InNoRoutes ListenDrops\nIpExt: 4 5\n"
)
FILES = {
    "thread-self/net/sockstat": SOCKSTAT,
    "thread-self/net/sockstat6": "TCP6: inuse 3\nUDP6: inuse 4\n",
    "thread-self/net/netstat": NETSTAT,
    "sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
}


def seen(probe: Sockets) -> dict[str, Value]:
    """One reading by name; every sample is declared, of its type, and there once."""
    declared = {spec.name: spec for spec in PROBE.samples}
    found: dict[str, Value] = {}
    for one in probe.read(time.monotonic() + PATIENCE):
        assert not isinstance(one, Unread)
        assert type(one.value) is declared[one.sample].type
        assert tuple(key for key, _ in one.labels) == declared[one.sample].labels
        assert one.sample not in found
        found[one.sample] = one.value
    return found


def tree(root: Path, changes: Mapping[str, str | None] | None = None) -> Sockets:
    """The probe on a procfs of files; None leaves one out."""
    for path, text in ({**FILES, "thread-self/ns/net": ""} | dict(changes or {})).items():
        if text is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
    return Sockets(NOBODY, str(root))


def engine(*pids: int, host: str = "127.0.0.1", uds: str = "") -> Engines:
    """A box whose one engine has these processes and is spoken to on ``PORT``."""
    members = tuple(ProcessInfo(pid, 1, 1, 1, "S", "engine", 0.0, 0) for pid in pids)
    return Engines((Target(Endpoint(host, PORT, uds=uds), living=members),))


@contextlib.contextmanager
def ports(count: int) -> Iterator[Namespace]:
    """A namespace with so many ports for outgoing connections, each of which is used once."""
    with namespace() as space:
        space.set("ipv4/ip_local_port_range", f"30000 {30000 + count - 1}")
        space.set("ipv4/tcp_tw_reuse", "0")
        yield space


@contextlib.contextmanager
def crowded(space: Namespace, count: int, backlog: int) -> Iterator[None]:
    """A listener in the namespace that accepts nothing, and clients that want to be."""
    with (
        space.run(lambda: socket.create_server(HERE, backlog=backlog)),
        contextlib.ExitStack() as clients,
    ):
        space.run(lambda: clients.enter_context(netns.crowd(count, HERE)))
        yield


def lost(space: Namespace, probe: Sockets, count: int) -> dict[str, Value]:
    """The reading, once listeners have lost so many connections."""
    found = space.run(lambda: seen(probe))
    return found if int(found["listen_overflows"]) >= count else {}


def waiting(space: Namespace, probe: Sockets, count: int) -> dict[str, Value]:
    """The reading, once so many connections wait at the engine."""
    found = space.run(lambda: seen(probe))
    return found if found["engine_accept_queue"] == count else {}


def judged(story: Story, space: Namespace, probe: Sockets, first: float, last: float) -> None:
    """Tell ``story`` what is read now, every five seconds from ``first`` to ``last``."""
    samples = space.run(lambda: tuple(probe.read(time.monotonic() + PATIENCE)))
    told = tuple(one for one in samples if isinstance(one, Sampled))
    for at in times(first, last):
        story.read(Reading("sockets", at, 0.0, told))


def fixes(story: Story, rule: str) -> str:
    """What the last finding of the rule says cures it."""
    assert story.last is not None
    return next((one.fix for one in story.last.findings if one.rule == rule), "")


@pytest.mark.root
def test_thousands_of_closed_connections() -> None:
    """FACT: 2,000 sockets in TIME_WAIT are counted; with ports to spare that is no trouble."""
    with ports(28232) as space:
        assert space.run(lambda: netns.closed(2000, PORT)) == 2000
        found = space.run(lambda: seen(Sockets(NOBODY)))
        assert found["time_wait"] == 2000
        assert found["port_range"] == 28232
        assert found["time_wait_percent"] == pytest.approx(100 * 2000 / 28232)
        assert "time_wait_busiest" not in found


@pytest.mark.root
def test_a_range_of_ports_that_is_half_used() -> None:
    """FACT: where most of them lead is told, and that is a warning; nobody is restarted."""
    with ports(3000) as space:
        space.run(lambda: netns.closed(2000, PORT))
        space.run(lambda: netns.closed(100, PORT + 1))
        found = space.run(lambda: seen(probe := Sockets(NOBODY)) | seen(probe))
        assert found["time_wait_busiest"] == "127.0.0.1:8000 (2,000 sockets)"
        assert found["time_wait_busiest_percent"] == pytest.approx(100 * 2000 / 3000)
        story = serving()
        judged(story, space, Sockets(NOBODY), 5.0, 65.0)
        assert fires(story, "sockets-time-wait")
        assert "127.0.0.1:8000 (2,000 sockets)" in fixes(story, "sockets-time-wait")
        assert not fires(story, "sockets-exhausted")
        assert not story.acts


@pytest.mark.root
def test_a_range_of_ports_that_is_used_up() -> None:
    """FACT: when connecting fails for want of a port, that is a critical finding."""
    with ports(1000) as space:
        assert space.run(lambda: netns.closed(2000, PORT)) == 1000
        story = serving()
        judged(story, space, Sockets(NOBODY), 5.0, 10.0)
        assert fires(story, "sockets-exhausted")
        assert "tcp_tw_reuse" in fixes(story, "sockets-exhausted")
        assert not story.acts


@pytest.mark.root
@pytest.mark.parametrize(
    ("reuse", "given"), [("0", False), ("1", True), ("2", True)], ids=["no", "yes", "loopback"]
)
def test_ports_that_are_given_again_are_not_used_up(reuse: str, given: bool) -> None:  # noqa: FBT001 - a parameter
    """FACT: where the kernel gives such ports to new connections, all of them is not too many."""
    with ports(100) as space:
        space.run(lambda: netns.closed(95, PORT))
        space.set("ipv4/tcp_tw_reuse", reuse)
        found = space.run(lambda: seen(Sockets(NOBODY)))
        assert found["time_wait_percent"] == 95.0
        assert found["time_wait_reused"] is given
        story = serving()
        judged(story, space, Sockets(NOBODY), 5.0, 10.0)
        assert fires(story, "sockets-exhausted") is not given


@pytest.mark.root
def test_ports_are_given_again_on_loopback_alone() -> None:
    """FACT: an address of this machine that is no loopback address is like any other."""
    with ports(100) as space:
        space.run(lambda: netns.address("10.1.2.3"))
        space.run(lambda: netns.closed(60, PORT, "10.1.2.3"))
        space.set("ipv4/tcp_tw_reuse", "2")
        found = space.run(lambda: seen(Sockets(NOBODY)))
        assert found["time_wait_busiest"] == "10.1.2.3:8000 (60 sockets)"
        assert found["time_wait_reused"] is False


@pytest.mark.root
def test_the_busiest_is_looked_for_once_a_minute() -> None:
    """FACT: a second reading at once tells what the first one found, with the count of now."""
    with ports(100) as space:
        space.run(lambda: netns.closed(60, PORT, "127.0.0.2"))
        probe = Sockets(NOBODY)
        space.run(lambda: seen(probe))
        space.run(lambda: netns.closed(30, PORT))
        found = space.run(lambda: seen(probe))
        assert found["time_wait_percent"] == 90.0
        assert found["time_wait_busiest"] == "127.0.0.2:8000 (60 sockets)"


@pytest.mark.root
def test_the_busiest_of_both_versions_of_ip() -> None:
    """FACT: sockets of IPv6 count too, and the address is told as it is written there."""
    with ports(1000) as space:
        assert space.run(lambda: diag.busiest(0, time.monotonic() + PATIENCE)) is None
        space.run(lambda: netns.closed(20, PORT))
        space.run(lambda: netns.closed(30, PORT, "::1"))
        most = space.run(lambda: diag.busiest(50, time.monotonic() + PATIENCE))
        assert most == diag.Busiest("[::1]:8000", 30, loopback=True)


@pytest.mark.root
def test_an_address_of_ipv4_in_one_of_ipv6() -> None:
    """FACT: a client of IPv6 that reaches a server of IPv4 leads to the latter's address."""

    def closed() -> None:
        with socket.create_server(HERE) as server, socket.socket(socket.AF_INET6) as client:
            client.connect(("::ffff:127.0.0.1", PORT))
            accepted, _ = server.accept()
            client.close()
            accepted.close()

    with namespace() as space:
        space.run(closed)
        most = space.run(lambda: diag.busiest(1, time.monotonic() + PATIENCE))
        assert most == diag.Busiest("127.0.0.1:8000", 1, loopback=True)


@pytest.mark.root
def test_ports_of_others_that_lead_to_us_are_nobodys_loss() -> None:
    """FACT: a server that closes first keeps sockets too, but no port of a client: not counted."""
    with namespace() as space:

        def served() -> None:
            with socket.create_server(HERE) as server:
                for _ in range(30):
                    with socket.create_connection(HERE) as client:
                        server.accept()[0].close()
                        client.recv(1)

        space.run(served)
        most = space.run(lambda: diag.busiest(30, time.monotonic() + PATIENCE))
        assert most is not None
        assert most.sockets == 1


@pytest.mark.root
def test_a_listener_whose_queue_overflows() -> None:
    """FACT: connections that find no room are counted, and more than ten of them are a warning."""
    with namespace() as space:
        probe, story = Sockets(NOBODY), serving()
        judged(story, space, probe, 5.0, 5.0)
        with crowded(space, count=30, backlog=4):
            found = until(lambda: lost(space, probe, 25))
            assert int(found["listen_drops"]) >= int(found["listen_overflows"]) >= 25
            judged(story, space, probe, 10.0, 10.0)
        assert fires(story, "listen-queue-overflow")
        assert not story.acts


@pytest.mark.root
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_engine_that_accepts_nothing(host: str) -> None:
    """FACT: how many wait at the engine's own port and how many may is told; full is a warning."""
    with namespace() as space, space.process() as process:
        gone = 1 << 22  # above every pid
        probe, story = Sockets(engine(gone, process.pid, host=host)), serving()
        with crowded(space, count=3, backlog=4):
            found = until(lambda: waiting(space, probe, 3))
            assert found["engine_accept_queue_limit"] == 4
            assert "engine_listen_drops" not in found
            judged(story, space, probe, 5.0, 20.0)
            assert not fires(story, "engine-queue-full")
            with contextlib.ExitStack() as more:
                space.run(lambda: more.enter_context(netns.crowd(5, HERE)))
                assert until(lambda: waiting(space, probe, 5))
                judged(story, space, probe, 25.0, 35.0)
        assert fires(story, "engine-queue-full")
        assert not story.acts


@pytest.mark.root
def test_an_engine_without_a_listener_that_can_be_asked() -> None:
    """FACT: nobody listens, or on a path, or at a name: then nothing is told of a queue."""
    with namespace() as space, space.process() as process:
        assert "engine_accept_queue" not in space.run(lambda: seen(Sockets(engine(process.pid))))
        with space.run(lambda: socket.create_server(HERE)):
            for box in (
                engine(process.pid, uds="/run/engine.sock"),
                engine(process.pid, host="engine.example"),
                engine(process.pid, host="::1"),
                engine(),
            ):
                found = space.run(lambda box=box: seen(Sockets(box)))  # type: ignore[misc]
                assert "engine_accept_queue" not in found


@pytest.mark.root
def test_a_listener_on_every_address_is_found() -> None:
    """FACT: a wildcard listener is the one that a connection to loopback reaches, v6 or not."""
    with namespace() as space:
        everywhere = ("::", PORT)
        with space.run(
            lambda: socket.create_server(
                everywhere, family=socket.AF_INET6, dualstack_ipv6=True, backlog=7
            )
        ):
            for host in ("127.0.0.1", "::1"):
                queue = space.run(
                    lambda host=host: diag.backlog(host, PORT, time.monotonic() + PATIENCE)  # type: ignore[misc]
                )
                assert queue == diag.Backlog(0, 7)


@pytest.mark.root
def test_an_engine_in_a_namespace_of_its_own() -> None:
    """FACT: what its listeners lose is told of the engine, and our own port is not taken for it."""
    with namespace() as ours, namespace() as its, its.process() as leader:
        probe = Sockets(engine(leader.pid))
        with crowded(ours, count=2, backlog=9), crowded(its, count=20, backlog=4):
            found = until(lambda: (f := ours.run(lambda: seen(probe)))["engine_listen_drops"] and f)
            assert isinstance(found, dict)
            assert int(found["engine_listen_drops"]) > 0
            assert found["listen_drops"] == 0
            assert "engine_accept_queue" not in found


def test_what_the_files_say(tmp_path: Path) -> None:
    """FACT: each number comes from its place by name; pages are told as bytes."""
    assert seen(tree(tmp_path)) == {
        "in_use": 9,
        "orphans": 1,
        "time_wait": 483,
        "memory_bytes": 2 * os.sysconf("SC_PAGE_SIZE"),
        "port_range": 28232,
        "time_wait_percent": pytest.approx(100 * 483 / 28232),
        "listen_overflows": 20,
        "listen_drops": 30,
    }


@pytest.mark.parametrize(
    ("file", "text", "missing"),
    [
        ("thread-self/net/sockstat", None, {"in_use", "time_wait", "orphans", "memory_bytes"}),
        ("thread-self/net/sockstat", "", {"in_use", "time_wait", "orphans", "memory_bytes"}),
        ("thread-self/net/sockstat", "TCP:\n", {"in_use", "time_wait_percent"}),
        ("thread-self/net/sockstat", "TCP: inuse x tw\n", {"in_use", "time_wait"}),
        ("thread-self/net/sockstat", "TCP: tw " + "9" * 5000, {"time_wait"}),
        ("thread-self/net/sockstat", "TCP: mem 1 tw -4 inuse 2\n", {"time_wait", "orphans"}),
        ("thread-self/net/netstat", None, {"listen_drops", "listen_overflows"}),
        ("thread-self/net/netstat", "", {"listen_drops", "listen_overflows"}),
        ("thread-self/net/netstat", "TcpExt: ListenDrops\n", {"listen_drops"}),
        ("thread-self/net/netstat", "TcpExt: A ListenDrops\nTcpExt: 1\n", {"listen_drops"}),
        ("thread-self/net/netstat", "TcpExt: ListenDrops\nTcpExt: 0x1\n", {"listen_drops"}),
        ("sys/net/ipv4/ip_local_port_range", None, {"port_range", "time_wait_percent"}),
        ("sys/net/ipv4/ip_local_port_range", "9 1\n", {"port_range", "time_wait_percent"}),
        ("sys/net/ipv4/ip_local_port_range", "1 2 3\n", {"port_range", "time_wait_percent"}),
        ("sys/net/ipv4/ip_local_port_range", "a b\n", {"port_range", "time_wait_percent"}),
    ],
)
def test_files_that_are_wrong(
    tmp_path: Path, file: str, text: str | None, missing: set[str]
) -> None:
    """FACT: what a file does not say in so many words is absent; the other files still speak."""
    found = seen(tree(tmp_path, {file: text}))
    assert found
    assert not missing & found.keys()


def test_names_in_another_order(tmp_path: Path) -> None:
    """FACT: another kernel's order, and names that nobody knows, change nothing."""
    found = seen(
        tree(
            tmp_path,
            {
                "thread-self/net/sockstat": "TCP: new 1 tw 5 mem 3 inuse 2 orphan 0\n",
                "thread-self/net/sockstat6": None,
                "thread-self/net/netstat": "TcpExt: ListenDrops X ListenOverflows\nTcpExt: 7 0 6\n",
            },
        )
    )
    assert (found["time_wait"], found["in_use"], found["orphans"]) == (5, 2, 0)
    assert (found["listen_drops"], found["listen_overflows"]) == (7, 6)


def test_nothing_at_all(tmp_path: Path) -> None:
    """FACT: without one file there is one line of words, and not one sample."""
    with pytest.raises(ProbeError, match=r"^cannot read the state of TCP"):
        seen(Sockets(NOBODY, str(tmp_path)))


def test_the_machine_that_we_are_on() -> None:
    """FACT: with its own settings, on any machine, it reads its own sockets."""
    probe = PROBE.build(Settings(), NOBODY)
    assert isinstance(probe, Sockets)
    assert {"in_use", "port_range", "listen_drops"} <= seen(probe).keys()
    probe.close()
