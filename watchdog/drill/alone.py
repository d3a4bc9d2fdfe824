"""Drills that need a daemon of their own: they fill its disk, kill it, or never let it be ready."""

from __future__ import annotations

import errno
import time
from pathlib import Path

from watchdog.core.model import Seconds
from watchdog.drill.bystander import bystander
from watchdog.drill.members import members
from watchdog.drill.own import Own, until_ready
from watchdog.drill.results import MissedError, RefusedError
from watchdog.drill.scene import POLL, Scene
from watchdog.drill.watching import same_engine

_LOOKS: Seconds = 15.0
"""Until a look after an event shows it."""
_QUIET: Seconds = 5.0
"""A breaker that is open is watched for so long: its backoff is a tenth of a second there."""
_BOOTS = 3
"""Restarts that the boot budget allows by default."""
_FULL_RULES = frozenset({"tmpfs-inodes-full", "tmpfs-inodes-filling"})


def crash_loop(scene: Scene) -> None:
    """D8: the stage's engine dies at every start."""
    scene.injected()
    scene.until(lambda: scene.engine().breaker_open, scene.drill.within, "the breaker is not open")
    scene.detected(time.time())
    first = scene.engine().starts
    if first != _BOOTS + 1:
        raise MissedError(f"{first} starts instead of {_BOOTS + 1} before the breaker opened")
    _still(scene, first)
    own = _own(scene)
    own.kill()
    scene.say("the watchdog is killed, and started again")
    own.start()
    _still(scene, first)


def _still(scene: Scene, starts: int) -> None:
    deadline = time.monotonic() + _QUIET
    while time.monotonic() < deadline:
        engine = scene.engine()
        if engine.starts != starts or not engine.breaker_open:
            raise MissedError("the breaker did not stay open")
        time.sleep(POLL)


def deaf_start(scene: Scene) -> None:
    """H14: it is stopped while it starts and takes no note of SIGTERM."""
    scene.until(lambda: len(scene.engine().pids) > 1, _LOOKS, "the engine has no processes")
    with members(scene.daemon, scene.name) as who, bystander() as stranger:
        scene.injected()
        wrong = scene.daemon.command("stop", scene.name)
        took = scene.age
        left = ", ".join(str(one.pid) for one in who.living())
        if wrong or left:
            raise MissedError(wrong or f"processes {left} survived the stop")
        scene.released()
        if took > scene.drill.within:
            raise MissedError(f"the stop took {took:.1f} s")
        if stranger.poll() is not None:
            raise MissedError("a process that is no part of the engine was ended")
        state = scene.engine().state
        if state != "stopped":
            raise MissedError(f"its state is {state}")


def kill_watchdog(scene: Scene) -> None:
    """W1."""
    own = _own(scene)
    with members(scene.daemon, scene.name) as who:
        before = scene.engine()
        own.kill()
        scene.injected()
        _lives(len(who.all), len(who.living()))
        own.start()
        until_ready(own, scene.drill.within)
        scene.serving()
        _lives(len(who.all), len(who.living()))
        same_engine(before, scene.engine())


def _lives(all_of_them: int, living: int) -> None:
    if living != all_of_them:
        raise MissedError(f"{all_of_them - living} processes of the engine ended with the watchdog")


def full_tmpfs(scene: Scene) -> None:
    """S3: no inode is left where the engine's temporary files are, and every byte is free."""
    before = scene.engine()
    litter = _own(scene).temporary / "litter"
    count = _fill(litter)
    scene.injected()
    scene.until(
        lambda: _tells_of(scene, litter), scene.drill.within, "no finding named the directory"
    )
    scene.detected(time.time())
    same_engine(before, scene.engine())
    if sum(1 for _ in litter.iterdir()) != count:
        raise MissedError("files were removed that are no engine's")
    if not scene.engine().serves:
        raise MissedError(scene.engine().words)


def _fill(litter: Path) -> int:
    """As many empty files as there is room for."""
    litter.mkdir()
    count = 0
    try:
        while True:
            (litter / str(count)).touch()
            count += 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise RefusedError(f"cannot fill {litter}: {error.strerror}") from error
    return count


def _tells_of(scene: Scene, litter: Path) -> bool:
    findings = scene.daemon.status().get("findings", ())
    full = (one for one in findings if one["rule"] in _FULL_RULES)
    return any(str(litter) in str(one["evidence"]) for one in full)


def _own(scene: Scene) -> Own:
    if scene.own is None:
        raise RefusedError("it needs a daemon of its own")
    return scene.own
