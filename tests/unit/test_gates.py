"""The start's gates: the driver's floor and its mismatch, and the cards that are looked at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from probes._nvml.client import CardIdentity, NvmlUnavailableError
from probes.gpu_processes import GpuProcesses
from tests.support import cuda_engine
from tests.support.engines import Engines
from tests.support.simulated import until
from watchdog import registry
from watchdog.command_line import describe
from watchdog.contracts import Owned, Owner
from watchdog.core.model import Cause
from watchdog.daemon.gates import Gates
from watchdog.daemon.gpu_look import PROBE, GpuLook
from watchdog.places import assigned
from watchdog.supervisor.gate import GateVerdict, Refusal

GIB = 1 << 30
STRANGER = 460
MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sat Aug 19 01:15:15 UTC\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A file system with an engine whose torch wants CUDA 13.0; see ``driver`` for the rest."""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "usr/lib64").mkdir(parents=True)
    return tmp_path


def driver(machine: Path, module: str, library: str) -> None:
    """Load a kernel module, and install the libraries of a driver."""
    (machine / "proc/driver/nvidia/version").write_text(MODULE.format(module))
    file = machine / f"usr/lib64/libcuda.so.{library}"
    file.write_bytes(b"\x7fELF\x02")
    (machine / "usr/lib64/libcuda.so.1").symlink_to(file.name)


def refused(machine: Path, *command: str, floors: dict[str, str] | None = None) -> Refusal | None:
    """What the driver's gate says to an engine of this machine."""
    gates = Gates(registry.probes(), Engines(()), floors or {}, str(machine))
    step, _ = gates.steps("main", describe(command, {}, {}), dict, tuple)
    assert (step.name, step.again) == ("driver-fits", True)
    return step.look()


def vllm(machine: Path, cuda: str = "13.0") -> tuple[str, ...]:
    """The command of an installed engine, as the file system of the machine names it."""
    script = cuda_engine.installed(machine / "opt" / "env", cuda)
    inside = str(script).removeprefix(str(machine))
    script.write_text(f"#!{Path(inside).parent}/python\n")
    return (inside, "serve", "m")


def test_an_old_driver_refuses_the_start_with_all_versions(machine: Path) -> None:
    """FACT (G13): before the start, in one sentence: what is there, wanted and needed."""
    driver(machine, "550.54.14", "550.54.14")
    found = refused(machine, *vllm(machine))
    assert found is not None
    assert found.cause is Cause.DRIVER_TOO_OLD
    for words in ("cannot start main: ", "550.54.14", "CUDA 13.0", "580.65.06"):
        assert words in found.explanation


def test_a_driver_at_the_floor_starts(machine: Path) -> None:
    """FACT (G13): the family's floor is enough, and so is anything newer."""
    driver(machine, "580.65.06", "580.65.06")
    assert refused(machine, *vllm(machine)) is None


def test_the_floors_of_the_configuration_count(machine: Path) -> None:
    """FACT (G13): a family that the table lacks is judged by what the probe is told of it."""
    driver(machine, "580.65.06", "580.65.06")
    command = vllm(machine, "99.0")
    assert refused(machine, *command) is None
    assert refused(machine, *command, floors={"99": "999.10"}) is not None


def test_a_half_upgraded_driver_refuses_the_start(machine: Path) -> None:
    """FACT (G12): libraries of another version than the module are CUDA's error 803 to come."""
    driver(machine, "580.65.06", "580.82.07")
    found = refused(machine, *vllm(machine))
    assert found is not None
    assert found.cause is Cause.DRIVER_MISMATCH
    assert "580.65.06" in found.explanation
    assert "580.82.07" in found.explanation


def test_what_wants_no_cuda_starts_on_any_driver(machine: Path) -> None:
    """FACT: an engine on the CPU is not refused for a driver that it never asks."""
    driver(machine, "450.80.02", "580.82.07")
    assert refused(machine, *vllm(machine, "")) is None
    assert refused(machine, "python3", "-m", "watchdog.simulator") is None


@dataclass
class Cards:
    """A driver with cards of 140 GiB; ``held`` has the GiB of a stranger, ``nobodys`` of nobody."""

    held: tuple[int, ...] = (0, 0)
    nobodys: int = 0
    error: Exception | None = None
    asked: int = 0
    built: int = 0
    closed: int = 0
    trouble: str = ""
    unanswered_since: float | None = None
    cards: tuple[CardIdentity, ...] = ()

    def ask(self, request: str, deadline: float) -> dict[str, Any]:
        """The present list."""
        assert request == "processes"
        assert deadline > time.monotonic()
        self.asked += 1
        if self.error is not None:
            raise self.error
        found = [self._card(index, size * GIB) for index, size in enumerate(self.held)]
        return {"driver": "580.159.04", "gpus": found}

    def _card(self, index: int, size: int) -> dict[str, Any]:
        return {
            "index": index,
            "uuid": f"GPU-{index}",
            "errors": {},
            "mig": False,
            "memory_used_bytes": size + self.nobodys * GIB,
            "memory_total_bytes": 140 * GIB,
            "processes": [[STRANGER, size, None, None]] if size else [],
        }

    def close(self) -> None:
        """Given back."""
        self.closed += 1


