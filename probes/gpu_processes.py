"""Whose memory is on the GPUs: compute processes by owner, and what no process accounts for.

Containers that cannot see a process, MIG and some drivers leave gaps: a gap makes a sum partial or
a sample absent, and never a claim. Facts of the process list: R580 on H200, and the kernel module's
sources (a pid listed more than once, pids of other namespaces).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from probes._nvml.client import Asks, NvmlUnavailableError, lease
from probes._nvml.namespaces import own_pid_namespace, pids_are_ours
from watchdog.contracts import Box, Owned, Owner, Probe, ProbeError, ProbeSpec, SampleSpec
from watchdog.core.model import Labels, Sampled, Seconds, Subject, SubjectKind, Unread, Value

_LABELS = ("gpu", "uuid")
_HOLDER = (*_LABELS, "pid", "comm", "owner", "engine")
_RESERVE = 0.2
"""Seconds between giving up on the worker and the probe's own deadline."""
_GARBAGE = frozenset({0, 0xFFFFFFFF})
"""What drivers list instead of the pid of a process they cannot name."""
_NAMED = 5
_GIB = 1 << 30


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set beyond period and timeout."""


@dataclass(frozen=True, slots=True)
class _Holder:
    """One process with memory on one card; ``size`` is in bytes, None when nobody knows."""

    pid: int
    size: int | None
    owned: Owned

    @property
    def words(self) -> str:
        name = f" ({_printable(self.owned.comm)})" if self.owned.comm else ""
        size = "" if self.size is None else f" {self.size / _GIB:.1f} GiB"
        return f"pid {self.pid}{name}{size}"


def _spec(name: str, kind: type[int | bool], unit: str, text: str) -> SampleSpec:
    metric = f"nvidia_gpu_compute_apps_{name}"
    return SampleSpec(name, kind, unit, text, labels=_LABELS, metric=metric)


def _inner(
    name: str, kind: type[int | bool], unit: str, text: str, labels: tuple[str, ...] = _LABELS
) -> SampleSpec:
    return SampleSpec(name, kind, unit, text, labels=labels, exported=False)


_SAMPLES = (
    SampleSpec(
        "memory_bytes",
        int,
        "bytes",
        "Memory of compute processes, as far as known.",
        labels=(*_LABELS, "owner"),
        metric="nvidia_gpu_compute_apps_memory_bytes",
        label_values=tuple(owner.value for owner in Owner),
    ),
    SampleSpec(
        "engine_memory_bytes",
        int,
        "bytes",
        "Memory of the engine's own processes, as far as known.",
        labels=(*_LABELS, "engine"),
        metric="nvidia_gpu_engine_memory_bytes",
    ),
    _spec("processes", int, "processes", "Compute processes with memory on the card."),
    _spec("complete", bool, "", "Whether the memory of every listed process is known."),
    _spec("invalid_pids", int, "processes", "Listed processes that the driver cannot name."),
    _spec("unaccounted_bytes", int, "bytes", "Used memory that no listed process accounts for."),
    SampleSpec("strangers", str, "", "Processes that are no engine's.", labels=_LABELS),
    SampleSpec("orphans", str, "", "Processes of an engine's earlier start.", labels=_LABELS),
    _inner("holder_bytes", int, "bytes", "Memory of one compute process.", _HOLDER),
    _inner("holder_unmeasured", bool, "", "A process whose memory nobody knows.", _HOLDER),
    _inner("memory_used_bytes", int, "bytes", "Memory in use at the same look."),
    _inner("memory_total_bytes", int, "bytes", "Memory of the card."),
    _inner("mig", bool, "", "Whether the card is divided into instances."),
)


class GpuProcesses:
    """One look at the processes of all cards a read.

    ``pid_namespace`` tells where this process is: old drivers list pids of the first namespace,
    and elsewhere nobody is looked up by such a number.
    """

    def __init__(
        self, client: Asks, box: Box, pid_namespace: Callable[[], str] = own_pid_namespace
    ) -> None:
        self._client = client
        self._box = box
        self._namespace = pid_namespace()

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Yields the samples of every card; raises ProbeError when NVML cannot be used at all."""
        try:
            answer = self._client.ask("processes", deadline - _RESERVE)
        except NvmlUnavailableError as error:
            raise ProbeError(str(error)) from error
        ours = pids_are_ours(answer.get("driver"), self._namespace)
        owner = functools.cache(self._box.owner if ours else _nobody)
        for card in answer.get("gpus", ()):
            yield from _card(card, owner)

    def close(self) -> None:
        """Give the client back."""
        self._client.close()


