"""TCP sockets: ports that closed connections keep, and listeners that cannot keep up.

All of our own network namespace; of an engine in another one what can be had without entering it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator

import msgspec

from probes._netns import diag, spaces
from watchdog import procfs
from watchdog.contracts import (
    Box,
    EngineTarget,
    Probe,
    ProbeError,
    ProbeSpec,
    SampleSpec,
    of_engine,
)
from watchdog.core.model import (
    HOST,
    Sampled,
    Seconds,
    SubjectKind,
    Unread,
)

_ENGINE = ("engine",)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_WORTH = 50.0
"""Percent of the ports in TIME_WAIT below which nobody need know where they lead to."""
_SPARED: Seconds = 60.0
"""Between two searches: each one walks all sockets, for milliseconds."""
_RANGE = "sys/net/ipv4/ip_local_port_range"
_REUSE = "sys/net/ipv4/tcp_tw_reuse"
_ALWAYS, _LOOPBACK = 1, 2
_OVERFLOWS, _DROPS = "ListenOverflows", "ListenDrops"
_RESERVE: Seconds = 0.2

Numbers = dict[str, int]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: the kernel knows."""


class Sockets:
    """Four small files, and one question an engine. ``root`` is where procfs is."""

    def __init__(self, box: Box, root: str = procfs.ROOT) -> None:
        self._box = box
        self._root = root
        self._searched = -math.inf
        self._found: diag.Busiest | None = None

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """All that is known. Raises ProbeError when none of the files can be read."""
        until = deadline - _RESERVE
        found = [*self._host(until)]
        if not found:
            raise ProbeError("cannot read the state of TCP: nothing in /proc/net says it")
        for engine in self._box.engines():
            found += self._engine(engine, until)
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _host(self, until: Seconds) -> Iterator[Sampled]:
        folder = spaces.own(self._root).folder
        ports = _width(spaces.maybe(f"{self._root}/{_RANGE}"))
        tcp = named(spaces.maybe(f"{folder}/sockstat"), "TCP:")
        tcp6 = named(spaces.maybe(f"{folder}/sockstat6"), "TCP6:")
        yield from _counted(tcp, tcp6)
        if ports is not None:
            yield Sampled(HOST, "port_range", ports)
        if ports and "tw" in tcp:
            yield from self._time_wait(tcp["tw"], ports, until)
        counted = _listening(folder, _OVERFLOWS, _DROPS)
        for sample, name in (("listen_overflows", _OVERFLOWS), ("listen_drops", _DROPS)):
            if name in counted:
                yield Sampled(HOST, sample, counted[name])

    def _time_wait(self, sockets: int, ports: int, until: Seconds) -> Iterator[Sampled]:
        percent = 100.0 * sockets / ports
        yield Sampled(HOST, "time_wait_percent", percent)
        if percent <= _WORTH:
            return
        now = time.monotonic()
        if now - self._searched >= _SPARED:
            self._searched, self._found = now, _busiest(sockets, until)
        if self._found is not None:
            yield from self._leading(self._found, ports)

    def _leading(self, found: diag.Busiest, ports: int) -> Iterator[Sampled]:
        words = f"{found.peer} ({found.sockets:,} sockets)"
        yield Sampled(HOST, "time_wait_busiest", words)
        yield Sampled(HOST, "time_wait_busiest_percent", 100.0 * found.sockets / ports)
        reuse = spaces.number(spaces.maybe(f"{self._root}/{_REUSE}"))
        if reuse is not None:
            again = reuse == _ALWAYS or (reuse == _LOOPBACK and found.loopback)
            yield Sampled(HOST, "time_wait_reused", again)

    def _engine(self, engine: EngineTarget, until: Seconds) -> Iterator[Sampled]:
        space = spaces.of_engine(engine, self._root)
        if space is not None and space.own:
            yield from _backlog(engine, until)
        elif space is not None:
            for dropped in _listening(space.folder, _DROPS).values():
                yield of_engine(engine, "engine_listen_drops", dropped)


def named(text: str, head: str) -> Numbers:
    """The pairs of name and number behind ``head``: ``TCP: inuse 6 orphan 0``."""
    words = next((line.split()[1:] for line in text.splitlines() if line.startswith(head)), [])
    return _numbers(words[::2], words[1::2])


