"""Builders of readings about the box, for tests of the core: cards, drivers, Xid errors."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog.core.model import (
    HOST,
    Labels,
    Reading,
    Sampled,
    Seconds,
    Subject,
    SubjectKind,
    Value,
    engine_subject,
)

CLASSES = ("application", "reset", "reboot", "hardware", "ignored")

HEALTHY: dict[str, Value] = {
    "state": "ok",
    "utilization_percent": 0.0,
    "memory_utilization_percent": 0.0,
    "temperature_celsius": 40.0,
    "temperature_limit_celsius": 87.0,
    "power_watts": 80.0,
    "power_limit_watts": 700.0,
    "sm_clock_hertz": 345e6,
    "sm_clock_max_hertz": 1980e6,
    "performance_state": 0,
    "recovery_action": 0,
    "ecc_uncorrected_errors": 0,
    "remap_pending": False,
    "remap_failed": False,
    "pcie_link_width": 16,
    "pcie_link_width_max": 16,
    "pcie_link_generation": 5,
    "pcie_replays": 0,
    "nvlinks_active": 18,
    "fabric_state": 3,
    "mig": False,
}
"""An idle H200, as the probe ``gpu`` would read it."""

IDLE_REASONS = {
    **dict.fromkeys(("sw_power_cap", "hw_thermal", "sw_thermal", "other"), False),
    "idle": True,
}


def card(index: int = 0) -> Subject:
    """A GPU."""
    return Subject(SubjectKind.GPU, f"GPU-{index:08x}")


def of(subject: Subject, index: int) -> Labels:
    """The labels of a GPU's samples."""
    return (("gpu", str(index)), ("uuid", subject.name))


def gpu(
    at: Seconds,
    values: Mapping[str, Value] | None = None,
    *,
    reasons: Mapping[str, bool] | None = None,
    throttled: Mapping[str, float] | None = None,
) -> Reading:
    """What ``gpu`` reads of one healthy, idle card, changed by ``values``.

    ``throttled`` are seconds of slowdown by reason, ``reasons`` those in force.
    """
    return cards(at, {0: values or {}}, reasons=reasons, throttled=throttled)


def cards(
    at: Seconds,
    changes: Mapping[int, Mapping[str, Value]],
    *,
    reasons: Mapping[str, bool] | None = None,
    throttled: Mapping[str, float] | None = None,
) -> Reading:
    """The same of several cards, by index."""
    found: list[Sampled] = []
    for index, values in changes.items():
        subject = card(index)
        labels = of(subject, index)
        found += [Sampled(subject, n, v, labels) for n, v in {**HEALTHY, **values}.items()]
        for name, on in (IDLE_REASONS if reasons is None else reasons).items():
            found.append(Sampled(subject, "throttled", on, (*labels, ("reason", name))))
        slow = {"hw_thermal": 0.0, "sw_thermal": 0.0, "hw_power_brake": 0.0, **(throttled or {})}
        for name, seconds in slow.items():
            found.append(Sampled(subject, "throttle_seconds", seconds, (*labels, ("reason", name))))
    return Reading("gpu", at, 0.0, tuple(found))


def lost(at: Seconds, index: int = 0, state: str = "lost") -> Reading:
    """What ``gpu`` reads of a card that answers nothing more."""
    subject = card(index)
    return Reading("gpu", at, 0.0, (Sampled(subject, "state", state, of(subject, index)),))


def holders(at: Seconds, engines: dict[str, tuple[int, ...]], **owners: int) -> Reading:
    """What ``gpu_processes`` reads: the cards of each engine, and bytes on card 0 by owner."""
    found = []
    for name, indices in engines.items():
        for index in indices:
            subject = card(index)
            labels = (*of(subject, index), ("engine", name))
            found.append(Sampled(subject, "engine_memory_bytes", 1 << 30, labels))
    for owner in ("engine", "orphan", "foreign", "unknown"):
        labels = (*of(card(), 0), ("owner", owner))
        found.append(Sampled(card(), "memory_bytes", owners.get(owner, 0), labels))
    orphans = f"{owners['orphan']} bytes" if "orphan" in owners else ""
    found.append(Sampled(card(), "orphans", orphans, of(card(), 0)))
    return Reading("gpu_processes", at, 0.0, tuple(found))


def xids(
    at: Seconds,
    counts: dict[str, int] | None = None,
    own: dict[str, int] | None = None,
    *,
    engine: str = "main",
    index: int = 0,
) -> Reading:
    """What ``xid`` reads: ``counts`` by class on a card, ``own`` those that are the engine's."""
    subject = card(index)
    labels = of(subject, index)
    found = [
        Sampled(subject, "class_errors", (counts or {}).get(kind, 0), (*labels, ("class", kind)))
        for kind in CLASSES
    ]
    found.append(Sampled(HOST, "source_trouble", ""))
    for kind, count in {**dict.fromkeys(CLASSES, 0), **own}.items() if own else ():
        both = (("engine", engine), ("class", kind))
        found.append(Sampled(engine_subject(engine), "engine_errors", count, both))
    for kind in list(own or ())[-1:]:
        text = f"Xid of class {kind}"
        found.append(Sampled(engine_subject(engine), "engine_last", text, (("engine", engine),)))
    return Reading("xid", at, 0.0, tuple(found))


def driver(at: Seconds, values: Mapping[str, Value] | None = None) -> Reading:
    """What ``driver`` reads of a driver that is well, changed by ``values``."""
    usual: dict[str, Value] = {
        "nvml": "ok",
        "unresponsive_seconds": 0.0,
        "device_trouble": "",
        "fallen_cards": "",
    }
    usual |= {"versions_match": True, "gpus_expected": 1, "gpus_found": 1, **(values or {})}
    pairs = usual.items()
    return Reading("driver", at, 0.0, tuple(Sampled(HOST, name, value) for name, value in pairs))
