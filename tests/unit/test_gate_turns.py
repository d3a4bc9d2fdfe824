"""Whose turn it is: who counts as starting, who comes first, and how a turn ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.engines import Engines
from tests.support.simulated import until
from watchdog import registry
from watchdog.core.changing import changed
from watchdog.core.model import ProcessState, Verb
from watchdog.core.state import EngineSettings, EngineState, State, Vitals
from watchdog.daemon.gates import Gates
from watchdog.daemon.turns import Turns
from watchdog.supervisor.gate import GateVerdict, Refusal

STARTING, RUNNING, STOPPING = ProcessState.STARTING, ProcessState.RUNNING, ProcessState.STOPPING


@dataclass
class Core:
    """A state that is published, a clock that stands still, and the turns of them."""

    now: float = 1000.0
    limit: int = 1
    state: State = field(default_factory=State)
    turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        self.turns = Turns(lambda: self.state, lambda: self.limit, lambda: self.now)

    def show(self, name: str, process: ProcessState = STARTING, **fields: Any) -> None:  # noqa: ANN401
        """The core shows the engine so, in its gate unless it has a leader."""
        engine = self.state.engines.get(name, EngineState(EngineSettings(name)))
        self.state = self.state.with_engine(changed(engine, process=process, **fields))

    def at_gate(self, *names: str) -> None:
        """Their starts are under way and nothing is spawned."""
        for name in names:
            self.show(name, in_flight="start_engine", started_at=self.now)

    def spawned(self, name: str) -> None:
        """Its leader lives and its action is over."""
        self.show(name, leader=42, started_at=self.now, in_flight="")

    def may(self, name: str) -> bool:
        """Whether it is its turn."""
        return self.turns.ask(name) is None


def test_a_single_engine_is_not_delayed() -> None:
    """FACT: nobody else starts: its turn is when it first asks, also in a restart."""
    core = Core()
    core.at_gate("main")
    assert core.may("main")
    core.show("main", STOPPING, in_flight="restart_engine")
    assert core.may("main")


def test_one_after_the_other() -> None:
    """FACT: a turn lasts from the gate over the spawn until the engine runs."""
    core = Core()
    core.at_gate("a", "b")
    assert core.may("a")
    assert core.turns.ask("b") == "a"
    core.spawned("a")
    assert not core.may("b")
    core.show("a", RUNNING)
    assert core.may("b")


def test_who_waits_is_in_nobodys_way() -> None:
    """FACT: engines at their gates count only with a turn: two never wait for each other."""
    core = Core()
    core.at_gate("a", "b", "c")
    assert [core.may(name) for name in "cab"] == [True, False, False]
    assert core.turns.ask("b") == "c and a"


def test_first_come_first_served() -> None:
    """FACT: whoever asks again in between, the one that asked first is next."""
    core = Core()
    core.show("x", leader=1, started_at=core.now)
    core.at_gate("a", "b")
    assert not core.may("b")
    assert not core.may("a")
    core.show("x", RUNNING)
    assert not core.may("a")
    assert core.may("b")


def test_several_at_once() -> None:
    """FACT: starts_at_once is how many start together."""
    core = Core(limit=2)
    core.at_gate("a", "b", "c")
    assert [core.may(name) for name in "abc"] == [True, True, False]
    core.limit = 3
    assert core.may("c")


@pytest.mark.parametrize("how", ["failed", "left", "gone"])
def test_a_start_that_failed_frees_its_turn(how: str) -> None:
    """FACT: by the core's word that its action is over, by ours, or by its removal."""
    core = Core()
    core.at_gate("a", "b")
    assert core.may("a")
    assert not core.may("b")
    if how == "failed":
        core.show("a", ProcessState.BACKOFF, in_flight="")
    elif how == "left":
        core.turns.left("a")
    else:
        core.state = changed(core.state, engines={"b": core.state.engines["b"]})
    assert core.may("b")


def test_who_gives_up_frees_its_place() -> None:
    """FACT: the place in the queue of one that asks no more is nobody's."""
    core = Core()
    core.show("x", leader=1, started_at=core.now)
    core.at_gate("a", "b")
    assert not core.may("a")
    assert core.turns.ask("b") == "x and a"
    core.turns.left("a")
    assert core.turns.ask("b") == "x"


def test_two_that_restart_together_do_not_wait_for_each_other() -> None:
    """FACT: a turn is for one start; who had the last one, and asks again, waits behind others."""
    core = Core()
    core.at_gate("a", "b")
    assert core.may("b")
    core.spawned("b")
    core.show("b", RUNNING)
    assert core.may("a")
    core.spawned("a")
    core.show("a", RUNNING)
    for name in "ab":
        core.show(name, ProcessState.BACKOFF, leader=None, in_flight="restart_engine")
    core.may("b")
    assert not core.may("a")
    assert core.may("b")


