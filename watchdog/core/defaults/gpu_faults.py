"""What makes a GPU useless until somebody resets it or reboots, and what its Xid errors say.

While a card is lost or waits for a reset, restarts of its engines are held: they cannot help.
"""

from __future__ import annotations

from watchdog.core.conditions import Besides, Not, OneOf, Rose
from watchdog.core.model import HoldReason, Severity, SubjectKind
from watchdog.core.rules import Rule

_MINUTES = 60.0
_HOUR = 3600.0
_MOMENT = 10.0
"""A card that comes and goes is one finding, and lets no engine start in between."""

_GPU = SubjectKind.GPU

_FAULTS = (
    Rule(
        name="gpu-lost",
        subject=_GPU,
        when=Besides(
            OneOf("gpu.state", ("lost", "GPU not found")),
            Rose("xid.class_errors.reboot", 30 * _MINUTES),
        ),
        severity=Severity.CRITICAL,
        summary="the GPU is off the bus: only a reboot brings it back, no restart can help",
        clear_for=_MOMENT,
        evidence=("gpu.state", "xid.last"),
        holds=HoldReason.INHIBITED,
        fault=True,
    ),
    Rule(
        name="gpu-reset-needed",
        subject=_GPU,
        when=Besides(
            OneOf("gpu.state", ("needs reset",)),
            # 3 drains peer-to-peer work and 5 the IMEX domain: the GPU itself serves on.
            Not(OneOf("gpu.recovery_action", (0, 3, 5))),
        ),
        severity=Severity.CRITICAL,
        summary="the driver says that the GPU needs a reset or a reboot: no restart can help",
        clear_for=_MOMENT,
        evidence=("gpu.state", "gpu.recovery_action", "xid.last"),
        holds=HoldReason.INHIBITED,
        fault=True,
    ),
    Rule(
        name="gpu-xid-reset",
        subject=_GPU,
        # Half an hour: long enough for a person to come, and a restart after it can only fail.
        when=Rose("xid.class_errors.reset", 30 * _MINUTES),
        severity=Severity.CRITICAL,
        summary="an Xid error of the class that needs a reset of the GPU",
        evidence=("xid.last", "gpu.recovery_action"),
        holds=HoldReason.INHIBITED,
        fault=True,
    ),
)

_XIDS = (
    Rule(
        name="gpu-xid-application",
        subject=_GPU,
        when=Rose("xid.class_errors.application", 10 * _MINUTES),
        severity=Severity.WARNING,
        summary="an Xid error that a process caused: it has lost its CUDA context",
        evidence=("xid.last",),
    ),
    Rule(
        name="gpu-xid-repeated",
        subject=_GPU,
        when=Rose("xid.class_errors.application", 30 * _MINUTES, 2),
        severity=Severity.CRITICAL,
        summary="three Xid errors of processes within half an hour: suspect the GPU",
        evidence=("xid.last",),
    ),
    Rule(
        name="gpu-xid-hardware",
        subject=_GPU,
        when=Rose("xid.class_errors.hardware", _HOUR),
        severity=Severity.WARNING,
        summary="an Xid error that needs somebody to look at the hardware or the driver",
        evidence=("xid.last",),
    ),
)

GPU_FAULT_RULES = (*_FAULTS, *_XIDS)
