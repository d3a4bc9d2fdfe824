"""The end of a run: everything is stopped, and nothing may be left of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from tests.chaos.journal import Invariant
from tests.chaos.observer import described
from tests.chaos.scene import Scene

_PATIENCE = 10.0
_SHARED = Path("/dev/shm")


def shared() -> set[str]:
    """The names in shared memory."""
    return {entry.name for entry in _SHARED.iterdir()}


def mounts(folder: Path) -> list[str]:
    """Mounts in the folder."""
    told = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in told if f" {folder}" in line]


def stop(scene: Scene) -> None:
    """End the watchdog the polite way; its engines must go with it."""
    code = scene.keeper.end()
    evidence = f"SIGTERM ended with {code}: {scene.keeper.last_words()}"
    scene.journal.check(Invariant.STAYS, code == 0, evidence)
    deadline = time.monotonic() + 1.0
    while (left := scene.observer.living()) and time.monotonic() < deadline:
        time.sleep(0.05)
    scene.journal.check(Invariant.NOTHING_ALIVE, not left, described(left))


def clean(scene: Scene) -> None:
    """Kill by pid whatever is left after all."""
    deadline = time.monotonic() + _PATIENCE
    while (left := scene.observer.living()) and time.monotonic() < deadline:
        for members in left.values():
            for one in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
        time.sleep(0.05)
    for stranger in scene.bystanders:
        stranger.close()


def left_outside(scene: Scene, before: set[str]) -> None:
    """A check of what others use, too: the private directories, and names that are ours."""
    folder = scene.place.folder
    generations = {generation for _, generation in scene.observer.born}
    new = {name for name in shared() - before if any(one in name for one in generations)}
    new |= {place for place in scene.observer.places - {""} if _left(Path(place), folder)}
    evidence = f"{sorted(new)[:20]} and {mounts(folder)}"
    scene.journal.check(Invariant.NOTHING_LEFT, not new and not mounts(folder), evidence)
    temporary = len(list((folder / "t").iterdir()))
    scene.journal.notes["entries in TMPDIR at the end"] = temporary


def _left(place: Path, folder: Path) -> bool:
    return not place.is_relative_to(folder) and place.exists()
