"""What is judged of a GPU. Nothing here restarts an engine; some of it says that it cannot help.

Durations come from the card's own counters: a reading a second would miss what flickers.
"""

from __future__ import annotations

from watchdog.core.conditions import (
    Above,
    All,
    AnyKnown,
    AnyOf,
    Condition,
    Fell,
    Not,
    OneOf,
    Rose,
    Unless,
)
from watchdog.core.model import Severity, SubjectKind
from watchdog.core.rules import Rule

_MINUTES = 60.0
_HOUR = 3600.0
_DAY = 86400.0
_GIB = float(1 << 30)
_SPAN = 5 * _MINUTES
"""Over so long slowdown is summed up, and so long it must be gone: no flapping at the limit."""
_SOME, _MUCH = 0.01, 0.10
"""Shares of ``_SPAN``: a burst at a change of load is less than a percent of five minutes."""

_GPU = SubjectKind.GPU


def _slowed(reason: str, share: float) -> Condition:
    return Rose(f"gpu.throttle_seconds.{reason}", _SPAN, share * _SPAN)


def _uncounted(reason: str) -> Condition:
    """In force, on a driver that does not count it (before fields 270 and 271)."""
    counted = Above(f"gpu.throttle_seconds.{reason}", -1)
    return Unless(OneOf(f"gpu.throttled.{reason}", (True,)), counted)


_BUSY = AnyKnown(
    (
        Above("gpu.utilization_percent", 80),
        Above("engine.waiting", 0),
    )
)
_EXPLAINED = AnyOf(
    (
        OneOf("gpu.mig", (True,)),
        *(
            OneOf(f"gpu.throttled.{reason}", (True,))
            for reason in (
                "idle",
                "applications_clocks",
                "sw_power_cap",
                "hw_slowdown",
                "sync_boost",
                "sw_thermal",
                "hw_thermal",
                "hw_power_brake",
                "display_clock",
                "board_limit",
                "reliability",
            )
        ),
    )
)
"""The driver names a reason. Spinning is none of them, but it runs at full clock."""

_SLOWDOWN = (
    Rule(
        name="gpu-thermal-slowdown",
        subject=_GPU,
        when=AnyKnown((_slowed("hw_thermal", _SOME), _slowed("sw_thermal", _SOME))),
        severity=Severity.WARNING,
        summary="the GPU slows itself down because it is too hot",
        clear_for=_SPAN,
        evidence=(
            f"gpu.throttle_seconds.hw_thermal increase {_SPAN:g}",
            f"gpu.throttle_seconds.sw_thermal increase {_SPAN:g}",
            "gpu.temperature_celsius",
            "gpu.memory_temperature_celsius",
            "gpu.temperature_slowdown_celsius",
        ),
    ),
    Rule(
        name="gpu-thermal-critical",
        subject=_GPU,
        when=_slowed("hw_thermal", _MUCH),
        severity=Severity.CRITICAL,
        summary="the GPU's hardware has slowed it down for more than a tenth of five minutes",
        clear_for=_SPAN,
        evidence=(
            f"gpu.throttle_seconds.hw_thermal increase {_SPAN:g}",
            "gpu.temperature_celsius",
            "gpu.temperature_slowdown_celsius",
        ),
    ),
    Rule(
        name="gpu-slowdown-uncounted",
        subject=_GPU,
        when=AnyKnown((_uncounted("hw_thermal"), _uncounted("hw_power_brake"))),
        severity=Severity.WARNING,
        summary="heat or the power supply slow the GPU down, for longer than a moment",
        hold_for=30.0,
        clear_for=_SPAN,
        evidence=(
            "gpu.throttled.hw_thermal",
            "gpu.throttled.hw_power_brake",
            "gpu.temperature_celsius",
        ),
    ),
    Rule(
        name="gpu-hot",
        subject=_GPU,
        when=AnyKnown(
            (
                Above("gpu.temperature_celsius", of="gpu.temperature_limit_celsius"),
                Above("gpu.memory_temperature_celsius", of="gpu.memory_temperature_limit_celsius"),
            )
        ),
        severity=Severity.WARNING,
        summary="the GPU is hotter than it may run",
        hold_for=_MINUTES,
        clear_for=_SPAN,
        evidence=(
            "gpu.temperature_celsius",
            "gpu.temperature_limit_celsius",
            "gpu.memory_temperature_celsius",
            "gpu.memory_temperature_limit_celsius",
        ),
    ),
    Rule(
        name="gpu-power-brake",
        subject=_GPU,
        when=_slowed("hw_power_brake", _SOME),
        severity=Severity.CRITICAL,
        summary="the power supply makes the GPU brake",
        clear_for=_SPAN,
        evidence=(f"gpu.throttle_seconds.hw_power_brake increase {_SPAN:g}", "gpu.power_watts"),
    ),
    Rule(
        name="gpu-unexplained-downclock",
        subject=_GPU,
        when=Unless(
            All(
                (
                    _BUSY,
                    Not(Above("gpu.sm_clock_hertz", of="gpu.sm_clock_max_hertz", times=0.6)),
                    Not(Above("gpu.power_watts", of="gpu.power_limit_watts", times=0.5)),
                    Not(Above("gpu.performance_state", 2)),
                    # Told with every reading of the reasons: without one nothing is unexplained.
                    OneOf("gpu.throttled.other", (False,)),
                )
            ),
            _EXPLAINED,
        ),
        severity=Severity.WARNING,
        summary="the GPU runs far below its clock and names no reason: suspect a sensor",
        hold_for=_MINUTES,
        clear_for=_MINUTES,
        evidence=(
            "gpu.sm_clock_hertz",
            "gpu.sm_clock_max_hertz",
            "gpu.power_watts",
            "gpu.utilization_percent",
            "gpu.temperature_celsius",
            "engine.waiting",
        ),
    ),
)

