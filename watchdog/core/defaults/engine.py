"""What is judged of an engine itself."""

from __future__ import annotations

from watchdog.core.conditions import All, OneOf
from watchdog.core.model import HoldReason, Severity, SubjectKind
from watchdog.core.rules import Rule

_IN_TRANSITION = ("starting", "stopping", "unkillable")
"""Neither sick nor healed: a finding that led to a restart lives until the engine serves again."""

_WANTED = OneOf("wanted", (True,))

ENGINE_RULES = (
    Rule(
        name="engine-down",
        subject=SubjectKind.ENGINE,
        when=All((OneOf("process", ("stopped",)), _WANTED)),
        severity=Severity.INFO,
        summary="the engine should run and has not been started",
        actions=("start_engine",),
    ),
    Rule(
        name="engine-unkillable",
        subject=SubjectKind.ENGINE,
        when=OneOf("process", ("unkillable",), ("stopping", "starting")),
        severity=Severity.CRITICAL,
        summary="processes of the engine survive SIGKILL; nothing is started on top of them",
        evidence=("reason",),
    ),
    Rule(
        name="engine-dead",
        subject=SubjectKind.ENGINE,
        when=All((OneOf("health", ("dead", "given_up"), _IN_TRANSITION), _WANTED)),
        severity=Severity.CRITICAL,
        summary="the engine is dead: its processes are gone, or cannot serve any more",
        actions=("restart_engine",),
        evidence=("verdict", "cause", "reason"),
    ),
    Rule(
        name="engine-stalled",
        subject=SubjectKind.ENGINE,
        when=All((OneOf("health", ("stalled",), _IN_TRANSITION), _WANTED)),
        severity=Severity.CRITICAL,
        summary="the engine lives but generates no tokens",
        actions=("restart_engine",),
        evidence=("verdict", "cause", "reason"),
    ),
    Rule(
        name="engine-driver-replaced",
        subject=SubjectKind.ENGINE,
        when=OneOf("driver.stale_libraries", (True,)),
        severity=Severity.WARNING,
        summary="the driver's libraries in use were replaced on disk: the next start may fail",
        hold_for=10.0,
        evidence=("driver.stale_library_names",),
    ),
    Rule(
        name="engine-driver-too-old",
        subject=SubjectKind.ENGINE,
        when=OneOf("driver.fits", (False,)),
        severity=Severity.WARNING,
        summary="the driver is older than what the engine's CUDA needs: a start would fail",
        hold_for=10.0,
        evidence=("driver.misfit",),
        holds=HoldReason.BLOCKED,
    ),
)
