"""What every GPU does, and how it is: one look at all cards a read, through NVML's worker.

What a card, its driver or its library does not have is absent. The units are those of the names;
where a number comes from is in ``probes/_nvml/looks.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from probes._nvml.answers import finite
from probes._nvml.client import Asks, NvmlUnavailableError, lease
from probes._nvml.names import LOST, NEEDS_RESET, REASONS
from watchdog.contracts import Box, Probe, ProbeError, ProbeSpec, SampleSpec
from watchdog.core.model import Labels, Sampled, Seconds, Subject, SubjectKind, Unread

_LABELS = ("gpu", "uuid")
_REASON = (*_LABELS, "reason")
_RESERVE = 0.2
"""Seconds between giving up on the worker and the probe's own deadline."""
_OTHER = "other"
_STATES = {LOST: "lost", NEEDS_RESET: "needs reset"}

_Number = type[bool] | type[int] | type[float]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set beyond period and timeout."""


def _specs(kind: _Number, unit: str, **texts: str) -> tuple[SampleSpec, ...]:
    return tuple(
        SampleSpec(name, kind, unit, text, labels=_LABELS, metric=f"nvidia_gpu_{name}")
        for name, text in texts.items()
    )


def _counters(kind: _Number, unit: str, **texts: str) -> tuple[SampleSpec, ...]:
    return tuple(
        SampleSpec(name, kind, unit, text, True, _LABELS, f"nvidia_gpu_{name}_total")  # noqa: FBT003
        for name, text in texts.items()
    )


_MEASURED = (
    *_specs(
        float,
        "percent",
        utilization_percent="Time with at least one kernel running, since the last look.",
        memory_utilization_percent="Time in which memory was read or written.",
    ),
    *_specs(
        float,
        "bytes",
        memory_used_bytes="Memory in use, without what the driver reserves.",
        memory_total_bytes="Memory of the card.",
        memory_reserved_bytes="Memory that the driver keeps for itself.",
    ),
    *_specs(
        float,
        "celsius",
        temperature_celsius="Temperature of the core.",
        memory_temperature_celsius="Temperature of the memory.",
        temperature_margin_celsius="Distance of the core to where clocks are reduced.",
        temperature_slowdown_celsius="Core temperature at which hardware reduces clocks.",
        temperature_limit_celsius="Highest core temperature for operation.",
        memory_temperature_limit_celsius="Highest memory temperature for operation.",
        temperature_slowdown_margin_celsius="Margin at which hardware reduces clocks.",
    ),
    *_specs(
        float,
        "watts",
        power_watts="Power draw.",
        power_limit_watts="Power limit that is enforced.",
    ),
    *_specs(
        float,
        "hertz",
        sm_clock_hertz="Clock of the multiprocessors.",
        sm_clock_max_hertz="Highest clock of the multiprocessors.",
        memory_clock_hertz="Clock of the memory.",
    ),
    *_specs(
        int,
        "",
        performance_state="Performance state, 0 is the fastest.",
        remapped_rows_uncorrected="Memory rows replaced after uncorrectable errors.",
        pcie_link_generation="PCIe generation of the link; drops at idle.",
        pcie_link_generation_max="PCIe generation that card and slot can do.",
        pcie_link_width="PCIe lanes in use.",
        pcie_link_width_max="PCIe lanes that card and slot can use.",
        recovery_action="What the driver wants done, 0 is nothing (nvml.h).",
        fabric_state="NVSwitch fabric: 1 not started, 2 in progress, 3 completed.",
        nvlinks_active="NVLink links that are up or asleep.",
    ),
    *_specs(
        bool,
        "",
        remap_pending="A row is replaced at the next reset.",
        remap_failed="A row could not be replaced.",
        mig="The card is split into instances.",
    ),
    *_counters(
        int,
        "errors",
        ecc_corrected_errors="Corrected memory errors since the driver was loaded.",
        ecc_uncorrected_errors="Uncorrectable memory errors since the driver was loaded.",
        pcie_replays="PCIe packets that were sent again.",
    ),
    *_counters(float, "joules", energy_joules="Energy used since the driver was loaded."),
)

_THROTTLED = SampleSpec(
    "throttled",
    bool,
    "",
    "Whether clocks are held down, by reason.",
    labels=_REASON,
    metric="nvidia_gpu_throttled",
    label_values=(*REASONS.values(), _OTHER),
)
_THROTTLE_SECONDS = SampleSpec(
    "throttle_seconds",
    float,
    "seconds",
    "Time for which clocks were held down, by reason.",
    counter=True,
    labels=_REASON,
    metric="nvidia_gpu_throttle_seconds_total",
    label_values=tuple(REASONS.values()),
)
_STATE = SampleSpec(
    "state", str, "", "ok, lost, needs reset, or the driver's error.", labels=_LABELS
)

_WORDS = tuple(
    SampleSpec(name, str, "", text, labels=_LABELS, metric="nvidia_gpu_info")
    for name, text in (
        ("name", "Product name."),
        ("driver_version", "Version of the driver."),
        ("cuda_version", "Newest CUDA version that the driver supports."),
    )
)


class Gpu:
    """One look at all cards a read."""

    def __init__(self, client: Asks) -> None:
        self._client = client

    def read(self, deadline: Seconds) -> Iterable[Sampled | Unread]:
        """Yields the samples of every card; raises ProbeError when NVML cannot be used at all."""
        try:
            answer = self._client.ask("cards", deadline - _RESERVE)
        except NvmlUnavailableError as error:
            raise ProbeError(str(error)) from error
        for card in answer.get("gpus", ()):
            yield from _card(card, answer)

    def close(self) -> None:
        """Give the client back."""
        self._client.close()


def _card(card: dict[str, Any], answer: dict[str, Any]) -> Iterator[Sampled | Unread]:
    index, uuid = str(card["index"]), str(card.get("uuid", ""))
    subject = Subject(SubjectKind.GPU, uuid or f"index-{index}")
    labels = (("gpu", index), ("uuid", uuid))
    errors: dict[str, str] = card["errors"]
    for look, error in errors.items():
        what = f"GPU {index}" if not look else f"GPU {index} ({look})"
        yield Unread(subject, f"cannot read {what}: {error}")
    yield Sampled(subject, _STATE.name, _state(errors), labels)
    yield from _measured(card, subject, labels)
    yield from _reasons(card, subject, labels)
    if "" not in errors:
        words = (card.get("name"), answer.get("driver"), answer.get("cuda"))
        for spec, word in zip(_WORDS, words, strict=True):
            if isinstance(word, str):
                yield Sampled(subject, spec.name, word, labels)


def _state(errors: dict[str, str]) -> str:
    """A card that is lost says so in any of its answers."""
    told = set(errors.values())
    for words, state in _STATES.items():
        if words in told:
            return state
    return errors.get("", "ok")


def _measured(card: dict[str, Any], subject: Subject, labels: Labels) -> Iterator[Sampled]:
    for spec in _MEASURED:
        value = card.get(spec.name)
        if value is not None and finite(value):
            yield Sampled(subject, spec.name, spec.type(value), labels)


def _reasons(card: dict[str, Any], subject: Subject, labels: Labels) -> Iterator[Sampled]:
    """What holds the clocks down: the bits that this card can set, and the times that it counts."""
    if "reasons" in card:
        mask = int(card["reasons"])
        can = int(card.get("reasons_supported", 0)) | mask
        known = {name: bool(mask & bit) for bit, name in REASONS.items() if can & bit}
        for reason, active in {**known, _OTHER: bool(mask & ~sum(REASONS))}.items():
            yield Sampled(subject, _THROTTLED.name, active, (*labels, ("reason", reason)))
    for reason, seconds in card.get("throttle_seconds", {}).items():
        yield Sampled(
            subject, _THROTTLE_SECONDS.name, float(seconds), (*labels, ("reason", reason))
        )


def _build(_: Settings, _box: Box) -> Probe:
    return Gpu(lease())


PROBE = ProbeSpec(
    name="gpu",
    subject_kind=SubjectKind.GPU,
    settings=Settings,
    samples=(*_MEASURED, _THROTTLED, _THROTTLE_SECONDS, _STATE, *_WORDS),
    build=_build,
)
