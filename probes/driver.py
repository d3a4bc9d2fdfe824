"""The driver: its module against its library, its nodes and cards, and what the engines need of it.

All but NVML comes from files, and no device is opened: what hangs in the driver is NVML's worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Protocol

import msgspec

from probes._nvml.client import PREFIX, NvmlUnavailableError, lease
from watchdog.contracts import Box, EngineTarget, Probe, ProbeSpec, SampleSpec, of_engine
from watchdog.core.model import (
    HOST,
    Sampled,
    Seconds,
    SubjectKind,
    Unread,
)
from watchdog.nvidia import devices, engine_cuda, versions
from watchdog.nvidia.fit import engine_fit

_RESERVE: Seconds = 0.2
"""Between giving up on NVML and the probe's own deadline."""
_ENGINE = ("engine",)
_OK = "ok"
_UNRESPONSIVE = "unresponsive"
_GONE = "GPU not found"
"""NVML's words for a card that it has told before and does not count any more."""
_STUCK = "D"
_LONGEST = 300
"""Characters of a list in words: eight cards with one trouble each fit."""

_Toolkit = Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)?$")]
_Version = Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)+$")]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``floors``: the driver that a CUDA needs where the table lacks it, ``"13.5" = "620.10"``."""

    floors: dict[_Toolkit, _Version] = msgspec.field(default_factory=dict)


class Nvml(Protocol):
    """What is used of ``NvmlClient``."""

    @property
    def unanswered_since(self) -> Seconds | None:
        """When the first of the present row of hanging requests began."""
        ...

    def ask(self, request: str, deadline: Seconds) -> dict[str, Any]:
        """One answer; raises NvmlUnavailableError."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


def _words(name: str, text: str) -> SampleSpec:
    return SampleSpec(name, str, "", text)


def _of_engine(name: str, kind: type[bool | str], text: str) -> SampleSpec:
    return SampleSpec(name, kind, "", text, labels=_ENGINE, subject=SubjectKind.ENGINE)


_SAMPLES = (
    _words("module_version", "Version of the kernel module that is loaded."),
    _words("library_version", "Version of the user library that a new process gets."),
    SampleSpec("versions_match", bool, "", "Whether module and library have one version."),
    _words("nvml", '"ok", "unresponsive", or why NVML cannot be used.'),
    SampleSpec("unresponsive_seconds", float, "seconds", "Time since NVML last answered."),
    SampleSpec("gpus_expected", int, "", "Cards on the bus that NVML should find here."),
    SampleSpec("gpus_found", int, "", "Cards that NVML finds."),
    _words("device_trouble", "What keeps CUDA from starting on any card here."),
    _words("fallen_cards", "Cards that no longer answer on the bus, by bus id."),
    _of_engine(
        "stale_libraries",
        bool,
        "Whether the engine runs on libraries of the driver that were replaced since.",
    ),
    _of_engine("stale_library_names", str, "The replaced libraries."),
    _of_engine("fits", bool, "Whether the driver can run the engine's CUDA at all."),
    _of_engine("misfit", str, "Why it cannot, or what is limited."),
    _of_engine("cuda_wanted", str, "The CUDA that the engine's torch was built for."),
    _of_engine("cpu_only", bool, "Whether the engine is known to use no CUDA."),
)


class Driver:
    """One look at the driver's files, one question to NVML, and one look at every engine."""

    def __init__(self, settings: Settings, client: Nvml, box: Box, root: str = "/") -> None:
        self._floors, self._client, self._box, self._root = settings.floors, client, box, root

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Yields what is known. Files come first: NVML may take all the time there is."""
        yield from self._versions()
        yield from self._devices()
        for engine in self._box.engines():
            yield from self._engine(engine)
        yield from self._nvml(deadline - _RESERVE)

    def close(self) -> None:
        """Give the client back."""
        self._client.close()

    def _versions(self) -> Iterator[Sampled]:
        module = versions.loaded_module(self._root)
        library = versions.user_library(os.environ, self._root)
        if module:
            yield Sampled(HOST, "module_version", module)
        if library:
            yield Sampled(HOST, "library_version", library)
        if module and library:
            yield Sampled(HOST, "versions_match", module == library)

    def _devices(self) -> Iterator[Sampled]:
        """Troubles at every reading, so that what was wrong is seen to be over."""
        yield Sampled(HOST, "device_trouble", _line("; ", devices.node_troubles(self._root)))
        yield Sampled(HOST, "fallen_cards", _line(", ", devices.fallen(self._root)))
        count = devices.expected(self._root)
        if count is not None and versions.loaded_module(self._root):
            yield Sampled(HOST, "gpus_expected", count)

    def _nvml(self, deadline: Seconds) -> Iterator[Sampled]:
        try:
            answer = self._client.ask("cards", deadline)
        except NvmlUnavailableError as error:
            yield from self._unanswered(str(error))
            return
        yield Sampled(HOST, "nvml", _OK)
        yield Sampled(HOST, "unresponsive_seconds", 0.0)
        found = (card for card in answer.get("gpus", ()) if not _out_of_count(card))
        yield Sampled(HOST, "gpus_found", sum(1 for _ in found))

    def _unanswered(self, why: str) -> Iterator[Sampled]:
        since = self._client.unanswered_since
        words = why.removeprefix(PREFIX) if since is None else _UNRESPONSIVE
        silent = 0.0 if since is None else max(0.0, time.monotonic() - since)
        yield Sampled(HOST, "nvml", words)
        yield Sampled(HOST, "unresponsive_seconds", silent)

    def _engine(self, engine: EngineTarget) -> Iterator[Sampled]:
        wish = engine_cuda.wish(engine.command, engine.environment, self._root)
        if wish.cuda:
            yield of_engine(engine, "cuda_wanted", wish.cuda)
        if wish.cpu_only is not None:
            yield of_engine(engine, "cpu_only", wish.cpu_only)
        fit = engine_fit(wish.cuda, engine.environment, self._root, self._floors)
        if fit.fits is not None:
            yield of_engine(engine, "fits", fit.fits)
            yield of_engine(engine, "misfit", fit.words)
        stale = versions.stale_libraries(_readable(engine), self._root)
        if stale is not None:
            yield of_engine(engine, "stale_libraries", bool(stale))
            yield of_engine(engine, "stale_library_names", _line(", ", stale))


def _readable(engine: EngineTarget) -> Iterator[int]:
    """Not those in uninterruptible sleep, which may hold the lock that reading maps waits for."""
    return (process.pid for process in engine.processes() if process.state != _STUCK)


def _out_of_count(card: dict[str, Any]) -> bool:
    """Whether NVML knew the card once and does not count it any more."""
    return bool(card.get("errors", {}).get("") == _GONE)


def _line(between: str, words: Iterable[str]) -> str:
    whole = between.join(words)
    return whole if len(whole) <= _LONGEST else f"{whole[: _LONGEST - 1]}…"


def _build(settings: Settings, box: Box) -> Probe:
    return Driver(settings, lease(), box)


PROBE = ProbeSpec(
    name="driver",
    subject_kind=SubjectKind.HOST,
    settings=Settings,
    samples=_SAMPLES,
    build=_build,
    period=10.0,
)
