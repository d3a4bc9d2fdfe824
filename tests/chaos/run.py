"""Runs the tracks side by side for so long, and checks what can only be checked at the end."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import end, on_engine, on_world
from tests.chaos.accounts import Accounts
from tests.chaos.bystander import Bystander
from tests.chaos.journal import Invariant, Journal
from tests.chaos.keeper import Keeper
from tests.chaos.observer import Observer, Vital
from tests.chaos.place import BUDGET, ENGINES, SPARE, WINDOW, Place, place
from tests.chaos.plan import WORLD, Step, steps
from tests.chaos.scene import Scene

_ENOUGH = 30
"""Readings below which nothing is said of growth."""
_MORE_BYTES = 8 << 20
_MORE_DESCRIPTORS = 6
_LOOK = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is reported."""

    journal: Journal
    vitals: Sequence[Vital]
    latencies: Sequence[float]
    watchdogs: int
    generations: int
    seconds: float
    left_out: tuple[str, ...]


def run(seed: int, seconds: float) -> Outcome:
    """One run; its folder is gone afterwards, unless an invariant was violated."""
    journal = Journal(seed)
    before = end.shared()
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    with place(folder) as where:
        scene = _scene(where, journal)
        try:
            _bystanders(scene)
            scene.observer.start()
            scene.keeper.start()
            for name in ENGINES:
                scene.recover(name)
            _tracks(scene, seconds)
            end.stop(scene)
        finally:
            _close(scene)
        outcome = _judged(scene, where)
    end.left_outside(scene, before)
    if not journal.violations:
        shutil.rmtree(folder)
    return outcome


def _scene(where: Place, journal: Journal) -> Scene:
    keeper = Keeper(where, journal)
    observer = Observer(journal, where.run, lambda: keeper.pid)
    accounts = Accounts(BUDGET, WINDOW)
    keeper.forgets = lambda: accounts.forgotten((*ENGINES, SPARE))
    return Scene(where, journal, keeper, observer, accounts)


def _bystanders(scene: Scene) -> None:
    """Look-alikes: an EngineCore, a worker, the command line of our engine, and a watchdog."""
    engine = ("-m", "watchdog.simulator", "--port", str(scene.place.ports["main"]))
    watchdog = ("-m", "watchdog", "run", "--state-dir", str(scene.place.state))
    words: Sequence[tuple[str, tuple[str, ...]]] = (
        ("VLLM::EngineCore", ()),
        ("VLLM::Worker_TP0", ()),
        ("python", engine),
        ("python", watchdog),
    )
    for name, more in words:
        scene.bystanders.append(Bystander.start(scene.place.folder, name, more))


def _tracks(scene: Scene, seconds: float) -> None:
    """Each track in a thread of its own; this one looks at strangers and accounts."""
    deadline = time.monotonic() + seconds
    works: dict[str, Callable[[Scene, Step], None]] = dict.fromkeys(ENGINES, on_engine.inject)
    works[WORLD] = on_world.inject
    threads = [
        threading.Thread(target=_track, args=(scene, track, work), name=track, daemon=True)
        for track, work in works.items()
    ]
    for thread in threads:
        thread.start()
    try:
        while time.monotonic() < deadline and not scene.journal.hopeless:
            scene.look_at_strangers()
            time.sleep(_LOOK)
    finally:
        scene.done.set()
        for thread in threads:
            thread.join()
    scene.look_at_strangers()


def _track(scene: Scene, track: str, work: Callable[[Scene, Step], None]) -> None:
    for step in steps(scene.journal.seed, track):
        if scene.done.wait(step.rest):
            return
        with scene.journal.during(step):
            try:
                work(scene, step)
            except Exception:  # noqa: BLE001 - told as a fault of the harness, which goes on
                trouble = traceback.format_exc()
                scene.journal.check(Invariant.HARNESS, False, trouble)  # noqa: FBT003
            else:
                scene.journal.check(Invariant.HARNESS, True, "")  # noqa: FBT003


def _close(scene: Scene) -> None:
    scene.done.set()
    with contextlib.suppress(Exception):
        scene.keeper.end(5.0)
    scene.observer.close()
    end.clean(scene)


def _judged(scene: Scene, where: Place) -> Outcome:
    """Accounts and growth, from all that was seen."""
    for _, kept, evidence in scene.accounts.overdrawn(scene.observer.born):
        scene.journal.check(Invariant.BUDGET, kept, evidence)
    vitals = scene.observer.vitals
    _flat(scene.journal, Invariant.MEMORY, [one.resident for one in vitals], _MORE_BYTES)
    found = [one.descriptors for one in vitals]
    _flat(scene.journal, Invariant.DESCRIPTORS, found, _MORE_DESCRIPTORS)
    return Outcome(
        scene.journal,
        vitals,
        scene.keeper.latencies,
        scene.keeper.started,
        len(scene.observer.born),
        scene.journal.elapsed,
        tuple(_left_out(where)),
    )


def _flat(journal: Journal, invariant: Invariant, found: Sequence[int], more: int) -> None:
    """The median of the last third against that of the first."""
    if len(found) < _ENOUGH:
        return
    third = len(found) // 3
    first, last = statistics.median(found[:third]), statistics.median(found[-third:])
    journal.check(invariant, last <= first + more, f"from {first:.0f} to {last:.0f}")


def _left_out(where: Place) -> Iterator[str]:
    if not where.small_disk:
        yield "state directory full: this machine lets us mount nothing"
    if not where.moving_clock:
        yield "clock jumps: there is no C compiler"
