"""What every GPU does: utilisation, memory, temperature, power, clock. Through NVML's worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from probes._nvml.client import NvmlClient, NvmlUnavailableError
from watchdog.contracts import Probe, ProbeError, ProbeSpec, SampleSpec
from watchdog.core.model import Sampled, Seconds, Subject, SubjectKind, Unread

_LABELS = ("gpu", "uuid")
_RESERVE = 0.2
"""Seconds between giving up on the worker and the probe's own deadline."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set beyond period and timeout."""


def _spec(name: str, unit: str, text: str) -> SampleSpec:
    return SampleSpec(name, float, unit, text, labels=_LABELS, metric=f"nvidia_gpu_{name}")


_MEASURED = (
    _spec("utilization_percent", "percent", "Time with at least one kernel running."),
    _spec("memory_used_bytes", "bytes", "Memory in use, without what the driver reserves."),
    _spec("memory_total_bytes", "bytes", "Memory of the card."),
    _spec("temperature_celsius", "celsius", "Temperature of the core."),
    _spec("power_watts", "watts", "Power draw."),
    _spec("sm_clock_hertz", "hertz", "Clock of the multiprocessors."),
)

_WORDS = tuple(
    SampleSpec(name, str, "", text, labels=_LABELS)
    for name, text in (
        ("name", "Product name."),
        ("driver_version", "Version of the driver."),
        ("cuda_version", "Newest CUDA version that the driver supports."),
    )
)


class Gpu:
    """One sweep over all cards a read."""

    def __init__(self, client: NvmlClient) -> None:
        self._client = client

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Yields the samples of every card; raises ProbeError when NVML cannot be used at all."""
        try:
            answer = self._client.sweep(deadline - _RESERVE)
        except NvmlUnavailableError as error:
            raise ProbeError(str(error)) from error
        for card in answer.get("gpus", ()):
            yield from _card(card, answer)

    def close(self) -> None:
        """End the worker."""
        self._client.close()


def _card(card: dict[str, Any], answer: dict[str, Any]) -> Iterator[Sampled | Unread]:
    index = str(card["index"])
    subject = Subject(SubjectKind.GPU, str(card.get("uuid", f"index-{index}")))
    for error in dict(card.get("errors", {})).values():
        yield Unread(subject, f"cannot read GPU {index}: {error}")
    labels = (("gpu", index), ("uuid", str(card.get("uuid", ""))))
    for spec in _MEASURED:
        value = card.get(spec.name)
        if isinstance(value, int | float):
            yield Sampled(subject, spec.name, float(value), labels)
    if "name" in card and "" not in card["errors"]:
        words = (card["name"], answer.get("driver"), answer.get("cuda"))
        for spec, word in zip(_WORDS, words, strict=True):
            if isinstance(word, str):
                yield Sampled(subject, spec.name, word, labels)


def _build(_: Settings, _target: object) -> Probe:
    return Gpu(NvmlClient())


PROBE = ProbeSpec(
    name="gpu",
    subject_kind=SubjectKind.GPU,
    settings=Settings,
    samples=(*_MEASURED, *_WORDS),
    build=_build,
)
