"""Faults after which nothing may be restarted."""

from __future__ import annotations

from watchdog.core.model import Seconds
from watchdog.core.model import Verdict as Health
from watchdog.drill.scene import Scene
from watchdog.drill.simulated import fault, is_simulated, load
from watchdog.drill.watching import restraint

_CLIENTS = 64
_COMPILE: Seconds = 70.0
_AGAIN: Seconds = 30.0
"""Until it serves when the fault is over."""
_BUSY = (Health.BUSY.value,)
_AILING = (Health.DEGRADED.value,)


def saturate(scene: Scene) -> None:
    """H3: on a real engine with more clients than it can take."""
    before = scene.engine()
    seconds = scene.drill.within
    if is_simulated(before):
        with fault(before, "saturate"):
            scene.injected()
            restraint(scene, before, seconds, _BUSY, Health.BUSY.value)
    else:
        with load(before, _CLIENTS):
            scene.injected()
            restraint(scene, before, seconds, _BUSY)
    _serves(scene)


def compile_first(scene: Scene) -> None:
    """H4: the next completion is that of the canary; it waits for a compiler."""
    before = scene.engine()
    with fault(before, "compile", _COMPILE):
        scene.injected()
        restraint(scene, before, scene.drill.within, _BUSY, Health.BUSY.value)
    _serves(scene)


def unhealthy(scene: Scene) -> None:
    """H8."""
    before = scene.engine()
    with fault(before, "health_503"):
        scene.injected()
        restraint(scene, before, scene.drill.within, _AILING, Health.DEGRADED.value)
    _serves(scene)


def _serves(scene: Scene) -> None:
    """The fault is over."""
    scene.until(lambda: scene.engine().serves, _AGAIN, "the fault is over, and it does not serve")
