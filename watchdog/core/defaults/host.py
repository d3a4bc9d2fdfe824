"""What is judged of the driver and the machine."""

from __future__ import annotations

from watchdog.core.conditions import Above, All, AnyKnown, Not, OneOf
from watchdog.core.model import HoldReason, Severity, SubjectKind
from watchdog.core.rules import Rule

_HOST = SubjectKind.HOST

_ABSENT = ("library not found", "driver not loaded")
"""NVML's words on a machine that has no driver, or does not show it to us."""
_DIFFER = "library and driver versions differ"

HOST_RULES = (
    Rule(
        name="driver-unresponsive",
        subject=_HOST,
        # One call may take several time-outs of the GPU's firmware, of 45 s each, and come back.
        when=Above("driver.unresponsive_seconds", 60),
        severity=Severity.CRITICAL,
        summary="the NVIDIA driver does not answer: nothing is known of the GPUs",
        clear_for=10.0,
        evidence=("driver.nvml", "driver.unresponsive_seconds"),
        holds=HoldReason.INHIBITED,
    ),
    Rule(
        name="driver-mismatch",
        subject=_HOST,
        when=AnyKnown(
            (
                OneOf("driver.versions_match", (False,)),
                OneOf("driver.nvml", (_DIFFER,)),
            )
        ),
        severity=Severity.WARNING,
        summary="the driver's libraries and its kernel module differ: the next start would fail",
        hold_for=10.0,
        clear_for=30.0,
        evidence=("driver.module_version", "driver.library_version", "driver.nvml"),
        holds=HoldReason.BLOCKED,
    ),
    Rule(
        name="gpu-access-lost",
        subject=_HOST,
        when=Not(OneOf("driver.device_trouble", ("",))),
        severity=Severity.WARNING,
        summary="device nodes of the GPUs cannot be opened: the next start would fail",
        hold_for=10.0,
        clear_for=10.0,
        evidence=("driver.device_trouble",),
        holds=HoldReason.BLOCKED,
    ),
    Rule(
        name="gpu-fallen",
        subject=_HOST,
        when=Not(OneOf("driver.fallen_cards", ("",))),
        severity=Severity.CRITICAL,
        summary="a GPU does not answer on the PCI bus: only a reboot brings it back",
        hold_for=10.0,
        clear_for=10.0,
        evidence=("driver.fallen_cards",),
    ),
    Rule(
        name="gpu-missing",
        subject=_HOST,
        when=Above("driver.gpus_expected", of="driver.gpus_found"),
        severity=Severity.CRITICAL,
        summary="the driver sees fewer GPUs than are in the machine",
        hold_for=30.0,
        clear_for=10.0,
        evidence=("driver.gpus_expected", "driver.gpus_found"),
    ),
    Rule(
        name="gpus-unreadable",
        subject=_HOST,
        when=Not(OneOf("driver.nvml", ("ok", "unresponsive", _DIFFER, *_ABSENT))),
        severity=Severity.WARNING,
        summary="NVML cannot be used: nothing is known of the GPUs",
        hold_for=30.0,
        clear_for=10.0,
        evidence=("driver.nvml",),
    ),
    Rule(
        name="driver-absent",
        subject=_HOST,
        when=OneOf("driver.nvml", _ABSENT),
        severity=Severity.INFO,
        summary="there is no NVIDIA driver here, or it is not visible: no GPU is watched",
        hold_for=10.0,
        evidence=("driver.nvml", "driver.gpus_expected"),
    ),
    Rule(
        name="xid-source-missing",
        subject=_HOST,
        when=All((Not(OneOf("xid.source_trouble", ("",))), OneOf("driver.nvml", ("ok",)))),
        severity=Severity.INFO,
        summary="the kernel log cannot be read: some Xid errors are not seen",
        hold_for=30.0,
        evidence=("xid.source", "xid.source_trouble"),
    ),
)
