"""What makes the default rules about cards fire and clear."""

from __future__ import annotations

from dataclasses import replace

from tests.support.box import IDLE_REASONS, card, gpu, holders, lost, of, xids
from tests.support.core import NAME
from tests.support.rule_stories import Tale, times
from watchdog.core.model import Reading, Sampled, Seconds, Value

_MINUTE, _HOUR = 60.0, 3600.0
_SPAN = 5 * _MINUTE
_GIB = 1 << 30


def _gpu(
    rule: str,
    changes: dict[str, Value],
    hold: Seconds,
    clear: Seconds,
    *blind: tuple[str, ...],
) -> Tale:
    """Of a rule about what ``gpu`` reads: ``changes`` for ``hold`` seconds after it was well once.

    It is well again for ``clear`` seconds. ``blind`` are sets of samples that decide, by default
    each that changes.
    """
    return Tale(
        rule,
        fires=(gpu(1.0), *(gpu(at, changes) for at in times(2.0, 2.0 + hold))),
        clears=tuple(gpu(at) for at in times(100.0, 100.0 + clear)),
        blind=tuple(
            tuple(f"gpu.{name}" for name in names)
            for names in blind or tuple((name,) for name in changes)
        ),
    )


def _slowed(rule: str, reason: str, limit: int) -> Tale:
    """A second of slowdown each second until it is more than ``limit``; then none any more."""
    worst = float(limit + 1)
    return Tale(
        rule,
        fires=tuple(gpu(at, throttled={reason: at - 1.0}) for at in times(1.0, worst + 1.0, 1.0)),
        clears=tuple(
            gpu(at, throttled={reason: worst}) for at in times(worst + 5, worst + 15 + 2 * _SPAN)
        ),
        blind=(("gpu.throttle_seconds",),),
        drains=True,
    )


def _uncounted(at: Seconds, *, slow: bool) -> Reading:
    """A card of a driver that does not count slowdown."""
    one = gpu(at, reasons={"hw_thermal": slow, "hw_power_brake": False, "other": False})
    return replace(one, samples=tuple(s for s in one.samples if s.sample != "throttle_seconds"))


_SLOW: dict[str, Value] = {
    "utilization_percent": 100.0,
    "sm_clock_hertz": 210e6,
    "power_watts": 84.0,
}
_NO_REASONS = dict.fromkeys(IDLE_REASONS, False)


def _downclocked(at: Seconds, clock: float = 210e6) -> Reading:
    """A busy card that needs little power."""
    return gpu(at, _SLOW | {"sm_clock_hertz": clock}, reasons=_NO_REASONS)


_SLOWDOWN = (
    _slowed("gpu-thermal-slowdown", "hw_thermal", 3),
    _slowed("gpu-thermal-slowdown", "sw_thermal", 3),
    _slowed("gpu-thermal-critical", "hw_thermal", 30),
    _slowed("gpu-power-brake", "hw_power_brake", 3),
    Tale(
        "gpu-slowdown-uncounted",
        fires=tuple(_uncounted(at, slow=True) for at in times(1.0, 31.0)),
        clears=tuple(_uncounted(at, slow=False) for at in times(40.0, 340.0)),
        blind=(("gpu.throttled",),),
    ),
    _gpu("gpu-hot", {"temperature_celsius": 88.0}, _MINUTE, _SPAN),
    _gpu("gpu-hot", {"temperature_celsius": 88.0}, _MINUTE, _SPAN, ("temperature_limit_celsius",)),
    Tale(
        "gpu-unexplained-downclock",
        fires=tuple(_downclocked(at) for at in times(1.0, 61.0)),
        clears=tuple(_downclocked(at, 1980e6) for at in times(70.0, 130.0)),
        blind=(("gpu.sm_clock_hertz",), ("gpu.sm_clock_max_hertz",)),
        silent=(
            ("gpu.utilization_percent",),
            ("gpu.power_watts",),
            ("gpu.power_limit_watts",),
            ("gpu.performance_state",),
            ("gpu.throttled",),
        ),
    ),
)

_MEMORY_CELLS = (
    Tale(
        "gpu-ecc-uncorrected",
        fires=(gpu(1.0), gpu(2.0, {"ecc_uncorrected_errors": 1})),
        clears=tuple(
            gpu(at, {"ecc_uncorrected_errors": 1})
            for at in times(600.0, 24.5 * _HOUR, 10 * _MINUTE)
        ),
        blind=(("gpu.ecc_uncorrected_errors",),),
        drains=True,
    ),
    _gpu("gpu-remap-pending", {"remap_pending": True}, 0, 0),
    _gpu("gpu-remap-failed", {"remap_failed": True}, 0, 0),
)