def columns(text: str, head: str, *wanted: str) -> Numbers:
    """Those ``wanted`` of a line of names and one of numbers, which both begin with ``head``."""
    lines = [line.split() for line in text.splitlines() if line.startswith(head)]
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):  # noqa: PLR2004 - names, numbers
        return {}
    names, words = lines
    there = [name for name in wanted if name in names]
    return _numbers(there, [words[names.index(name)] for name in there])


def _numbers(names: list[str], words: list[str]) -> Numbers:
    pairs = zip(names, words, strict=False)
    read = ((name, spaces.number(word)) for name, word in pairs)
    return {name: value for name, value in read if value is not None}


def _width(text: str) -> int | None:
    """How many ports a range has; None when it is none."""
    ends = [spaces.number(word) for word in text.split()]
    match ends:
        case [int(low), int(high)] if low <= high:
            return high - low + 1
        case _:
            return None


def _counted(tcp: Numbers, tcp6: Numbers) -> Iterator[Sampled]:
    """Only the sockets in use are counted for each version of IP; memory is in pages."""
    if "inuse" in tcp:
        yield Sampled(HOST, "in_use", tcp["inuse"] + tcp6.get("inuse", 0))
    if "orphan" in tcp:
        yield Sampled(HOST, "orphans", tcp["orphan"])
    if "tw" in tcp:
        yield Sampled(HOST, "time_wait", tcp["tw"])
    if "mem" in tcp:
        yield Sampled(HOST, "memory_bytes", tcp["mem"] * _PAGE)


def _listening(folder: str, *names: str) -> Numbers:
    """What the kernel counts of all listeners of a namespace."""
    return columns(spaces.maybe(f"{folder}/netstat"), "TcpExt:", *names)


def _busiest(sockets: int, until: Seconds) -> diag.Busiest | None:
    try:
        return diag.busiest(sockets, until)
    except OSError:
        return None


def _backlog(engine: EngineTarget, until: Seconds) -> Iterator[Sampled]:
    where = engine.endpoint
    if where.uds or not where.port:
        return
    try:
        queue = diag.backlog(where.host, where.port, until)
    except OSError:
        return
    if queue is not None:
        yield of_engine(engine, "engine_accept_queue", queue.waiting)
        yield of_engine(engine, "engine_accept_queue_limit", queue.limit)


def _build(_: Settings, box: Box) -> Probe:
    return Sockets(box)


def _count(name: str, text: str, *, counter: bool = False) -> SampleSpec:
    return SampleSpec(name, int, "", text, counter=counter)


def _of_engine(name: str, text: str, *, counter: bool = False) -> SampleSpec:
    return SampleSpec(
        name, int, "", text, counter=counter, labels=_ENGINE, subject=SubjectKind.ENGINE
    )


PROBE = ProbeSpec(
    name="sockets",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        _count("in_use", "TCP sockets in use in our network namespace."),
        _count("orphans", "TCP sockets that no process holds any more."),
        _count("time_wait", "Closed connections whose ports are kept for a minute (TIME_WAIT)."),
        SampleSpec("memory_bytes", int, "bytes", "Memory of all TCP sockets of the machine."),
        _count("port_range", "Ports that an outgoing connection may get."),
        SampleSpec("time_wait_percent", float, "percent", "TIME_WAIT, as a share of that range."),
        SampleSpec("time_wait_busiest", str, "", "Where most of them lead to, once they are many."),
        SampleSpec(
            "time_wait_busiest_percent",
            float,
            "percent",
            "Those that lead there, as a share of the range.",
        ),
        SampleSpec(
            "time_wait_reused",
            bool,
            "",
            "Whether their ports are given to new connections after a second all the same.",
        ),
        _count("listen_overflows", "Connections refused by full accept queues.", counter=True),
        _count("listen_drops", "Connections that listeners have lost, all causes.", counter=True),
        _of_engine("engine_accept_queue", "Connections that the engine has not accepted yet."),
        _of_engine("engine_accept_queue_limit", "How many of them may wait."),
        _of_engine(
            "engine_listen_drops",
            "Connections that listeners have lost, all causes, in the engine's own namespace.",
            counter=True,
        ),
    ),
    build=_build,
    period=5.0,
)
