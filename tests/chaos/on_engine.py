"""Faults of one engine. Each function puts one in force, waits, and takes it back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from tests.chaos.bystander import Bystander
from tests.chaos.journal import Invariant
from tests.chaos.plan import Fault, Step
from tests.chaos.scene import Scene

_LONG = 2.0
"""How much longer what must be found out first is held."""
_BUSY = 2.0


def inject(scene: Scene, step: Step) -> None:
    """Do it, and bring the engine back."""
    INJECTED[step.fault](scene, step)
    scene.recover(step.track)


def _kill_leader(scene: Scene, step: Step) -> None:
    scene.kill(scene.leader(step.track))


def _kill_core(scene: Scene, step: Step) -> None:
    scene.kill(scene.titled(step.track, "EngineCore"))


def _kill_worker(scene: Scene, step: Step) -> None:
    scene.kill(scene.titled(step.track, "Worker"))


def _stop(title: str) -> Callable[[Scene, Step], None]:
    def do(scene: Scene, step: Step) -> None:
        pid = scene.titled(step.track, title)
        scene.kill(pid, signal.SIGSTOP)
        before = {one.key for one in scene.members(step.track)}
        _until(scene, step.hold * _LONG, lambda: not _any_of(scene, step.track, before))
        if any(one.pid == pid and one.key in before for one in scene.members(step.track)):
            scene.kill(pid, signal.SIGCONT)

    return do


def _stuck_death(scene: Scene, step: Step) -> None:
    scene.fault(step.track, "keep_alive")
    _kill_core(scene, step)
    scene.done.wait(step.hold)


def _orphans(scene: Scene, step: Step) -> None:
    scene.fault(step.track, "double_fork")
    scene.done.wait(min(step.hold, 2.0))
    _kill_leader(scene, step)


def _oom_kill(scene: Scene, step: Step) -> None:
    for one in scene.members(step.track):
        scene.kill(one.pid)


def _simulated(name: str, value: float | None = None) -> Callable[[Scene, Step], None]:
    def do(scene: Scene, step: Step) -> None:
        if not scene.fault(step.track, name, value):
            scene.journal.note(f"the engine took no fault {name}")
        scene.done.wait(step.hold * _LONG)
        scene.clear(step.track, name)

    return do


def _once(name: str, value: float | None = None) -> Callable[[Scene, Step], None]:
    """The engine dies of it, and the next one does not have it."""

    def do(scene: Scene, step: Step) -> None:
        scene.fault(step.track, name, value)
        scene.done.wait(_BUSY)

    return do


def _at_start(*flags: str) -> Callable[[Scene, Step], None]:
    """The leader is killed, and the next starts go like this."""

    def do(scene: Scene, step: Step) -> None:
        file = scene.place.flags(step.track)
        file.write_text(" ".join(flags))
        try:
            _kill_leader(scene, step)
            scene.done.wait(step.hold * _LONG)
        finally:
            file.unlink()

    return do


def _busy(name: str, value: float | None = None) -> Callable[[Scene, Step], None]:
    """It makes progress and answers nobody: it must be the same engine afterwards."""

    def do(scene: Scene, step: Step) -> None:
        scene.recover(step.track)
        before = set(scene.observer.of(step.track))
        if len(before) != 1 or not scene.fault(step.track, name, value):
            scene.journal.note(f"the engine took no fault {name}")
            return
        scene.done.wait(step.hold * _BUSY + 5)
        after = set(scene.observer.of(step.track))
        evidence = f"{step.track}: {before} before, {after} after; {scene.keeper.last_words()}"
        scene.journal.check(Invariant.BUSY, after == before, evidence)
        scene.clear(step.track, name)

    return do


def _stranger_on_port(scene: Scene, step: Step) -> None:
    port = scene.place.ports[step.track]
    words = ("-m", "watchdog.simulator", "--port", str(port))
    one = Bystander.start(scene.place.folder, "python", words, port)
    one.ends = True
    scene.bystanders.append(one)
    _until(scene, 5.0, one.report.exists)
    _kill_leader(scene, step)
    _until(scene, 20.0, lambda: one.process.poll() is not None)
    scene.look_at_strangers()
    if one in scene.bystanders:
        scene.bystanders.remove(one)
    one.close()


def _stop_and_start(scene: Scene, step: Step) -> None:
    code = scene.operate("stop", step.track)
    if code == 0:
        left = scene.members(step.track)
        if left:
            scene.journal.note("somebody lived when `stop` ended")
    scene.done.wait(step.hold / 2)
    scene.operate("start", step.track)


def _restart(scene: Scene, step: Step) -> None:
    scene.operate("restart", step.track)


def _until(scene: Scene, patience: float, look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience
    while not look() and time.monotonic() < deadline and not scene.done.wait(0.2):
        pass


def _any_of(scene: Scene, engine: str, before: set[tuple[int, float]]) -> bool:
    return any(one.key in before for one in scene.members(engine))


INJECTED: Mapping[Fault, Callable[[Scene, Step], None]] = {
    Fault.KILL_LEADER: _kill_leader,
    Fault.KILL_CORE: _kill_core,
    Fault.KILL_WORKER: _kill_worker,
    Fault.STOP_CORE: _stop("EngineCore"),
    Fault.STOP_WORKER: _stop("Worker"),
    Fault.STUCK_DEATH: _stuck_death,
    Fault.ORPHANS: _orphans,
    Fault.CRASH: _once("exit_code", 1),
    Fault.EXIT_ZERO: _once("exit_zero_after", 0.1),
    Fault.OUT_OF_MEMORY: _once("cuda_oom"),
    Fault.OOM_KILL: _oom_kill,
    Fault.NO_ANSWER: _simulated("no_answer"),
    Fault.SLOW_ANSWERS: _simulated("slow_answers"),
    Fault.ENDLESS: _simulated("endless_answers"),
    Fault.BAD_METRICS: _simulated("bad_metrics"),
    Fault.UNHEALTHY: _simulated("health_503"),
    Fault.SLOW_START: _at_start("--fault", "slow_start=5"),
    Fault.CRASH_LOOP: _at_start("--fault", "crash_after=0.3"),
    Fault.SATURATED: _busy("saturate"),
    Fault.COMPILING: _busy("compile", 20),
    Fault.STRANGER_ON_PORT: _stranger_on_port,
    Fault.STOP_AND_START: _stop_and_start,
    Fault.RESTART: _restart,
}
"""What is done for each fault of an engine."""