def test_who_drains_for_a_restart_has_no_turn() -> None:
    """FACT: the turn of the start before does not count for an engine that has run since."""
    core = Core()
    core.at_gate("a", "b")
    assert core.may("a")
    core.spawned("a")
    core.show("a", RUNNING, generation="first")
    core.show("a", STOPPING, in_flight="restart_engine")
    assert core.may("b")


def test_an_adopted_engine_that_still_starts_counts() -> None:
    """FACT: also one that an earlier watchdog started, as long as its start is not overdue."""
    core = Core()
    core.show("old", leader=1, started_at=core.now - 1000, adopted=True)
    core.at_gate("a")
    assert not core.may("a")
    core.now += 900  # its start_timeout is 1,800 s
    assert core.may("a")


def test_a_slow_start_with_progress_counts_on() -> None:
    """FACT: 30 minutes of loading are no stall while there are signs of progress."""
    core = Core()
    vitals = Vitals(start_sign_at=core.now - 10)
    core.show("slow", leader=1, started_at=core.now - 5000, vitals=vitals)
    core.at_gate("a")
    assert not core.may("a")


def test_a_start_past_its_deadline_does_not_count() -> None:
    """FACT: nobody waits longer for another engine than that engine's own limits allow."""
    core = Core()
    settings = EngineSettings("slow", start_deadline=60.0)
    engine = EngineState(settings, process=STARTING, leader=1, started_at=core.now - 59)
    core.state = core.state.with_engine(engine)
    core.at_gate("a")
    assert not core.may("a")
    core.now += 1
    assert core.may("a")


def test_a_spawn_that_hangs_holds_its_turn_only_so_long() -> None:
    """FACT: an action that never ends holds a turn for the start_timeout of its engine."""
    core = Core()
    core.at_gate("a", "b")
    assert core.may("a")
    core.now += 1799
    assert not core.may("b")
    core.now += 1
    assert core.may("b")


@dataclass
class Gate:
    """The turn step of real gates, and the words for the journal."""

    core: Core
    gates: Gates
    said: list[tuple[str, str]] = field(default_factory=list)
    unwanted: set[str] = field(default_factory=set)

    def look(self, name: str) -> Refusal | None:
        """Take the step."""
        return self.gates.turn(name).look()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """An engine x that loads, and a and b at their gates."""
    core = Core()
    core.show("x", leader=1, started_at=core.now)
    core.at_gate("a", "b")
    made = Gate(core, Gates(registry.probes(), Engines(()), {}, turns=core.turns))
    made.gates.say = lambda name, text: made.said.append((name, text))
    made.gates.unwanted = lambda name: name in made.unwanted
    yield made
    made.gates.close()


def test_a_wait_for_a_turn_is_shown(gate: Gate) -> None:
    """FACT: status can say what a start waits for; afterwards there is nothing to say."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gate.look, "a")
        until(lambda: gate.gates.waiting("a") == "its turn to start: x first, for 0 s")
        gate.core.show("x", RUNNING)
        assert waiting.result(30) is None
    assert gate.gates.waiting("a") is None


def stop_wanting(gate: Gate) -> None:
    """An operator stops it."""
    gate.unwanted.add("a")


def shut_down(gate: Gate) -> None:
    """The watchdog leaves: what waits is not made."""
    gate.gates.hurried = lambda: True


def end(gate: Gate) -> None:
    """The watchdog ends."""
    gate.gates.end()


@pytest.mark.parametrize(
    ("cut", "verdict"),
    [
        (stop_wanting, GateVerdict.NOT_WANTED),
        (shut_down, GateVerdict.STOPPING),
        (end, GateVerdict.STOPPING),
    ],
)
def test_a_wait_for_a_turn_is_cut(
    gate: Gate, cut: Callable[[Gate], None], verdict: GateVerdict
) -> None:
    """FACT: it is refused with its name, and its place in the queue is free."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gate.look, "a")
        until(lambda: gate.gates.waiting("a"))
        cut(gate)
        refusal = waiting.result(30)
    assert refusal is not None
    assert refusal.verdict is verdict
    assert gate.core.turns.ask("b") == "x"


def test_many_at_once_all_get_their_turn() -> None:
    """FACT: eight engines that ask at the same moment start one by one, and none is forgotten."""
    core, names, loading = Core(), [f"e{n}" for n in range(8)], threading.Semaphore(1)
    core.at_gate(*names)
    gates = Gates(registry.probes(), Engines(()), {}, turns=core.turns)
    lock = threading.Lock()

    def start(name: str) -> bool:
        passed = gates.turn(name).look() is None
        alone = loading.acquire(blocking=False)
        with lock:
            core.spawned(name)
        loading.release()
        with lock:
            core.show(name, RUNNING)
        return passed and alone

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(start, names)) == [True] * 8


def test_an_end_in_between_is_a_stop(gate: Gate) -> None:
    """FACT: a turn that came with the word to stop is not kept."""
    gate.core.show("x", RUNNING)
    gate.unwanted.add("a")
    gate.core.show("a", pending=Verb.STOP)
    assert gate.look("a") is not None
    assert gate.core.may("b")
