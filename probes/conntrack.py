"""The kernel's table of tracked connections: when it is full, packets of new ones are dropped.

Each network namespace has a table of its own, all of them share the limit of the first one. It is
our own that is told of the host, and that of an engine beside it where that is another one. What is
not loaded, or not to be seen from here, is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from probes._netns import spaces
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

_COUNTERS = "stat/nf_conntrack"
_SETTINGS = "sys/net/netfilter/nf_conntrack_"
_FIRST_LIMIT = "sys/net/nf_conntrack_max"
"""Where older kernels show the limit, and only to the first namespace."""
_ENTRIES, _DROPS, _EVICTED = "entries", "drop", "early_drop"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_HEX = re.compile(r"[0-9a-fA-F]{1,16}")
_ZERO = "00000000"
"""Most of the numbers, on a machine with many CPUs: not worth a look each."""
_ENGINE = ("engine",)
_HINT = 2
"""Twice as many cost a third of a KiB each, and give time to find out who opens them."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: the kernel says how full it is."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of one namespace by the kernel's name for the column, summed over all CPUs.

    ``rows`` is of how many CPUs. ``entries`` are the connections in the table, None when unknown.
    """

    rows: int
    columns: dict[str, int]
    entries: int | None


def counters(text: str) -> Counters:
    """What ``net/stat/nf_conntrack`` says: a header, and a row of hexadecimal numbers for each CPU.

    By name, as columns have come, gone and moved. A column with anything else than a number in it
    is left out, and all of them where a row is not as long as the header.
    """
    header, *lines = text.splitlines() or [""]
    names = header.split()
    rows = [line.split() for line in lines if line.strip()]
    if any(len(row) != len(names) for row in rows):
        return Counters(0, {}, None)
    columns: dict[str, int] = {}
    entries = None
    for name, cells in zip(names, zip(*rows, strict=True), strict=bool(rows)):
        numbers = [int(cell, 16) for cell in cells if cell != _ZERO and _HEX.fullmatch(cell)]
        if len(numbers) + cells.count(_ZERO) < len(cells):
            continue
        if name == _ENTRIES:  # of the whole table, in every row
            entries = max(numbers, default=0)
        elif _NAME.fullmatch(name) and names.count(name) == 1:
            columns[name] = sum(numbers)
    return Counters(len(rows), columns, entries)


class Conntrack:
    """Looks at our own table, and at those of engines elsewhere. ``root`` is where procfs is."""

    def __init__(self, box: Box, root: str = procfs.ROOT) -> None:
        self._box = box
        self._root = root
        self._rows: dict[str, int] = {}

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:  # noqa: ARG002 - /proc does not wait
        """All that is known. Raises ProbeError when the table is there and shows nothing."""
        limit = self._setting("max")
        found = [*self._host(limit)]
        for engine in self._box.engines():
            found += self._engine(engine, limit)
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _host(self, limit: int | None) -> Iterator[Sampled]:
        try:
            counted = counters(spaces.text(f"{spaces.own(self._root).folder}/{_COUNTERS}"))
            trouble = None
        except OSError as error:
            counted, trouble = counters(""), error
        count = self._setting("count")
        count = counted.entries if count is None else count
        if limit is None and count is None and not counted.columns:
            if not isinstance(trouble, FileNotFoundError):
                why = trouble.strerror if trouble else "the kernel shows nothing of it"
                raise ProbeError(f"cannot read the conntrack table: {why}")
            yield Sampled(HOST, "loaded", value=False)
            return
        yield Sampled(HOST, "loaded", value=True)
        yield from _fullness(count, limit)
        buckets = self._setting("buckets")
        if buckets is not None:
            yield Sampled(HOST, "buckets", buckets)
        yield from self._events(counted)

    def _events(self, counted: Counters) -> Iterator[Sampled]:
        columns = self._whole("", counted)
        for sample, column in (("drops", _DROPS), ("early_drops", _EVICTED)):
            if column in columns:
                yield Sampled(HOST, sample, columns[column])
        for column, total in columns.items():
            yield Sampled(HOST, "events", total, (("column", column),))

    def _engine(self, engine: EngineTarget, limit: int | None) -> Iterator[Sampled]:
        space = spaces.of_engine(engine, self._root)
        if space is None or space.own:
            return
        counted = counters(spaces.maybe(f"{space.folder}/{_COUNTERS}"))
        if counted.entries is not None:
            yield of_engine(engine, "engine_entries", counted.entries)
            if limit:
                yield of_engine(engine, "engine_used_percent", 100.0 * counted.entries / limit)
                yield of_engine(engine, "engine_suggested_limit", limit * _HINT)
        columns = self._whole(engine.name, counted)
        for sample, column in (("engine_drops", _DROPS), ("engine_early_drops", _EVICTED)):
            if column in columns:
                yield of_engine(engine, sample, columns[column])

    def _whole(self, whose: str, counted: Counters) -> dict[str, int]:
        """The columns; none when there are other CPUs than before: their sum is another one."""
        before, self._rows[whose] = self._rows.get(whose, counted.rows), counted.rows
        return counted.columns if before == counted.rows else {}

    def _setting(self, name: str) -> int | None:
        """A number of the kernel's settings; None when it is not there, or is none."""
        found = spaces.number(spaces.maybe(f"{self._root}/{_SETTINGS}{name}"))
        if found is None and name == "max":
            found = spaces.number(spaces.maybe(f"{self._root}/{_FIRST_LIMIT}"))
        return found