@dataclass
class Start:
    """The GPU step of one engine on a machine with ``cards``."""

    gates: Gates
    cards: Cards
    command: tuple[str, ...]
    environment: dict[str, str]
    seen: tuple[str, ...] = ()

    @property
    def step(self) -> Callable[[], Refusal | None]:
        """Looks as often as it is called."""
        said = describe(self.command, {}, {})
        return self.gates.steps("main", said, lambda: self.environment, lambda: self.seen)[1].look


def start(machine: Path, cards: Cards, *command: str, **environment: str) -> Start:
    """A start of ``command``, or of an engine that wants CUDA 13.0."""
    box = Engines((), {STRANGER: Owned(Owner.FOREIGN, "sleep")})

    def build(_: object, __: object) -> GpuProcesses:
        cards.built += 1
        time.sleep(0)  # let another thread in
        return GpuProcesses(cards, box)

    specs = {PROBE: replace(registry.probes()[PROBE], build=build)}
    return Start(Gates(specs, box, {}, str(machine)), cards, command or vllm(machine), environment)


def blamed(found: Refusal | None) -> str:
    """Which card the refusal names; "" without one."""
    return "" if found is None else found.explanation.partition(" of GPU ")[2][:1]


def test_no_visible_card_is_not_all_cards(machine: Path) -> None:
    """FACT: an engine that may use no card is not refused for one, and none is looked at."""
    cards = Cards(held=(120, 120))
    assert blamed(start(machine, cards).step()) == "0"
    cards.asked = 0
    begun = start(machine, cards, "/opt/env/bin/vllm", "serve", "m", CUDA_VISIBLE_DEVICES="")
    assert begun.step() is None
    assert cards.asked == 0


@pytest.mark.parametrize(
    ("flags", "visible_cards", "card"),
    [
        ((), "0,1", ""),
        ((), "1,0", "1"),
        (("-tp", "2"), "0,1", "1"),
        (("--data-parallel-size=2",), "0,1", "1"),
    ],
)
def test_only_as_many_cards_as_ranks_are_used(
    machine: Path, flags: tuple[str, ...], visible_cards: str, card: str
) -> None:
    """FACT: of more visible cards than ranks CUDA's processes take the first ones."""
    command = (*vllm(machine), *flags)
    cards = Cards(held=(0, 120))
    begun = start(machine, cards, *command, CUDA_VISIBLE_DEVICES=visible_cards)
    assert blamed(begun.step()) == card


def test_the_cards_that_it_was_seen_on_are_known(machine: Path) -> None:
    """FACT: where it was last seen counts more than what is expected."""
    begun = start(machine, Cards(held=(0, 120)))
    assert begun.step() is None
    begun.seen = ("GPU-1",)
    assert blamed(begun.step()) == "1"


def test_an_env_in_front_names_the_cards(machine: Path) -> None:
    """FACT: ``env A=b vllm serve`` sets what the engine sees, over what the configuration says."""
    engine = vllm(machine)
    wrapped = ("nice", "env", "CUDA_VISIBLE_DEVICES=1", *engine)
    first, second = Cards(held=(120, 0)), Cards(held=(0, 120))
    assert start(machine, first, *wrapped, CUDA_VISIBLE_DEVICES="0").step() is None
    assert blamed(start(machine, second, *wrapped, CUDA_VISIBLE_DEVICES="0").step()) == "1"
    taken = ("env", "-u", "CUDA_VISIBLE_DEVICES", *engine)
    assert start(machine, second, *taken, CUDA_VISIBLE_DEVICES="1").step() is None


def test_only_an_env_assigns() -> None:
    """FACT: words of the engine's own with a "=" set no variable."""
    assert assigned(("/usr/bin/env", "A=b", "A=c", "D=", "vllm", "serve", "E=f")) == {
        "A": "c",
        "D": "",
    }
    assert assigned(("vllm", "serve", "m", "A=b")) == {}
    assert assigned(("env",)) == {}


@pytest.mark.parametrize(
    "flags",
    [
        ("--data-parallel-size", "2", "--data-parallel-rank", "0"),
        ("-dp", "2", "-dpn=0"),
        ("-dp", "2", "-dpr", "1"),
        ("-dp", "2", "--data_parallel_size_local", "1"),
        ("-tp", "2", "--nnodes", "2", "--node-rank", "0"),
        ("-tp=2", "-n", "2", "-r", "0"),
        ("-tp=2", "--distributed-executor-backend", "ray"),
        ("-dp=2", "--data-parallel-backend=ray"),
        ("-dp=2", "--data-parallel-hybrid-lb"),
        ("-tp=2", "--headless"),
        ("-tp=2", "--device-ids", "1,0"),
    ],
)
def test_of_several_nodes_or_ranks_nobody_knows_the_cards(
    machine: Path, flags: tuple[str, ...]
) -> None:
    """FACT: then no stranger is in the way, on whichever card it is."""
    begun = start(machine, Cards(held=(120, 120)), *vllm(machine), *flags)
    assert begun.step() is None


