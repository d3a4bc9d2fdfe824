"""Xids: what the driver says went wrong on a card, from the kernel log and from NVML's events.

The kernel log comes first: it has the process and the text, and needs no driver that answers. In a
container it is often out of reach; then NVML's events are all there is, and when those are missing
too, that is said: an unread log is not a log without Xids. Counts start with the watchdog.

The log is the whole machine's, even in a container that has some of its cards: once NVML has named
those that are here, an Xid of any other place is somebody else's.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from probes._kmsg import PATH, KernelLog, KernelLogError
from probes._nvml.client import Asks, NvmlUnavailableError, lease
from probes._nvml.namespaces import FIRST_PID_NAMESPACE, own_pid_namespace
from probes._xid.cards import ROOT, Card, Cards
from probes._xid.classes import Classes, XidClass, changes
from probes._xid.line import XidLine, XidLines, normalized
from probes._xid.once import Once
from watchdog.contracts import Box, Owner, Probe, ProbeSpec, SampleSpec
from watchdog.core.model import (
    HOST,
    Sampled,
    Seconds,
    Subject,
    SubjectKind,
    Unread,
    engine_subject,
)

_BATCH = 128
_RESERVE: Seconds = 0.2
"""Seconds between the last look at a source and the probe's own deadline."""
_MEMORY: Seconds = 30.0
"""A process that an Xid ends is often gone before its line is read: so long it is remembered."""
_LONGEST = 200
_MINE = frozenset({Owner.ENGINE, Owner.ORPHAN})


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``classes`` moves Xids, ``{"43" = "ignored"}``; ``kmsg`` is the kernel log's device."""

    classes: dict[str, str] = {}
    kmsg: str = PATH

    def __post_init__(self) -> None:
        """Raises ValueError when a class or a number is none."""
        changes(self.classes)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the probe runs: the driver's directory of cards, its pid namespace, its clock."""

    gpus: str = ROOT
    pid_namespace: Callable[[], str] = own_pid_namespace
    clock: Callable[[], Seconds] = time.monotonic


