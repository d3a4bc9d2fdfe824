"""Faults after which the engine has to be restarted."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Iterator

from watchdog.core.model import Cause, Seconds
from watchdog.drill.bystander import bystander
from watchdog.drill.members import Member, Members, members, stopped
from watchdog.drill.scene import Scene
from watchdog.drill.simulated import load
from watchdog.drill.watching import Recovery

_CRASH: Seconds = 15.0
"""Killing what is left, letting go of memory, and the first look at the new engine."""
_LADDER: Seconds = 75.0
"""All rungs of the stop ladder with its default deadlines, and the same."""
_KILLED = (Cause.ENGINE_CORE_DIED.value, Cause.WORKER_DIED.value)


def kill_leader(scene: Scene) -> None:
    """D1."""
    with _recovery(scene, (Cause.SIGNAL.value,), _CRASH) as (who, watch):
        _kill(scene, who.leader())
        watch()


def kill_core(scene: Scene) -> None:
    """D2."""
    with _recovery(scene, (Cause.ENGINE_CORE_DIED.value,), _CRASH) as (who, watch):
        _kill(scene, who.titled("EngineCore"))
        watch()


def kill_worker(scene: Scene) -> None:
    """D3."""
    with _recovery(scene, _KILLED, _CRASH) as (who, watch):
        _kill(scene, who.titled("Worker"))
        watch()


def stop_core(scene: Scene) -> None:
    """H1."""
    with (
        _recovery(scene, (Cause.STALLED.value,), _LADDER) as (who, watch),
        stopped(who.titled("EngineCore")),
    ):
        scene.injected()
        watch()


def stop_worker(scene: Scene) -> None:
    """H2."""
    with _recovery(scene, (Cause.STALLED.value,), _LADDER) as (who, watch):
        worker = who.titled("Worker")
        with load(scene.engine(), 1), stopped(worker):
            scene.injected()
            watch()


def _kill(scene: Scene, member: Member) -> None:
    member.send(signal.SIGKILL)
    scene.injected()


@contextlib.contextmanager
def _recovery(
    scene: Scene, causes: Collection[str], added: Seconds
) -> Iterator[tuple[Members, Callable[[], None]]]:
    """The engine's processes, and what to call once the fault is there."""
    with members(scene.daemon, scene.name) as who, bystander() as stranger:
        known = frozenset(name for name, _ in scene.daemon.incidents(scene.name))
        before = scene.engine()
        yield who, Recovery(scene, before, who, stranger, causes, added, known).watch
