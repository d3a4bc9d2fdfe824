"""Taking the steps of a gate: what a refusal carries, and what is looked at twice."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.acting import Box, repertoire, spec
from tests.support.simulated import until
from watchdog.contracts import ActionError, EngineControl, Order, Owner
from watchdog.core.model import ActionFinished, Cause, Decision, Event, engine_subject
from watchdog.daemon.waits import Waits
from watchdog.executor import Actor
from watchdog.supervisor.gate import ADVICE, GateStep, GateVerdict, Refusal, pass_gate
from watchdog.supervisor.gpu_gate import Baselines, CardMemory, Holder, memory_released

GIB = 1 << 30


@dataclass
class Steps:
    """Steps that write down when they are looked at."""

    looks: list[str] = field(default_factory=list)

    def step(self, name: str, *, slow: bool = False, again: bool = True) -> GateStep:
        """One that passes, at once or slowly."""

        def look() -> None:
            self.looks.append(name)
            if slow:
                time.sleep(0.02)

        return GateStep(name, look, again)


def test_a_refusal_carries_its_name_and_what_to_do() -> None:
    """FACT: the evidence of an outcome has the step, the verdict, and the sentence for on-call."""
    refusal = Refusal(Cause.PORT_IN_USE, "cannot use port 1: x", GateVerdict.FOREIGN_OWNER)
    with pytest.raises(ActionError, match="cannot use port 1: x") as caught:
        pass_gate([GateStep("port-free", lambda: refusal)])
    assert caught.value.cause is Cause.PORT_IN_USE
    assert caught.value.evidence == (
        ("gate", "port-free"),
        ("verdict", "foreign_owner"),
        ("advice", ADVICE[GateVerdict.FOREIGN_OWNER]),
    )


class Refusing:
    """An action whose gate refuses."""

    def run(self, order: Order, engine: EngineControl) -> None:
        """Raises ActionError."""
        del order, engine
        refusal = Refusal(Cause.PORT_IN_USE, "cannot use port 1: x", GateVerdict.PORT_TAKEN)
        pass_gate([GateStep("port-free", lambda: refusal)])


def test_an_outcome_has_the_verdict() -> None:
    """FACT: what a gate says reaches the core as the evidence of the action's outcome."""
    events: list[Event] = []
    control = cast("EngineControl", SimpleNamespace(name="main"))
    actor = Actor(control, repertoire(spec("start_engine", Refusing())), events.append, Box())
    target = engine_subject("main")
    actor.submit(Decision(0.0, "operator", target, "start_engine", Cause.OPERATOR))
    (event,) = until(lambda: events)
    actor.close()
    assert isinstance(event, ActionFinished)
    assert dict(event.outcome.evidence)["verdict"] == "port_taken"


def test_a_refusal_may_know_better() -> None:
    """FACT: advice of its own comes before that of the verdict."""
    assert Refusal(Cause.UNKNOWN, "x", advice="do y").what_to_do == "do y"


def test_every_verdict_has_advice() -> None:
    """FACT: one sentence each, as the other lines of ours: lower case, without a full stop."""
    assert set(ADVICE) == set(GateVerdict)
    for advice in ADVICE.values():
        assert advice[:1].islower()
        assert not advice.endswith(".")


def test_what_was_looked_at_long_ago_is_looked_at_again() -> None:
    """FACT: after a step that took long the earlier ones are taken again, but hooks are not."""
    steps = Steps()
    hook = steps.step("hook", again=False)
    pass_gate(
        [steps.step("set"), hook, steps.step("port"), steps.step("turn", slow=True)], old=0.01
    )
    assert steps.looks == ["set", "hook", "port", "turn", "set", "port"]


def test_a_quick_gate_is_taken_once() -> None:
    """FACT: without a wait nothing is looked at twice."""
    steps = Steps()
    pass_gate([steps.step("set"), steps.step("port"), steps.step("turn")], old=30.0)
    assert steps.looks == ["set", "port", "turn"]