class XidProbe:
    """Counts from its making on; every read yields all counts."""

    def __init__(
        self,
        settings: Settings,
        box: Box,
        client: Asks,
        surroundings: Surroundings | None = None,
    ) -> None:
        around = surroundings or Surroundings()
        self._box = box
        self._client = client
        self._clock = around.clock
        self._host_pids = around.pid_namespace() == FIRST_PID_NAMESPACE
        self._cards = Cards(around.gpus, whole=self._host_pids)
        self._log = KernelLog(settings.kmsg)
        self._lines = XidLines()
        self._told_lost = 0
        self._classes = Classes(changes(settings.classes))
        self._once = Once()
        self._nameless = False
        self._shown: set[Subject] = set()
        self._members: dict[int, tuple[str, Seconds]] = {}
        self._errors: Counter[tuple[str, int]] = Counter()
        self._by_class: Counter[tuple[str, XidClass]] = Counter()
        self._last: dict[str, tuple[XidLine, XidClass]] = {}
        self._engine_by_class: Counter[tuple[str, XidClass]] = Counter()
        self._engine_last: dict[str, tuple[XidLine, XidClass]] = {}

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Yields all counts; only ``source`` and its trouble when neither source can be read.

        So too before the first answer of NVML, whose names for the cards are the ones to use.
        """
        now = self._clock()
        self._remember(now)
        lines, log_trouble = self._drained(now, deadline - _RESERVE)
        nvml_trouble = self._ask(now, deadline - _RESERVE)
        for line in (*lines, *self._once.due(now, at_once=bool(log_trouble))):
            self._count(line)
        yield from self._sources(log_trouble, nvml_trouble)
        if not ((log_trouble and nvml_trouble) or self._names_awaited()):
            yield from self._of_cards()
            yield from self._of_engines()

    def close(self) -> None:
        """Give the client back and let go of the log."""
        self._log.close()
        self._client.close()

    def _remember(self, now: Seconds) -> None:
        """Whose each process is, while it can be seen."""
        if not self._host_pids:
            return
        for engine in self._box.engines():
            self._members.update({p.pid: (engine.name, now) for p in engine.processes()})
        self._members = {p: kept for p, kept in self._members.items() if now - kept[1] <= _MEMORY}

    def _drained(self, now: Seconds, until: Seconds) -> tuple[list[XidLine], str]:
        """What the kernel log has to be counted; the trouble of reading it, or ""."""
        lines: list[XidLine] = []
        try:
            while entries := self._log.read(_BATCH):
                for entry in entries:
                    line = self._lines.found(entry)
                    if line is not None and self._once.kernel(line, entry.at, now):
                        lines.append(line)
                if time.monotonic() >= until:
                    break
        except KernelLogError as error:
            return lines, str(error)
        return lines, ""

    def _ask(self, now: Seconds, until: Seconds) -> str:
        """Take NVML's events, within half of the time left; the trouble of asking, or ""."""
        half = until - max(until - time.monotonic(), 0.0) / 2
        try:
            answer = self._client.ask("events", half)
            self._ask_names(half)
        except NvmlUnavailableError as error:
            return str(error)
        finally:
            self._cards.learn(self._client.cards)
        for event in answer.get("events", ()):
            line = self._event(event)
            if line is not None:
                self._once.event(line, now)
        return "" if answer.get("supported") else "cannot read Xids through NVML: not supported"

    def _ask_names(self, until: Seconds) -> None:
        """Unless they are known: who else asks for the cards may be late, or switched off."""
        if self._client.cards or self._nameless:
            return
        with contextlib.suppress(NvmlUnavailableError):
            answer = self._client.ask("cards", until)
            self._nameless = "gpus" in answer and not self._client.cards

    def _names_awaited(self) -> bool:
        """NVML answers, and will name the cards: any other name would be taken back at once."""
        return not (self._cards.told or self._nameless or self._client.trouble)

    def _event(self, event: Mapping[str, Any]) -> XidLine | None:
        xid, gi, ci = (event.get(key) for key in ("xid", "gi", "ci"))
        if not isinstance(xid, int) or xid <= 0:
            return None
        uuid, told = (str(event.get(key) or "") for key in ("uuid", "bus_id"))
        place = normalized(told) or self._cards.place(uuid)
        self._cards.named(place, uuid)
        return XidLine(place, xid, gi=gi, ci=ci)

    def _count(self, line: XidLine) -> None:
        if self._cards.elsewhere(line.bus_id):
            return
        kind = self._classes.of(line)
        self._errors[line.bus_id, line.xid] += 1
        self._by_class[line.bus_id, kind] += 1
        self._last[line.bus_id] = line, kind
        engine = self._engine_of(line)
        if engine:
            self._engine_by_class[engine, kind] += 1
            self._engine_last[engine] = line, kind

    def _engine_of(self, line: XidLine) -> str:
        """The engine of a process that the kernel names; "" when it is nobody's or unknown."""
        pid = line.pid
        if pid is None:
            return ""
        if not self._host_pids:  # the number means another process here, or none
            names = [engine.name for engine in self._box.engines()]
            return names[0] if len(names) == 1 and self._cards.here(line.bus_id) else ""
        owned = self._box.owner(pid)
        if owned.owner is Owner.UNKNOWN:
            return self._members.get(pid, ("", 0.0))[0]
        return owned.engine if owned.owner in _MINE else ""

    def _sources(self, log_trouble: str, nvml_trouble: str) -> Iterator[Sampled]:
        works = [] if log_trouble else ["kmsg"]
        works += [] if nvml_trouble else ["nvml"]
        trouble = log_trouble or self._newly_lost()
        if not works:
            trouble = f"{log_trouble}; {nvml_trouble}"
        yield Sampled(HOST, "source", "+".join(works) or "none")
        yield Sampled(HOST, "source_trouble", trouble)

    def _newly_lost(self) -> str:
        """A gap in the log may hide an Xid: told once, at the read that found it."""
        lost, self._told_lost = self._log.lost - self._told_lost, self._log.lost
        return f"cannot read {lost} lines of the kernel log: they are gone" if lost else ""

    def _of_cards(self) -> Iterator[Sampled]:
        cards = {card.bus_id: card for card in self._cards.known()}
        places = (place for place in self._last if not self._cards.elsewhere(place))
        cards.update({place: self._cards.at(place) for place in places})
        for place, card in cards.items():
            # A rise can only be seen from a known value: whoever is shown for the first time is
            # shown with zeros, and what was counted by then comes a reading later.
            shown = card.subject in self._shown
            self._shown.add(card.subject)
            yield from self._of_card(place, card, shown=shown)

    def _of_card(self, place: str, card: Card, *, shown: bool) -> Iterator[Sampled]:
        for kind in XidClass:
            count = self._by_class[place, kind] if shown else 0
            labels = (*card.labels, ("class", kind.value))
            yield Sampled(card.subject, "class_errors", count, labels)
        for (where, xid), count in self._errors.items():
            if where == place:
                labels = (*card.labels, ("xid", str(xid)))
                yield Sampled(card.subject, "errors", count if shown else 0, labels)
        if shown and place in self._last:
            yield Sampled(card.subject, "last", self._told(self._last[place]), card.labels)

    def _of_engines(self) -> Iterator[Sampled]:
        for engine in self._box.engines():
            subject, label = engine_subject(engine.name), ("engine", engine.name)
            for kind in XidClass:
                count = self._engine_by_class[engine.name, kind]
                labels = (label, ("class", kind.value))
                yield Sampled(subject, "engine_errors", count, labels)
            if engine.name in self._engine_last:
                told = self._told(self._engine_last[engine.name])
                yield Sampled(subject, "engine_last", told, (label,))

    def _told(self, last: tuple[XidLine, XidClass]) -> str:
        """In words; made when they are asked for, because a card may get its name late."""
        line, kind = last
        return sentence(line, kind, self._cards.at(line.bus_id).words)