@pytest.mark.parametrize(
    "flags",
    [
        ("--distributed-executor-backend", "mp"),
        ("--data-parallel-backend=mp", "-dp=1"),
        ("--data-parallel-rpc-port", "5555"),
        ("--no-enable-prefix-caching",),
    ],
)
def test_what_stays_on_this_machine_is_known(machine: Path, flags: tuple[str, ...]) -> None:
    """FACT: flags that move no rank leave the room test as it is."""
    assert blamed(start(machine, Cards(held=(120, 0)), *vllm(machine), *flags).step()) == "0"


def test_an_engine_on_the_cpu_has_no_gpu_step(machine: Path) -> None:
    """FACT: neither the simulator nor a torch without CUDA is held up by anything on a card."""
    cards = Cards(nobodys=100)
    cpu = cuda_engine.installed(machine / "opt" / "cpu", "")
    version = next(cpu.parent.parent.glob("lib/*/site-packages/torch/version.py"))
    version.write_text("cuda = None\nhip = None\n")
    cpu.write_text("#!/opt/cpu/bin/python\n")
    for command in (
        ("/opt/cpu/bin/vllm", "serve", "m"),
        ("python3", "-m", "watchdog.simulator"),
    ):
        assert start(machine, cards, *command).step() is None
    assert cards.asked == 0


def test_a_start_looks_once(machine: Path) -> None:
    """FACT: which cards there are and what is on them is one look."""
    cards = Cards()
    assert start(machine, cards).step() is None
    assert cards.asked == 1


def test_a_driver_that_failed_is_not_asked_again_at_once(machine: Path) -> None:
    """FACT: starts in a row wait once for a driver that does not answer."""
    cards = Cards(held=(120, 0), error=NvmlUnavailableError("cannot read any GPU: no answer"))
    begun = start(machine, cards)
    assert begun.step() is None
    assert begun.step() is None
    assert cards.asked == 1


def test_a_driver_that_failed_is_asked_again_later() -> None:
    """FACT: after the rest a look is a look again."""
    cards = Cards(error=NvmlUnavailableError("cannot read any GPU: no answer"))
    look = GpuLook(GpuProcesses(cards, Engines(())), rest=0.0)
    assert look() is None
    cards.error = None
    assert len(look() or ()) == 2


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), KeyError("index")])
def test_a_look_that_breaks_stops_nobody(machine: Path, error: Exception) -> None:
    """FACT: what the gate cannot find out is no reason to refuse a start."""
    assert start(machine, Cards(held=(120, 0), error=error)).step() is None


def test_an_environment_that_breaks_stops_nobody(machine: Path) -> None:
    """FACT: neither step lets an error of its own out."""

    def broken() -> dict[str, str]:
        raise OSError(5, "I/O error")

    gates = Gates(registry.probes(), Engines(()), {}, str(machine))
    for step in gates.steps("main", describe(vllm(machine), {}, {}), broken, tuple):
        assert step.look() is None


STOPPING = Refusal(
    Cause.OPERATOR, "cannot start main: the watchdog is stopping", GateVerdict.STOPPING
)


def test_the_end_is_not_waited_for(machine: Path) -> None:
    """FACT: a start that waits for memory is refused as soon as the watchdog ends."""
    cards = Cards()
    begun = start(machine, cards)
    assert begun.step() is None
    cards.nobodys = 100
    found: list[Refusal | None] = []
    waiting = threading.Thread(target=lambda: found.append(begun.step()), daemon=True)
    waiting.start()
    until(lambda: cards.asked > 2)
    begun.gates.end()
    waiting.join(30)
    assert found == [STOPPING]


@pytest.mark.parametrize("finish", [Gates.end, Gates.close])
def test_after_the_end_nothing_passes(machine: Path, finish: Callable[[Gates], None]) -> None:
    """FACT: both steps refuse, and nothing is built any more."""
    cards = Cards()
    begun = start(machine, cards)
    finish(begun.gates)
    said = describe(begun.command, {}, {})
    for step in begun.gates.steps("main", said, dict, tuple):
        assert step.look() == STOPPING
    assert cards.built == 0


def test_two_first_starts_share_one_look(machine: Path) -> None:
    """FACT: the probe is built once, however many engines start first, and given back once."""
    cards = Cards()
    begun = start(machine, cards)
    steps = [begun.step for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda step: step(), steps)) == [None] * 8
    begun.gates.close()
    begun.gates.close()
    assert (cards.built, cards.closed) == (1, 1)
