"""Runs drills one after the other, on a daemon that runs or on one of their own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from watchdog.core.model import Seconds
from watchdog.drill.asking import AskError, Daemon, Engine
from watchdog.drill.own import Own, own, until_ready
from watchdog.drill.results import (
    Drill,
    MissedError,
    RefusedError,
    Result,
    SkippedError,
    Stage,
    Verdict,
)
from watchdog.drill.scene import POLL, Scene

Say = Callable[[str], None]
"""Takes one line of progress."""
_CALM: Seconds = 30.0
"""Until the engine serves and no incident of it is open, after the drill before."""

_RETURN: Seconds = 3.0
"""After a miss, in which the engine may come back by itself."""


def on_daemon(
    drills: Sequence[Drill], daemon: Daemon, engine: str, say: Say, reserve: int
) -> Iterator[Result]:
    """The drills on a daemon that runs. ``reserve`` restarts stay in the budget for real faults."""
    for drill in drills:
        yield _performed(Scene(drill, daemon, engine, _prefixed(drill, say)), reserve)


def on_own(drills: Sequence[Drill], say: Say) -> Iterator[Result]:
    """The drills on daemons of their own; one serves as long as all goes well and it fits.

    Raises AskError when a daemon cannot be started.
    """
    with contextlib.ExitStack() as held:
        present: Own | None = None
        for drill in drills:
            tell = _prefixed(drill, say)
            if present is None or present.stage != drill.stage:
                held.close()
                try:
                    present = held.enter_context(_staged(drill.stage, tell))
                except SkippedError as why:
                    present = None
                    yield Result(drill, Verdict.SKIPPED, str(why))
                    continue
            scene = Scene(drill, present.daemon, present.daemon.engine().name, tell, present)
            result = _performed(scene, reserve=0)
            present.remember()
            if result.verdict is not Verdict.OK:
                present = None
            yield result


@contextlib.contextmanager
def _staged(stage: Stage, say: Say) -> Iterator[Own]:
    say("starting a watchdog of its own, in front of the simulated engine")
    with own(stage) as one:
        if stage.ready:
            until_ready(one)
        yield one
        say("ending it")


def _prefixed(drill: Drill, say: Say) -> Say:
    return lambda line: say(f"{drill.id}: {line}")


def _performed(scene: Scene, reserve: int) -> Result:
    try:
        if scene.drill.stage.ready:
            _calm(scene, reserve)
        scene.drill.run(scene)
        verdict, reason = Verdict.OK, ""
    except RefusedError as why:
        verdict, reason = Verdict.REFUSED, str(why)
    except SkippedError as why:
        verdict, reason = Verdict.SKIPPED, str(why)
    except (MissedError, AskError) as why:
        verdict, reason = Verdict.MISSED, str(why)
    except KeyboardInterrupt:
        scene.say("interrupted: what was stopped goes on")
        _left(scene)
        raise
    scene.say(f"{verdict.value}{': ' if reason else ''}{reason}")
    _left(scene)
    return Result(scene.drill, verdict, reason, scene.measured.times, scene.measured.incident)


def _calm(scene: Scene, reserve: int) -> None:
    """Raises RefusedError when the drill would prove nothing, or cost what is needed elsewhere."""
    status = scene.daemon.status()
    if status.get("paused"):
        raise RefusedError("the daemon is paused: nothing would be done")
    if status.get("mode") != "act":
        raise RefusedError("the daemon only observes: nothing would be done")
    deadline = time.monotonic() + _CALM
    while trouble := _trouble(scene):
        if time.monotonic() > deadline:
            raise RefusedError(trouble)
        time.sleep(POLL)
    engine = scene.engine()
    if scene.drill.restarts and engine.budget < scene.drill.restarts + reserve:
        kept = f", and {reserve} is kept for a real fault" if reserve else ""
        raise RefusedError(f"{engine.budget} restarts are left in the budget{kept}")


def _trouble(scene: Scene) -> str:
    """Why the engine is not at rest, "" when it is."""
    engine = scene.engine()
    if not engine.serves:
        return engine.words
    still = (name for name, is_open in scene.daemon.incidents(engine.name) if is_open)
    return next((f"{name} is still open" for name in still), "")


def _left(scene: Scene) -> None:
    """Says loudly when the engine is not left serving; one of the drill's own is ended anyway."""
    if scene.own is not None:
        return
    try:
        engine = _settled(scene)
    except AskError as error:
        scene.say(f"ATTENTION: {error}; whether the engine serves is not known")
        return
    if not engine.serves:
        scene.say(f"ATTENTION: NOT SERVING: {engine.words}; vllm-watchdog restart {engine.name}")


def _settled(scene: Scene) -> Engine:
    """The engine, after a while in which it may come back by itself."""
    deadline = time.monotonic() + _RETURN
    while not (engine := scene.engine()).serves and time.monotonic() < deadline:
        time.sleep(POLL)
    return engine