def sentence(line: XidLine, kind: XidClass, card: str) -> str:
    """One Xid in one line of at most 200 characters, whatever its text is made of."""
    mig = "" if line.gi is None else f" (MIG {line.gi}/{'-' if line.ci is None else line.ci})"
    name = f" ({line.name})" if line.name else ""
    process = "" if line.pid is None else f", process {line.pid}{name}"
    told = f": {line.summary}" if line.summary else ""
    whole = f"Xid {line.xid} ({kind}) on {card}{mig}{process}{told}"
    whole = "".join(c if c.isprintable() else "?" for c in whole)
    return whole if len(whole) <= _LONGEST else f"{whole[: _LONGEST - 1]}…"


def _build(settings: Settings, box: Box) -> Probe:
    return XidProbe(settings, box, lease())


def _of_host(name: str, text: str) -> SampleSpec:
    return SampleSpec(name, str, "", text, subject=SubjectKind.HOST)


_CARD = ("gpu", "uuid")
_CLASSES = tuple(kind.value for kind in XidClass)

PROBE = ProbeSpec(
    name="xid",
    subject_kind=SubjectKind.GPU,
    settings=Settings,
    samples=(
        SampleSpec(
            "errors",
            int,
            "",
            "Xids since the watchdog started, by number.",
            counter=True,
            labels=(*_CARD, "xid"),
            metric="nvidia_gpu_xid_errors_total",
        ),
        SampleSpec(
            "class_errors",
            int,
            "",
            "Xids since the watchdog started, by what they ask for.",
            counter=True,
            labels=(*_CARD, "class"),
            label_values=_CLASSES,
        ),
        SampleSpec("last", str, "", "The last Xid of a card, in words.", labels=_CARD),
        SampleSpec(
            "engine_errors",
            int,
            "",
            "Xids of the engine's processes since the watchdog started, by what they ask for.",
            counter=True,
            labels=("engine", "class"),
            subject=SubjectKind.ENGINE,
            label_values=_CLASSES,
        ),
        SampleSpec(
            "engine_last",
            str,
            "",
            "The last Xid of an engine's process.",
            labels=("engine",),
            subject=SubjectKind.ENGINE,
        ),
        _of_host("source", "Where Xids are read: kmsg, kmsg+nvml, nvml or none."),
        _of_host("source_trouble", "Why a source cannot be read; empty when it can."),
    ),
    build=_build,
    period=1.0,
    timeout=5.0,
)
