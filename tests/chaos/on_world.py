"""Faults of the watchdog, its box and its callers. Each is put in force, held and taken back."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Mapping

from tests.chaos import hostile
from tests.chaos.bystander import Bystander
from tests.chaos.journal import Invariant
from tests.chaos.place import SPARE
from tests.chaos.plan import Fault, Step
from tests.chaos.scene import Scene
from tests.support.fake_nvml import LOST, bus_id

GIB = 1 << 30
_BAD = (
    '[engine.main]\nstart_timeout = "soon"\n',
    "[policy]\nbudget = 5\n",
    '[[rule]]\nname = "x"\nsubject = "engine"\nwhen = "engine.nothing > 1"\n',
    '[engine.main]\nstart_timeout = "30',
    "\0\xff",
)
_JUMPS = (86_400, -86_400, 3_600, -3_600, 7, -7, 30 * 86_400)
_GARBAGE_PIDS = (0, 4_294_967_295, 1)


def inject(scene: Scene, step: Step) -> None:
    """Do it, and take it back."""
    INJECTED[step.fault](scene, step)


def _kill(scene: Scene, step: Step) -> None:
    scene.keeper.kill(wait=step.dice % 3000 / 1000)
    _until_up(scene)


def _kill_twice(scene: Scene, step: Step) -> None:
    scene.keeper.kill(wait=0.05)
    scene.done.wait(0.1 + step.dice % 1500 / 1000)
    scene.keeper.kill(wait=0.1)
    _until_up(scene)


def _until_up(scene: Scene) -> None:
    """A service manager waits until it answers; a fault on top would be another one."""
    for _ in range(200):
        if scene.keeper.up or scene.done.wait(0.1):
            return


def _disk_full(scene: Scene, step: Step) -> None:
    """Every third time the watchdog is killed on the full disk."""
    if not scene.place.small_disk:
        scene.journal.note("no disk of our own: left out")
        return
    ballast = scene.place.state / "ballast"
    try:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            _fill(file.fileno())
        scene.done.wait(step.hold)
        if step.dice % 3 == 0:
            scene.keeper.kill(wait=0.2)
            _until_up(scene)
            scene.done.wait(step.hold)
    finally:
        ballast.unlink(missing_ok=True)
    scene.done.wait(2.0)


def _fill(file: int) -> None:
    for size in (65536, 4096):
        try:
            while os.write(file, b"x" * size):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _clock_jump(scene: Scene, step: Step) -> None:
    scene.place.jump(_JUMPS[step.dice % len(_JUMPS)])
    scene.done.wait(step.hold)
    scene.place.jump(0)


def _good_reload(scene: Scene, step: Step) -> None:
    """Another period, which is no engine's matter: nobody is restarted for it."""
    scene.place.write(f'[probes.memory]\nperiod = "{2 + step.dice % 9}s"\n')
    scene.journal.note(f"good reload ended with {scene.keeper.command('reload').returncode}")


def _bad_reload(scene: Scene, step: Step) -> None:
    scene.keeper.bad_file = True
    try:
        bad = _BAD[step.dice % len(_BAD)]
        fresh = scene.place.folder / "bad.toml"
        fresh.write_text(bad, encoding="latin-1")
        fresh.replace(scene.place.file)
        code = scene.keeper.command("reload").returncode
        scene.journal.check(Invariant.STAYS, code != 0, f"a bad file was taken: {bad!r}")
    finally:
        scene.place.write()
    _until_up(scene)
    scene.keeper.bad_file = False


def _pause(scene: Scene, step: Step) -> None:
    scene.keeper.command("pause", "--reason", "chaos", "--for", "60s")
    scene.done.wait(step.hold)
    for _ in range(10):
        if scene.keeper.command("resume").returncode == 0 or scene.done.wait(1.0):
            return


def _standby(scene: Scene, step: Step) -> None:
    scene.operate("start", SPARE)
    scene.done.wait(step.hold)
    for _ in range(10):
        if scene.operate("stop", SPARE) == 0 or scene.done.wait(1.0):
            return


def _http(attack: hostile.Attack) -> Callable[[Scene, Step], None]:
    def do(scene: Scene, step: Step) -> None:
        attack(scene.place.listen, step.hold, step.dice, scene.done.wait)

    return do