_LINKS = (
    _gpu("gpu-pcie-degraded", {"pcie_link_width": 8}, _MINUTE, _MINUTE),
    _gpu("gpu-pcie-narrow", {"pcie_link_width": 8}, _MINUTE, _MINUTE),
    _gpu("gpu-pcie-narrow", {"pcie_link_width": 8}, _MINUTE, _MINUTE, ("pcie_link_width_max",)),
    Tale(
        "gpu-pcie-replays",
        fires=(gpu(1.0), gpu(2.0, {"pcie_replays": 155}), gpu(3.0, {"pcie_replays": 156})),
        clears=tuple(gpu(at, {"pcie_replays": 156}) for at in times(10.0, 20.0 + 2 * _SPAN)),
        blind=(("gpu.pcie_replays",),),
        drains=True,
    ),
    _gpu("gpu-nvlink-down", {"nvlinks_active": 17}, _MINUTE, _MINUTE),
    _gpu("gpu-fabric-not-ready", {"fabric_state": 2}, _MINUTE, 0),
    _gpu("gpu-fabric-not-ready", {"fabric_state": 1}, _MINUTE, 0),
)


def _listed(at: Seconds, sample: str, value: Value) -> Reading:
    """One thing that ``gpu_processes`` reads."""
    return Reading("gpu_processes", at, 0.0, (Sampled(card(), sample, value, of(card(), 0)),))


def _tenants(at: Seconds, **owners: int) -> Reading:
    return holders(at, {NAME: (0,)}, **owners)


_TENANTS = (
    Tale(
        "gpu-orphan-memory",
        fires=tuple(_tenants(at, orphan=_GIB) for at in times(1.0, 11.0, 2.0)),
        clears=(_tenants(20.0),),
        blind=(("gpu_processes.orphans",),),
    ),
    Tale(
        "gpu-foreign-memory",
        fires=tuple(_tenants(at, foreign=2 * _GIB) for at in times(1.0, 31.0, 2.0)),
        clears=tuple(_tenants(at, foreign=_GIB) for at in times(40.0, 50.0, 2.0)),
        blind=(("gpu_processes.memory_bytes",),),
    ),
    Tale(
        "gpu-memory-partly-known",
        fires=tuple(_listed(at, "complete", False) for at in times(1.0, 61.0)),  # noqa: FBT003
        clears=tuple(_listed(at, "complete", True) for at in times(70.0, 130.0)),  # noqa: FBT003
        blind=(("gpu_processes.complete",),),
    ),
    Tale(
        "gpu-invalid-pids",
        fires=tuple(_listed(at, "invalid_pids", 1) for at in times(1.0, 61.0)),
        clears=tuple(_listed(at, "invalid_pids", 0) for at in times(70.0, 130.0)),
        blind=(("gpu_processes.invalid_pids",),),
    ),
    Tale(
        "gpu-unreadable",
        fires=(gpu(1.0), *(lost(at, state="unknown error") for at in times(2.0, 32.0))),
        clears=tuple(gpu(at) for at in times(40.0, 50.0)),
        blind=(("gpu.state",),),
    ),
)


def _xid(rule: str, kind: str, window: Seconds, count: int = 1) -> Tale:
    """``count`` errors of a class, and then none for a whole window."""
    ends = window + count + 20.0
    return Tale(
        rule,
        fires=tuple(xids(n + 1.0, {kind: n}) for n in range(count + 1)),
        clears=tuple(xids(at, {kind: count}) for at in times(10.0, ends + window / 60, 15.0)),
        blind=(("xid.class_errors",),),
        drains=True,
    )


def _both(at: Seconds, reboots: int) -> tuple[Reading, Reading]:
    return gpu(at), xids(at + 0.5, {"reboot": reboots})


_FAULTS = (
    Tale(
        "gpu-lost",
        fires=(gpu(1.0), lost(2.0)),
        clears=tuple(gpu(at) for at in times(10.0, 20.0)),
        blind=(("gpu.state",),),
    ),
    Tale(
        "gpu-lost",
        fires=(gpu(1.0), lost(2.0, state="GPU not found")),
        clears=tuple(gpu(at) for at in times(10.0, 20.0)),
        blind=(("gpu.state",),),
    ),
    Tale(
        "gpu-lost",
        fires=(*_both(1.0, 0), *_both(2.0, 1)),
        clears=tuple(one for at in times(10.0, 1900.0, 15.0) for one in _both(at, 1)),
        blind=(("gpu.state", "xid.class_errors"),),
        drains=True,
    ),
    Tale(
        "gpu-reset-needed",
        fires=(gpu(1.0), lost(2.0, state="needs reset")),
        clears=tuple(gpu(at) for at in times(10.0, 20.0)),
        blind=(("gpu.state", "gpu.recovery_action"),),
    ),
    _gpu("gpu-reset-needed", {"recovery_action": 1}, 0, 10, ("state", "recovery_action")),
    _xid("gpu-xid-reset", "reset", 30 * _MINUTE),
    _xid("gpu-xid-application", "application", 10 * _MINUTE),
    _xid("gpu-xid-repeated", "application", 30 * _MINUTE, 3),
    _xid("gpu-xid-hardware", "hardware", _HOUR),
)

GPU_TALES = (*_SLOWDOWN, *_MEMORY_CELLS, *_LINKS, *_TENANTS, *_FAULTS)
"""Of the rules about cards."""
