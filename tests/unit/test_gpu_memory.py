"""The gate's GPU step: who holds memory, who is waited for, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from watchdog.contracts import ActionError, Owner
from watchdog.core.model import Cause
from watchdog.supervisor.gate import GateStep, Refusal, pass_gate
from watchdog.supervisor.gpu_gate import Baselines, CardMemory, Holder, memory_released

GIB = 1 << 30
TOTAL = 140 * GIB
Cards = tuple[CardMemory, ...] | None


def card(*holders: Holder, nobodys: int = 0, index: int = 0, mig: bool = False) -> CardMemory:
    """A card of 140 GiB with these processes, and GiB that no process holds."""
    used = sum(holder.bytes or 0 for holder in holders) + nobodys * GIB
    return CardMemory(index, f"GPU-{index}", used, TOTAL, holders, mig)


def holder(owner: Owner, size: int | None, engine: str = "", pid: int = 460) -> Holder:
    """A process with GiB of memory."""
    return Holder(pid, "python3", None if size is None else size * GIB, owner, engine)


FREE = card()


@dataclass
class Passing:
    """Time that passes only when somebody waits: each wait shows the next state of the cards."""

    states: list[Cards]
    rests: list[float] = field(default_factory=list)
    looks: int = 0
    most: int = 1000

    def look(self) -> Cards:
        """The present state; the last one stays."""
        self.looks += 1
        return self.states[min(len(self.rests), len(self.states) - 1)]

    def wait(self, seconds: float) -> bool:
        """Time goes by, until there is no more of it."""
        self.rests.append(seconds)
        return len(self.rests) >= self.most


@dataclass
class Gate:
    """One engine's step with its surroundings."""

    fraction: float | None = 0.9
    cards: tuple[str, ...] | None = None
    baselines: Baselines = field(default_factory=Baselines)
    last: Passing = field(default_factory=lambda: Passing([]))

    def passed(self, *states: Iterable[CardMemory] | None, most: int = 20) -> Refusal | None:
        """Go through these states of the cards, the last of which stays for ``most`` waits."""
        self.last = Passing([None if one is None else tuple(one) for one in states], most=most)
        return memory_released(
            self.last.look,
            "main",
            self.cards,
            self.fraction,
            self.baselines,
            wait=self.last.wait,
        )()

    def refused(self, *states: Iterable[CardMemory]) -> str:
        """The words of a start that must be refused."""
        refusal = self.passed(*states)
        assert refusal is not None
        assert refusal.cause is Cause.GPU_MEMORY_SHORT
        assert refusal.explanation.startswith("cannot start main: ")
        return refusal.explanation.removeprefix("cannot start main: ")


@pytest.mark.parametrize("fraction", [None, 0.9, 1.0])
def test_free_cards_cost_one_look(fraction: float | None) -> None:
    """FACT: G1: when all is free the gate looks once and waits for nothing."""
    gate = Gate(fraction)
    assert gate.passed([FREE, card(index=1)]) is None
    assert (gate.last.looks, gate.last.rests) == (1, [])


def test_unreadable_gpus_stop_nobody() -> None:
    """FACT: without a driver, or when it stops answering meanwhile, the engine itself decides."""
    assert Gate().passed(None) is None
    held = [card(nobodys=100)]
    assert Gate().passed(held, None) is None


@pytest.mark.parametrize("fraction", [None, 0.9])
def test_memory_that_comes_late_is_waited_for(fraction: float | None) -> None:
    """FACT: G1: memory that no process holds any more is waited for, and then it starts."""
    gate = Gate(fraction)
    gate.passed([FREE])
    held = [card(nobodys=86)]
    assert gate.passed(held, held, held, [FREE]) is None
    assert gate.last.looks == 4