def _nobody(_: int) -> Owned:
    """A number that may be another process's here."""
    return Owned(Owner.UNKNOWN)


def _card(card: dict[str, Any], owner: Callable[[int], Owned]) -> Iterator[Sampled | Unread]:
    index, uuid = str(card["index"]), str(card.get("uuid", ""))
    subject = Subject(SubjectKind.GPU, uuid or f"index-{index}")
    for error in dict(card.get("errors", {})).values():
        yield Unread(subject, f"cannot read the processes of GPU {index}: {error}")
    listed = card.get("processes")
    if listed is None:
        return
    sizes, invalid = _distinct(listed)
    holders = [_Holder(pid, size, owner(pid)) for pid, size in sizes.items()]
    base = (("gpu", index), ("uuid", uuid))
    for name, value, more in (*_told(card, holders, invalid), *_each(holders)):
        yield Sampled(subject, name, value, base + more)


_Told = Iterator[tuple[str, Value, Labels]]


def _distinct(listed: Iterable[Any]) -> tuple[dict[int, int | None], int]:
    """Memory by pid, summed over MIG instances, and the number of entries without a real pid.

    One unknown part makes the whole of that process unknown.
    """
    parts: dict[tuple[int, Any, Any], int | None] = {}
    invalid = 0
    for pid, size, *instance in listed:
        if pid in _GARBAGE:
            invalid += 1
            continue
        key = (int(pid), *instance)
        known = parts.get(key)
        parts[key] = size if known is None else max(known, size or 0)
    sizes: dict[int, int | None] = {}
    for (pid, *_), size in parts.items():
        before = sizes.get(pid, 0)
        sizes[pid] = None if size is None or before is None else before + size
    return sizes, invalid


def _told(card: dict[str, Any], holders: list[_Holder], invalid: int) -> _Told:
    """What one card's list says as a whole."""
    complete = all(holder.size is not None for holder in holders)
    yield "processes", len(holders), ()
    yield "complete", complete, ()
    yield "invalid_pids", invalid, ()
    for owner in Owner:
        of_owner = [holder for holder in holders if holder.owned.owner is owner]
        yield from _sum("memory_bytes", of_owner, ("owner", owner.value))
    for engine in sorted({_engine_of(holder) for holder in holders} - {""}):
        of_engine = [holder for holder in holders if _engine_of(holder) == engine]
        yield from _sum("engine_memory_bytes", of_engine, ("engine", engine))
    used = card.get("memory_used_bytes")
    if complete and used is not None:
        held = sum(holder.size or 0 for holder in holders)
        yield "unaccounted_bytes", max(0, used - held), ()
    for name in ("memory_used_bytes", "memory_total_bytes", "mig"):
        if card.get(name) is not None:
            yield name, card[name], ()
    yield "strangers", _named(holders, Owner.FOREIGN), ()
    yield "orphans", _named(holders, Owner.ORPHAN), ()


def _each(holders: Iterable[_Holder]) -> _Told:
    """One sample a process, for whoever must know them one by one."""
    for holder in holders:
        owned = holder.owned
        more = (
            ("pid", str(holder.pid)),
            ("comm", _printable(owned.comm)),
            ("owner", owned.owner.value),
            ("engine", owned.engine),
        )
        if holder.size is None:
            yield "holder_unmeasured", True, more
        else:
            yield "holder_bytes", holder.size, more


def _sum(name: str, holders: list[_Holder], label: tuple[str, str]) -> _Told:
    """The known part; nothing when there are processes and nothing is known of any."""
    known = [holder.size for holder in holders if holder.size is not None]
    if known or not holders:
        yield name, sum(known), (label,)


def _engine_of(holder: _Holder) -> str:
    return holder.owned.engine if holder.owned.owner is Owner.ENGINE else ""


def _named(holders: Iterable[_Holder], owner: Owner) -> str:
    """The largest few in words; empty when there is none."""
    found = [holder for holder in holders if holder.owned.owner is owner]
    found.sort(key=lambda holder: (-(holder.size or 0), holder.pid))
    words = [holder.words for holder in found[:_NAMED]]
    rest = len(found) - _NAMED
    return "; ".join([*words, *([f"and {rest} more"] if rest > 0 else [])])


def _printable(comm: str) -> str:
    """A process may call itself anything, and this goes into one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in comm)


def _build(_: Settings, box: Box) -> Probe:
    return GpuProcesses(lease(), box)


PROBE = ProbeSpec(
    name="gpu_processes",
    subject_kind=SubjectKind.GPU,
    settings=Settings,
    samples=_SAMPLES,
    build=_build,
    period=2.0,
)