def _fullness(count: int | None, limit: int | None) -> Iterator[Sampled]:
    """A limit of 0 is none."""
    if count is not None:
        yield Sampled(HOST, "entries", count)
    if limit is not None:
        yield Sampled(HOST, "limit", limit)
    if limit:
        yield Sampled(HOST, "suggested_limit", limit * _HINT)
    if count is not None and limit:
        yield Sampled(HOST, "used_percent", 100.0 * count / limit)


def _build(_: Settings, box: Box) -> Probe:
    return Conntrack(box)


def _count(name: str, text: str, *, counter: bool = False) -> SampleSpec:
    return SampleSpec(name, int, "", text, counter=counter)


def _of_engine(name: str, text: str, *, counter: bool = False, exported: bool = True) -> SampleSpec:
    spec = SampleSpec(name, int, "", text, counter=counter, exported=exported)
    return replace(spec, labels=_ENGINE, subject=SubjectKind.ENGINE)


PROBE = ProbeSpec(
    name="conntrack",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=(
        SampleSpec("loaded", bool, "", "Whether the table can be seen in our network namespace."),
        _count("entries", "Connections in the table of our network namespace."),
        _count("limit", "How many there may be, in each namespace."),
        _count("buckets", "Size of the hash table that all namespaces share."),
        SampleSpec("suggested_limit", int, "", "Twice the limit.", exported=False),
        SampleSpec("used_percent", float, "percent", "Share of the limit that is in use."),
        _count("drops", "Packets dropped because there was no room for them.", counter=True),
        _count("early_drops", "Connections evicted to make room for new ones.", counter=True),
        SampleSpec(
            "events",
            int,
            "",
            "All that the kernel counts, by its own name for it.",
            counter=True,
            labels=("column",),
        ),
        _of_engine("engine_entries", "Connections in the table of the engine's own namespace."),
        SampleSpec(
            "engine_used_percent",
            float,
            "percent",
            "Its share of the limit.",
            labels=_ENGINE,
            subject=SubjectKind.ENGINE,
        ),
        _of_engine("engine_suggested_limit", "Twice the limit.", exported=False),
        _of_engine("engine_drops", "Packets dropped there.", counter=True),
        _of_engine("engine_early_drops", "Connections evicted there.", counter=True),
    ),
    build=_build,
    period=5.0,
)
