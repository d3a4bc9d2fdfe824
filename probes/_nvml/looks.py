"""What is looked at on a card, how often, and through which calls. All values in base units."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from probes._nvml.card import AbsentError, Card, CodeError
from probes._nvml.names import ALL_ONES_64, degrees, distance, long, percent, word

_CORE = 0
_SM, _MEMORY = 1, 2
_SLOWDOWN, _MEMORY_MAX, _GPU_MAX = 1, 2, 3
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_UTILIZATION_SAMPLES = 1
_MEMORY_V2 = 0x02000028
_UNKNOWN_STATE = 32
_WIDEST = 32
"""Lanes; a card that fell off the bus reads 63."""
_LINKS = 36
_LINK_STATE = 165
_SLEEPS = 2
_MEMORY_TEMPERATURE, _RECOVERY_ACTION, _SLOWDOWN_MARGIN = 82, 230, 194
_THROTTLES = {
    74: "sw_power_cap",
    76: "sync_boost",
    77: "board_limit",
    79: "reliability",
    269: "sw_thermal",
    270: "hw_thermal",
    271: "hw_power_brake",
}
"""Fields that count nanoseconds (``nvml.h``)."""
_VIOLATIONS = {"sw_power_cap": 0, "sync_boost": 2, "board_limit": 3, "reliability": 5}
"""The older counters of the same, by policy: each costs as much as all fields together."""
_FIELD, _VIOLATION = "field", "violation"
_KNOWN_REASONS = 0x1FF
"""What a driver knows that does not say which reasons it knows."""
_SECOND_US = 1_000_000
_SAMPLES_PERIOD = 5.0

Values = dict[str, Any]


def _tell(values: Values, name: str, value: float | None, scale: float = 1) -> None:
    if value is not None:
        values[name] = value if scale == 1 else value * scale


def _utilization(card: Card, values: Values) -> None:
    """The mean of what the driver sampled lately; one rate says little.

    The samples cost more than everything else at every request together, so they are asked for
    every few seconds. A card that is split (MIG) has no utilisation.
    """
    if values.get("mig"):
        return
    rates = card.call("nvmlDeviceGetUtilizationRates")
    _tell(values, "memory_utilization_percent", percent(rates.memory))
    _tell(values, "utilization_percent", percent(rates.gpu))
    now = time.monotonic()
    if now >= card.samples_due:
        card.samples_due = now + _SAMPLES_PERIOD
        card.utilization = _sampled(card)
    _tell(values, "utilization_percent", card.utilization)


def _sampled(card: Card) -> float | None:
    """The mean since the last time, None when there is nothing new or no such buffer."""
    since = card.since or int(time.time() * _SECOND_US) - _SECOND_US
    try:
        _, samples = card.call("nvmlDeviceGetSamples", _UTILIZATION_SAMPLES, more=since)
    except AbsentError:
        return None
    fresh = [
        (int(one.timeStamp), int(one.sampleValue.uiVal))
        for one in samples
        if one.timeStamp > since and percent(one.sampleValue.uiVal) is not None
    ]
    card.since = max((at for at, _ in fresh), default=since)
    return round(sum(value for _, value in fresh) / len(fresh), 1) if fresh else None


def memory(card: Card, values: Values) -> None:
    """Version 2: what the driver reserves for itself is not used by anybody."""
    question = "nvmlDeviceGetMemoryInfo"
    info = card.first((question, _MEMORY_V2), (question,))
    _tell(values, "memory_used_bytes", long(info.used))
    _tell(values, "memory_total_bytes", long(info.total))
    _tell(values, "memory_reserved_bytes", long(getattr(info, "reserved", ALL_ONES_64)))


def _temperature(card: Card, values: Values) -> None:
    degree = card.first(("nvmlDeviceGetTemperatureV", _CORE), ("nvmlDeviceGetTemperature", _CORE))
    _tell(values, "temperature_celsius", degrees(degree))


def _power(card: Card, values: Values) -> None:
    milliwatts = word(card.call("nvmlDeviceGetPowerUsage"))
    _tell(values, "power_watts", None if milliwatts is None else milliwatts / 1000)


def _power_limit(card: Card, values: Values) -> None:
    milliwatts = word(card.call("nvmlDeviceGetEnforcedPowerLimit"))
    _tell(values, "power_limit_watts", None if milliwatts is None else milliwatts / 1000)


def _clock(card: Card, values: Values) -> None:
    _tell(values, "sm_clock_hertz", word(card.call("nvmlDeviceGetClockInfo", _SM)), 1_000_000)


def _memory_clock(card: Card, values: Values) -> None:
    megahertz = word(card.call("nvmlDeviceGetClockInfo", _MEMORY))
    _tell(values, "memory_clock_hertz", megahertz, 1_000_000)


def _performance(card: Card, values: Values) -> None:
    state = card.call("nvmlDeviceGetPerformanceState")
    _tell(values, "performance_state", state if 0 <= state < _UNKNOWN_STATE else None)


def _reasons(card: Card, values: Values) -> None:
    """The raw mask of what holds the clocks down."""
    values["reasons"] = card.first(
        ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",)
    )


def _reasons_supported(card: Card, values: Values) -> None:
    """Which bits of that mask this card can set."""
    values["reasons_supported"] = _KNOWN_REASONS
    with contextlib.suppress(AbsentError):
        values["reasons_supported"] = card.first(
            ("nvmlDeviceGetSupportedClocksEventReasons",),
            ("nvmlDeviceGetSupportedClocksThrottleReasons",),
        )


def _fields(card: Card, values: Values) -> None:
    found = card.fields(_MEMORY_TEMPERATURE, _RECOVERY_ACTION)
    _tell(values, "memory_temperature_celsius", degrees(found.get(_MEMORY_TEMPERATURE, 0)))
    if _RECOVERY_ACTION in found:
        _tell(values, "recovery_action", word(found[_RECOVERY_ACTION]))


def _rows(card: Card, values: Values) -> None:
    _, uncorrected, pending, failed = card.call("nvmlDeviceGetRemappedRows")
    _tell(values, "remapped_rows_uncorrected", word(uncorrected))
    values["remap_pending"], values["remap_failed"] = bool(pending), bool(failed)


_LINK = {
    "pcie_link_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_link_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_link_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_link_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
}


def _link(card: Card, values: Values) -> None:
    for name, question in _LINK.items():
        with contextlib.suppress(AbsentError):
            value = card.call(question)
            _tell(values, name, value if 0 < value <= _WIDEST else None)


def mig(card: Card, values: Values) -> None:
    """Whether the card is split into instances."""
    values["mig"] = card.call("nvmlDeviceGetMigMode")[0] == 1


def _throttle(card: Card, values: Values) -> None:
    """Nanoseconds since the driver was loaded; counters see what samples miss.

    A reason is counted by a field, or by a policy where the card has no such field. Which of them
    is settled by the first that tells: they may not agree, and a counter never goes back.
    """
    counts: dict[str, int | None] = {}
    failed: list[CodeError] = []
    with contextlib.suppress(AbsentError):
        found, errors = card.fields_and_failures(*_THROTTLES)
        failed += errors.values()
        undecided = {_THROTTLES[one] for one in errors if isinstance(one, int)}
        counts.update(dict.fromkeys(undecided))
        counts.update({_THROTTLES[k]: long(n) for k, n in found.items() if isinstance(k, int)})
    seconds: dict[str, float] = {}
    for reason in _THROTTLES.values():
        try:
            _counted(card, reason, counts, seconds)
        except CodeError as error:
            failed.append(error)
    if seconds:
        values["throttle_seconds"] = seconds
    elif failed:
        raise failed[0]


def _counted(
    card: Card, reason: str, fields: Mapping[str, int | None], seconds: dict[str, float]
) -> None:
    """One reason from its source. ``fields`` has None for what may be told another time."""
    source = card.sources.get(reason) or (_FIELD if reason in fields else _VIOLATION)
    if source == _FIELD:
        _tell(seconds, reason, fields.get(reason), 1e-9)
    elif reason in _VIOLATIONS:
        with contextlib.suppress(AbsentError):
            status = card.call("nvmlDeviceGetViolationStatus", _VIOLATIONS[reason])
            _tell(seconds, reason, long(status.violationTime), 1e-9)
    if reason in seconds:
        card.sources[reason] = source


def _ecc(card: Card, values: Values) -> None:
    """Counts since the driver was loaded, when ECC is on."""
    if not card.call("nvmlDeviceGetEccMode")[0]:
        return
    for name, kind in (
        ("ecc_corrected_errors", _CORRECTED),
        ("ecc_uncorrected_errors", _UNCORRECTED),
    ):
        with contextlib.suppress(AbsentError):
            _tell(values, name, long(card.call("nvmlDeviceGetTotalEccErrors", kind, _VOLATILE)))


def _replays(card: Card, values: Values) -> None:
    _tell(values, "pcie_replays", word(card.call("nvmlDeviceGetPcieReplayCounter")))


def _margin(card: Card, values: Values) -> None:
    margin = distance(card.call("nvmlDeviceGetMarginTemperature"))
    _tell(values, "temperature_margin_celsius", margin)


def _energy(card: Card, values: Values) -> None:
    millijoules = long(card.call("nvmlDeviceGetTotalEnergyConsumption"))
    _tell(values, "energy_joules", None if millijoules is None else millijoules / 1000)


def _fabric(card: Card, values: Values) -> None:
    _tell(values, "fabric_state", card.fabric() or None)


def _links(card: Card, values: Values) -> None:
    """Links that are up; one that sleeps is healthy. Some of them are no number of links."""
    found = card.fields(*((_LINK_STATE, link) for link in range(_LINKS)), whole=True)
    if found:
        values["nvlinks_active"] = sum(1 <= state <= _SLEEPS for state in found.values())


def _threshold(name: str, which: int) -> Callable[[Card, Values], None]:
    def read(card: Card, values: Values) -> None:
        _tell(values, name, degrees(card.call("nvmlDeviceGetTemperatureThreshold", which)))

    return read


def _slowdown_margin(card: Card, values: Values) -> None:
    found = card.fields(_SLOWDOWN_MARGIN)
    if _SLOWDOWN_MARGIN in found:
        _tell(values, "temperature_slowdown_margin_celsius", distance(found[_SLOWDOWN_MARGIN]))


def _max_clock(card: Card, values: Values) -> None:
    megahertz = word(card.call("nvmlDeviceGetMaxClockInfo", _SM))
    _tell(values, "sm_clock_max_hertz", megahertz, 1_000_000)


@dataclass(frozen=True, slots=True)
class Look:
    """One reading. ``period`` in seconds, 0 for every request; what it writes holds so long."""

    name: str
    period: float
    read: Callable[[Card, Values], None]


LOOKS = (
    Look("MIG mode", 30, mig),
    Look("throttle counters", 5, _throttle),
    Look("ECC", 10, _ecc),
    Look("PCIe replays", 10, _replays),
    Look("temperature margin", 10, _margin),
    Look("power limit", 10, _power_limit),
    Look("remapped rows", 10, _rows),
    Look("PCIe link", 10, _link),
    Look("energy", 30, _energy),
    Look("fabric", 30, _fabric),
    Look("NVLink", 30, _links),
    Look("slowdown temperature", 3600, _threshold("temperature_slowdown_celsius", _SLOWDOWN)),
    Look("temperature limit", 3600, _threshold("temperature_limit_celsius", _GPU_MAX)),
    Look("memory limit", 3600, _threshold("memory_temperature_limit_celsius", _MEMORY_MAX)),
    Look("slowdown margin", 3600, _slowdown_margin),
    Look("highest clock", 3600, _max_clock),
    Look("reasons supported", 3600, _reasons_supported),
    Look("utilization", 0, _utilization),
    Look("memory", 0, memory),
    Look("temperature", 0, _temperature),
    Look("power", 0, _power),
    Look("clock", 0, _clock),
    Look("memory clock", 0, _memory_clock),
    Look("performance state", 0, _performance),
    Look("reasons", 0, _reasons),
    Look("fields", 0, _fields),
)
"""Those that cost a driver's call of a millisecond come first and seldom (H200: energy 3.2 ms,
highest clock 1.2, margin 0.8 to 6, throttle counters 0.7, the others 0.2 at most); the samples of
the utilisation, 2.8 ms, have a period of their own. What hardly ever changes is not asked every
second either, however cheap: a call costs this process as much as the driver."""