@dataclass
class Clocked:
    """Waits with a clock of their own."""

    now: float = 0.0
    said: list[tuple[str, str]] = field(default_factory=list)

    def waits(self) -> Waits:
        """They tell us."""
        return Waits(lambda name, text: self.said.append((name, text)), lambda: self.now)


def test_what_is_slow_the_second_time_makes_a_third_look() -> None:
    """FACT: a wait for memory behind a long hook is as long a time, and bounded too."""
    steps = Steps()

    def memory() -> None:
        steps.looks.append("memory")
        if steps.looks.count("memory") == 2:
            time.sleep(0.3)

    turn = GateStep("turn", lambda: time.sleep(0.3))
    pass_gate([steps.step("port"), GateStep("memory", memory, again=True), turn], old=0.2)
    assert steps.looks == ["port", "memory"] * 3


def test_what_is_always_slow_is_not_looked_at_for_ever() -> None:
    """FACT: a look that always takes its time ends the start's patience, not the start."""
    steps = Steps()
    pass_gate([steps.step("memory", slow=True), steps.step("turn", slow=True)], old=0.001)
    assert steps.looks == ["memory", "turn", *["memory"] * 3]


def test_a_long_wait_is_said_once() -> None:
    """FACT: after two seconds the journal has a line, one a wait; status has it from the start."""
    time_ = Clocked()
    waits = time_.waits()
    for now in (0.0, 1.9, 2.1, 30.0):
        time_.now = now
        waits.on("main", "engine b to leave its place")
        assert len(time_.said) == (now > 2)
    assert time_.said == [("main", "main waits for engine b to leave its place")]
    assert waits.of("main") == "engine b to leave its place, for 30 s"
    assert waits.of("other") is None
    waits.over("main")
    assert waits.of("main") is None
    waits.on("main", "x")
    assert waits.of("main") == "x, for 0 s"


def held(*holders: Holder, nobodys: int = 0) -> tuple[CardMemory, ...]:
    """A card with so much on it."""
    used = sum(one.bytes or 0 for one in holders) + nobodys * GIB
    return (CardMemory(0, "GPU-0", used, 140 * GIB, holders),)


def process(owner: Owner, engine: str = "", comm: str = "VLLM::EngineCor") -> Holder:
    """One with most of the card."""
    return Holder(4242, comm, 100 * GIB, owner, engine)


@pytest.mark.parametrize(
    ("cards", "told", "verdict"),
    [
        (
            held(process(Owner.ORPHAN, "main")),
            "GPU 0: 100.0 GiB still held by process 4242 (VLLM::EngineCor) of an older start",
            GateVerdict.ORPHAN_OF_OURS,
        ),
        (
            held(process(Owner.ORPHAN, "b")),
            "GPU 0: 100.0 GiB still held by process 4242 (VLLM::EngineCor) of an older start of b",
            GateVerdict.ORPHAN_OF_OURS,
        ),
        (
            held(process(Owner.UNKNOWN, comm="")),
            "GPU 0: 86.0 GiB of room",
            GateVerdict.UNSEEN_OWNER,
        ),
        (
            held(nobodys=100),
            "GPU 0: 100.0 GiB still held by no visible process",
            GateVerdict.NO_VISIBLE_OWNER,
        ),
        (held(process(Owner.FOREIGN)), None, GateVerdict.FOREIGN_OWNER),
    ],
)
def test_memory_is_waited_for_in_words_and_refused_by_name(
    cards: tuple[CardMemory, ...], told: str | None, verdict: GateVerdict
) -> None:
    """FACT (G1, G2, G3): whose it is decides the verdict; a stranger is not waited for."""
    words: list[str] = []
    step = memory_released(
        lambda: cards,
        "main",
        None,
        0.9,
        Baselines(),
        wait=lambda _: True,
        tell=words.append,
    )
    refusal = step()
    assert refusal is not None
    assert (refusal.cause, refusal.verdict) == (Cause.GPU_MEMORY_SHORT, verdict)
    assert words == ([] if told is None else [told])