@contextlib.contextmanager
def _cards(scene: Scene, **changes: object) -> Iterator[None]:
    before = {key: scene.place.nvml.lines.get(key) for key in changes}
    scene.place.nvml.set(changes)
    try:
        yield
    finally:
        scene.place.nvml.set(before)


def _nvml_hangs(scene: Scene, step: Step) -> None:
    """For good, or for 300 ms a call: in the call that counts cards, or in one about a card."""
    name = ("nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo")[step.dice % 2]
    with _cards(scene, **{f"do.{name}": ("hang", "slow", "crash")[step.dice % 3]}):
        scene.done.wait(step.hold * 2)


def _nvml_fails(scene: Scene, step: Step) -> None:
    with _cards(scene, **{f"{step.dice % 2}.lost": LOST}):
        scene.done.wait(step.hold)


def _nvml_garbage(scene: Scene, step: Step) -> None:
    """Numbers that are nobody's, that of init, and that of a stranger as one more."""
    pids = [*_GARBAGE_PIDS, scene.bystanders[0].process.pid]
    rows = [f"{pid} {GIB}" for pid in pids]
    with _cards(scene, **{f"{step.dice % 2}.process": rows}):
        scene.done.wait(step.hold)


def _stranger_on_card(scene: Scene, step: Step) -> None:
    one = Bystander.start(scene.place.folder, "VLLM::EngineCore", ())
    scene.bystanders.append(one)
    card = step.dice % 2
    row = f"{one.process.pid} {120 * GIB}"
    changes = {f"{card}.memory_used": 120 * GIB, f"{card}.process": row}
    with _cards(scene, **changes):
        scene.done.wait(step.hold)
    scene.look_at_strangers()
    if one in scene.bystanders:
        scene.bystanders.remove(one)
        one.close()


def _xid(number: int) -> Callable[[Scene, Step], None]:
    def do(scene: Scene, step: Step) -> None:
        who = scene.bystanders[0].process.pid
        where = bus_id(step.dice % 2)[:-2]
        scene.place.kernel.says(f"NVRM: Xid (PCI:{where}): {number}, pid={who}, name=x, MMU Fault")
        scene.done.wait(step.hold)

    return do


def _xid_forged(scene: Scene, step: Step) -> None:
    says = scene.place.kernel.says
    says(f"NVRM: Xid (PCI:{bus_id(0)[:-2]}): 79, pid=1, name=x, fallen off the bus", 11)
    says("NVRM: Xid (PCI:" + "9" * 500)
    says("NVRM: Xid (PCI:0000:00:06): -1, pid=99999999999999999999, name=\\x00\\xff")
    scene.place.kernel.raw(b"\xff\xfe;;;,,,\n")
    scene.place.kernel.raw(b"99999999999999999999999,-1,x,-;NVRM: Xid\n")
    scene.done.wait(step.hold / 2)


INJECTED: Mapping[Fault, Callable[[Scene, Step], None]] = {
    Fault.KILL_WATCHDOG: _kill,
    Fault.KILL_WATCHDOG_TWICE: _kill_twice,
    Fault.DISK_FULL: _disk_full,
    Fault.CLOCK_JUMP: _clock_jump,
    Fault.GOOD_RELOAD: _good_reload,
    Fault.BAD_RELOAD: _bad_reload,
    Fault.PAUSE: _pause,
    Fault.STANDBY: _standby,
    Fault.GARBAGE_HTTP: _http(hostile.garbage),
    Fault.SLOW_LORIS: _http(hostile.slow_loris),
    Fault.HUGE_HEADERS: _http(hostile.huge_headers),
    Fault.CROWD: _http(hostile.crowd),
    Fault.NVML_HANGS: _nvml_hangs,
    Fault.NVML_FAILS: _nvml_fails,
    Fault.NVML_GARBAGE: _nvml_garbage,
    Fault.STRANGER_ON_CARD: _stranger_on_card,
    Fault.XID_APPLICATION: _xid(31),
    Fault.XID_RESET: _xid(95),
    Fault.XID_FORGED: _xid_forged,
}
"""What is done for each fault of the world."""