_MEMORY_CELLS = (
    Rule(
        name="gpu-ecc-uncorrected",
        subject=_GPU,
        when=Rose("gpu.ecc_uncorrected_errors", _DAY),
        severity=Severity.CRITICAL,
        summary="the GPU's memory had an error that ECC could not correct",
        evidence=("gpu.ecc_uncorrected_errors", "gpu.remap_pending", "gpu.recovery_action"),
    ),
    Rule(
        name="gpu-remap-pending",
        subject=_GPU,
        when=OneOf("gpu.remap_pending", (True,)),
        severity=Severity.WARNING,
        summary="a row of the GPU's memory is remapped at its next reset",
        evidence=("gpu.remapped_rows_uncorrected",),
    ),
    Rule(
        name="gpu-remap-failed",
        subject=_GPU,
        when=OneOf("gpu.remap_failed", (True,)),
        severity=Severity.CRITICAL,
        summary="a row of the GPU's memory could not be remapped: the card must be replaced",
        evidence=("gpu.remapped_rows_uncorrected",),
    ),
)

_LINKS = (
    Rule(
        name="gpu-pcie-degraded",
        subject=_GPU,
        when=Fell("gpu.pcie_link_width", _DAY),
        severity=Severity.CRITICAL,
        summary="the GPU has lost PCIe lanes that it had",
        hold_for=_MINUTES,
        clear_for=_MINUTES,
        evidence=("gpu.pcie_link_width", "gpu.pcie_link_width_max"),
    ),
    Rule(
        name="gpu-pcie-narrow",
        subject=_GPU,
        when=Not(Above("gpu.pcie_link_width", of="gpu.pcie_link_width_max", times=0.99)),
        severity=Severity.INFO,
        summary="the GPU has fewer PCIe lanes than it could have",
        hold_for=_MINUTES,
        clear_for=_MINUTES,
        evidence=("gpu.pcie_link_width", "gpu.pcie_link_width_max"),
    ),
    Rule(
        name="gpu-pcie-replays",
        subject=_GPU,
        # DCGM's rule for a generation 5 link of 16 lanes is 31 a minute; fewer lanes have fewer.
        when=Rose("gpu.pcie_replays", _SPAN, 155),
        severity=Severity.WARNING,
        summary="the GPU's PCIe link repeats too many packets",
        clear_for=_SPAN,
        evidence=(f"gpu.pcie_replays increase {_SPAN:g}", "gpu.pcie_link_generation"),
    ),
    Rule(
        name="gpu-nvlink-down",
        subject=_GPU,
        when=Fell("gpu.nvlinks_active", _DAY),
        severity=Severity.WARNING,
        summary="the GPU has fewer active NVLinks than it had",
        hold_for=_MINUTES,
        clear_for=_MINUTES,
        evidence=("gpu.nvlinks_active",),
    ),
    Rule(
        name="gpu-fabric-not-ready",
        subject=_GPU,
        when=OneOf("gpu.fabric_state", (1, 2)),
        severity=Severity.WARNING,
        summary="the NVSwitch fabric is not ready: CUDA programs fail to start (error 802)",
        hold_for=_MINUTES,
        evidence=("gpu.fabric_state",),
    ),
)

_TENANTS = (
    Rule(
        name="gpu-orphan-memory",
        subject=_GPU,
        when=Not(OneOf("gpu_processes.orphans", ("",))),
        severity=Severity.WARNING,
        summary="processes of an engine's earlier start hold GPU memory",
        hold_for=10.0,
        evidence=("gpu_processes.orphans", "gpu_processes.memory_bytes.orphan"),
    ),
    Rule(
        name="gpu-foreign-memory",
        subject=_GPU,
        when=All(
            (Above("gpu_processes.memory_bytes.foreign", _GIB), OneOf("engine.ours", (True,)))
        ),
        severity=Severity.WARNING,
        summary="a process that is not ours holds memory on an engine's GPU",
        hold_for=30.0,
        clear_for=10.0,
        evidence=("gpu_processes.strangers", "gpu_processes.memory_bytes.foreign"),
    ),
    Rule(
        name="gpu-memory-partly-known",
        subject=_GPU,
        when=OneOf("gpu_processes.complete", (False,)),
        severity=Severity.INFO,
        summary="the driver does not tell how much memory every process holds",
        hold_for=_MINUTES,
        clear_for=_MINUTES,
        evidence=("gpu_processes.processes",),
    ),
    Rule(
        name="gpu-invalid-pids",
        subject=_GPU,
        when=Above("gpu_processes.invalid_pids", 0),
        severity=Severity.INFO,
        summary="the driver lists pids that no process can have; they are ignored",
        hold_for=_MINUTES,
        clear_for=_MINUTES,
        evidence=("gpu_processes.invalid_pids",),
    ),
    Rule(
        name="gpu-unreadable",
        subject=_GPU,
        when=Not(OneOf("gpu.state", ("ok", "lost", "GPU not found", "needs reset"))),
        severity=Severity.WARNING,
        summary="the GPU answers no question; what it does is not known",
        hold_for=30.0,
        clear_for=10.0,
        evidence=("gpu.state",),
    ),
)

GPU_RULES = (*_SLOWDOWN, *_MEMORY_CELLS, *_LINKS, *_TENANTS)