def test_the_pause_grows_to_a_second() -> None:
    """FACT: a late release is noticed soon, and a long one costs a look a second."""
    gate = Gate()
    gate.refused([card(nobodys=86)])
    assert gate.last.rests[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert set(gate.last.rests[6:]) == {1.0}


def test_memory_that_never_comes_is_refused_in_words() -> None:
    """FACT: G1: memory that stays with the driver is named as such, and nothing is started."""
    gate = Gate()
    gate.passed([FREE])
    text = gate.refused([card(nobodys=86)])
    assert text.startswith("no visible process holds 86.0 GiB of GPU 0: the driver does")
    assert "reset of the GPU or a reboot" in text


def test_patience_ends() -> None:
    """FACT: with no patience there is one look and the refusal."""
    looked: list[int] = []

    def look() -> Cards:
        looked.append(1)
        return (card(nobodys=86),)

    assert memory_released(look, "main", None, 0.9, Baselines(), patience=0.0)() is not None
    assert len(looked) == 1


def test_what_was_there_before_is_normal() -> None:
    """FACT: memory without a process that was there when the card was idle holds up nobody."""
    gate = Gate(fraction=0.9)
    desktop = [card(nobodys=3)]
    assert gate.passed(desktop) is None
    assert gate.passed(desktop) is None
    assert gate.last.rests == []


def test_half_a_gibibyte_more_is_nobodys_fault() -> None:
    """FACT: the driver's own memory may grow by the slack."""
    gate = Gate(fraction=None)
    gate.passed([FREE])
    assert gate.passed([CardMemory(0, "GPU-0", 512 << 20, TOTAL)]) is None
    assert gate.last.rests == []
    assert gate.passed([CardMemory(0, "GPU-0", (512 << 20) + 1, TOTAL)]) is None
    assert len(gate.last.rests) == 20


@pytest.mark.parametrize(("fraction", "mig"), [(0.5, False), (None, False), (0.9, True)])
def test_what_may_leave_room_is_let_be_in_the_end(fraction: float | None, *, mig: bool) -> None:
    """FACT: what never comes back is waited for once, and blocks only who is known not to fit.

    Not known is it of a start script, and on a divided card, where it may be another tenant's.
    """
    gate = Gate(fraction)
    gate.passed([card(mig=mig)])
    leak = [card(nobodys=20, mig=mig)]
    assert gate.passed(leak) is None
    assert len(gate.last.rests) == 20
    assert gate.passed(leak) is None
    assert gate.last.rests == []


def test_a_living_engine_makes_no_baseline() -> None:
    """FACT: what is unaccounted while an engine of ours runs says nothing about an idle card."""
    gate = Gate(fraction=None)
    gate.passed([card(nobodys=3)])
    gate.passed([card(holder(Owner.ENGINE, 40, "other"))])
    assert gate.passed([card(nobodys=3)]) is None
    assert gate.last.rests == []


def test_an_orphan_of_ours_is_named() -> None:
    """FACT: G3: a process of an earlier start is waited for, then named with pid and memory."""
    orphan = [card(holder(Owner.ORPHAN, 1, "main"))]
    assert Gate().passed(orphan, [FREE]) is None
    text = "process 460 (python3) of an older start of main still holds 1.0 GiB of GPU 0"
    assert Gate().refused(orphan) == text
    assert Gate(fraction=None).refused(orphan) == text


def test_a_dying_process_of_ours_is_waited_for() -> None:
    """FACT: a process that the supervisor still counts as the engine's is on its way out."""
    dying = [card(holder(Owner.ENGINE, 80, "main"))]
    assert Gate().passed(dying, dying, [FREE]) is None
    assert "older start of main still holds 80.0 GiB" in Gate().refused(dying)


def test_an_orphan_of_unknown_size_is_named() -> None:
    """FACT: G14: a process whose memory nobody knows holds the card all the same."""
    text = Gate().refused([card(holder(Owner.ORPHAN, None, "main"))])
    assert text == "process 460 (python3) of an older start of main still holds memory of GPU 0"


def test_a_stranger_is_named_at_once() -> None:
    """FACT: G2: who leaves too little room is named with pid, name and memory; nobody waits."""
    gate = Gate()
    small = holder(Owner.FOREIGN, 1, pid=5)
    text = gate.refused([card(small, holder(Owner.FOREIGN, 20))])
    assert text == (
        "process 460 (python3) is no engine's and holds 20.0 GiB of GPU 0: "
        "119.0 GiB are free, 126.0 GiB are wanted"
    )
    assert gate.last.rests == []


@pytest.mark.parametrize("fraction", [None, 0.5])
def test_a_stranger_that_leaves_room_is_let_be(fraction: float | None) -> None:
    """FACT: G2: a foreign process beside which the engine fits blocks nothing."""
    gate = Gate(fraction)
    assert gate.passed([card(holder(Owner.FOREIGN, 20))]) is None
    assert gate.last.rests == []


def test_a_stranger_is_not_blamed_for_what_comes_late() -> None:
    """FACT: beside a small stranger the memory of the dead engine is waited for."""
    stranger = holder(Owner.FOREIGN, 1)
    assert Gate().passed([card(stranger, nobodys=80)], [card(stranger)]) is None
    assert "no visible process holds 80.0 GiB" in Gate().refused([card(stranger, nobodys=80)])


def test_another_engine_of_ours_is_welcome() -> None:
    """FACT: an engine of ours on the same card is no stranger, however much it holds."""
    gate = Gate(fraction=0.45)
    other = holder(Owner.ENGINE, 100, "other")
    assert gate.passed([card(other)]) is None
    assert gate.last.rests == []
    assert "no visible process holds 30.0 GiB" in gate.refused(
        [card(holder(Owner.ENGINE, 60, "other"), nobodys=30)]
    )


def test_nobody_is_blamed_for_a_sibling() -> None:
    """FACT: where another engine of ours leaves no room, vLLM says so, not the gate."""
    sibling = holder(Owner.ENGINE, 100, "other")
    small = holder(Owner.FOREIGN, 1)
    for fraction in (0.9, 0.4):
        gate = Gate(fraction)
        assert gate.passed([card(sibling)]) is None
        assert gate.passed([card(small, sibling)]) is None
        assert gate.last.rests == []
    assert "is no engine's and holds 1.0 GiB" in Gate(fraction=0.285).refused(
        [card(small, sibling)]
    )


def test_a_stranger_of_unknown_size_may_be_in_the_way() -> None:
    """FACT: G14: who holds nobody knows how much is named when room is missing."""
    unknown = CardMemory(0, "GPU-0", 100 * GIB, TOTAL, (holder(Owner.FOREIGN, None),))
    assert "is no engine's and holds memory of GPU 0" in Gate().refused([unknown])
    assert Gate(fraction=None).passed([unknown]) is None


def test_an_orphan_of_another_engine_blocks_when_it_is_in_the_way() -> None:
    """FACT: remains of another engine count like a stranger, and are named as what they are."""
    orphan = holder(Owner.ORPHAN, 50, "other")
    assert Gate(fraction=0.5).passed([card(orphan)]) is None
    assert Gate().refused([card(orphan)]) == (
        "process 460 (python3) of an older start of other holds 50.0 GiB of GPU 0"
    )


def test_who_is_out_of_sight_is_no_orphan() -> None:
    """FACT: G16: an invisible process blocks only when there is no room, and is called that."""
    unseen = Holder(460, "", 50 * GIB, Owner.UNKNOWN)
    assert Gate(fraction=None).passed([card(unseen)]) is None
    assert Gate(fraction=0.5).passed([card(unseen)]) is None
    assert Gate().passed([card(unseen)], [FREE]) is None
    text = "process 460 is not visible from here and holds 50.0 GiB of GPU 0"
    assert Gate().refused([card(unseen)]) == text
    gate = Gate(fraction=None)
    gate.passed([card(unseen)])
    assert gate.passed([card(unseen, nobodys=9)]) is None


def test_only_the_engines_own_cards_count() -> None:
    """FACT: cards are named by index or UUID; what happens on others is not this engine's."""
    full = card(nobodys=100, index=1)
    for mine in (("0",), ("GPU-0",), ()):
        assert Gate(cards=mine).passed([FREE, full]) is None
    for theirs in (("1",), ("0", "GPU-1"), None):
        assert "GPU 1" in Gate(cards=theirs).refused([FREE, full])
    assert Gate(cards=("1",)).passed([FREE, card(nobodys=100, index=10)]) is None


def test_a_divided_card_tells_no_room() -> None:
    """FACT: G14: with MIG the whole card's numbers refuse nobody but an orphan."""
    assert Gate().passed([card(holder(Owner.FOREIGN, 100), mig=True)]) is None
    assert "older start" in Gate().refused([card(holder(Owner.ORPHAN, 9, "main"), mig=True)])


def test_a_card_without_numbers_tells_no_room() -> None:
    """FACT: unified memory, which NVML does not count, refuses nobody but an orphan."""
    silent = CardMemory(0, "GPU-0", None, None, (holder(Owner.FOREIGN, 100),))
    assert Gate().passed([silent]) is None


def test_a_refusal_is_the_starts_error() -> None:
    """FACT: as a step of the gate it raises the named cause."""
    step = memory_released(
        lambda: (card(holder(Owner.FOREIGN, 100)),), "main", None, 0.9, Baselines()
    )
    with pytest.raises(ActionError, match="is no engine's") as caught:
        pass_gate([GateStep("gpu-memory", step)])
    assert caught.value.cause is Cause.GPU_MEMORY_SHORT
