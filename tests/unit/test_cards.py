"""Whose a GPU is, what its findings mean for the engine, and what the engine learns of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.box import card, cards, driver, gpu, holders, lost, xids
from tests.support.core import NAME, Story, http, metrics, process, serving
from watchdog.core import cards as own_cards
from watchdog.core.engine import firing
from watchdog.core.model import Cause, HoldReason, ProcessState, Reading, Value, Verb, Verdict
from watchdog.core.state import EngineSettings, EngineState, State


def own(gpus: tuple[str, ...] | None, count: int = 3) -> set[int]:
    """Indices of an engine's cards in a box of ``count``."""
    engine = EngineState(EngineSettings(NAME, gpus=gpus))
    state = State({NAME: engine}, cards={card(n): str(n) for n in range(count)})
    return {int(state.cards[one]) for one in own_cards.own(state, engine)}


@pytest.mark.parametrize(
    ("gpus", "indices"),
    [
        (None, {0, 1, 2}),
        ((), set()),
        (("1",), {1}),
        (("GPU-00000002", "0"), {0, 2}),
        (("GPU-0000",), {0, 1, 2}),
        (("MIG-1234",), set()),
    ],
)
def test_cards_are_named_as_cuda_names_them(
    gpus: tuple[str, ...] | None, indices: set[int]
) -> None:
    """FACT: an index, a UUID or its beginning; without a word all are the engine's."""
    assert own(gpus) == indices


def test_where_an_engine_was_seen_counts_more() -> None:
    """FACT: of eight visible cards only the one that it holds memory on is its own."""
    story = serving().read(cards(0.0, {0: {}, 1: {}, 2: {}}), holders(1.0, {NAME: (1,)}))
    assert own_cards.own(story.state, story.engine) == {card(1)}
    story.read(holders(2.0, {NAME: (2,)}))  # card 1 answers no more: it is its own all the same
    assert own_cards.own(story.state, story.engine) == {card(1), card(2)}


def test_a_lost_card_is_a_gpu_fault_of_its_engine() -> None:
    """FACT (G7): the engine on it is a gpu_fault with the reason; it is not restarted."""
    story = serving().read(gpu(1.0), holders(1.0, {NAME: (0,)}), lost(2.0))
    assert story.engine.verdict is Verdict.GPU_FAULT
    assert story.engine.health is Verdict.READY
    assert "GPU 0: the GPU is off the bus" in story.engine.reasons[0]
    assert not story.acts


def test_a_lost_card_of_somebody_else_is_none() -> None:
    """FACT: an engine on card 0 is ready whatever happens to card 1."""
    story = serving().read(cards(1.0, {0: {}, 1: {}}), holders(1.0, {NAME: (0,)}), lost(2.0, 1))
    assert {finding.rule for _, finding in firing(story.state)} == {"gpu-lost"}
    assert story.engine.verdict is Verdict.READY


def test_a_card_that_comes_back_restarts_nobody() -> None:
    """FACT: ten seconds after the card is well again the engine is ready, as it was all along."""
    story = serving().read(gpu(1.0))
    looks = (lost(2.0), gpu(3.0), gpu(13.0))
    verdicts = [story.read(seen).engine.verdict.value for seen in looks]
    assert verdicts == ["gpu_fault", "gpu_fault", "ready"]
    assert not story.acts


@pytest.mark.parametrize("reading", [lost(4.0), lost(4.0, state="needs reset")])
def test_a_dead_engine_on_a_faulty_card_is_held(reading: Reading) -> None:
    """FACT (G7, G9): its restart is held as inhibited, once, and is made when the card is back."""
    story = serving().read(gpu(1.0))
    story.read(reading)
    story.exited(5.0)
    for at in range(6, 60):
        story.tick(float(at))
    assert story.engine.verdict is Verdict.GPU_FAULT
    assert story.engine.process is ProcessState.BACKOFF
    assert [decision.hold for decision in story.decisions] == [HoldReason.INHIBITED]
    assert "GPU 0" in story.decisions[0].detail
    story.read(gpu(61.0), gpu(71.0))
    assert [decision.action for decision in story.acts] == ["restart_engine"]


def test_a_stalled_engine_on_a_lost_card_is_held() -> None:
    """FACT (G7): the lost card outranks the stall that comes of it."""
    story = serving().read(gpu(1.0), lost(2.0))
    for at in range(3, 200, 3):
        now = float(at)
        story.read(
            process(now), http(now, canary="timeout"), metrics(now, 0.0, running=1), lost(now)
        )
    assert story.engine.health is Verdict.STALLED
    assert story.engine.verdict is Verdict.GPU_FAULT
    assert not story.acts
    assert HoldReason.INHIBITED in {decision.hold for decision in story.decisions}


def test_a_mismatched_driver_blocks_every_start() -> None:
    """FACT (G12): a crash is not followed by a start that must fail, and nothing is charged."""
    story = serving()
    for at in range(1, 30, 5):
        story.read(driver(float(at), {"versions_match": False}))
    story.exited(31.0)
    story.tick(40.0)
    assert [decision.hold for decision in story.decisions] == [HoldReason.BLOCKED]
    assert story.engine.process is ProcessState.BACKOFF
    assert not story.engine.history.restarts
    story.read(driver(50.0), driver(80.0))
    assert len(story.acts) == 1


def test_a_serving_engine_is_not_restarted_onto_a_mismatched_driver() -> None:
    """FACT (G12): the operator's restart is refused with the reason; a stop is obeyed."""
    story = serving()
    for at in range(1, 30, 5):
        story.read(driver(float(at), {"versions_match": False}))
    story.command(Verb.RESTART, 31.0)
    assert story.decisions[-1].hold is HoldReason.BLOCKED
    assert "kernel module differ" in story.decisions[-1].detail
    story.command(Verb.STOP, 32.0)
    assert [decision.action for decision in story.acts] == ["stop_engine"]


def stuck(last: int, card: Mapping[str, Value]) -> Story:
    """A request makes no token for ``last`` seconds although the engine computes."""
    story = serving()
    for at in range(3, last, 3):
        now = float(at)
        story.read(
            gpu(now, card),
            process(now, cpu_seconds=now),
            http(now, canary="timeout", took=3.0),
            metrics(now, 0.0, running=1),
        )
    return story


def test_a_working_gpu_gives_a_long_prefill_time() -> None:
    """FACT (H5): with memory in use by kernels it is busy at 200 s, when it would be stalled."""
    busy: dict[str, Value] = {"utilization_percent": 99.0, "memory_utilization_percent": 24.0}
    story = stuck(200, busy)
    assert story.engine.verdict is Verdict.BUSY
    assert not story.acts
    assert stuck(400, busy).acts


def test_a_spinning_gpu_is_no_work() -> None:
    """FACT (H6): 100 % use, no memory use, 166 of 700 W: stalled after the long deadline."""
    spin: dict[str, Value] = {
        "utilization_percent": 100.0,
        "memory_utilization_percent": 0.0,
        "power_watts": 166.0,
    }
    assert not stuck(120, spin).acts
    assert [decision.cause for decision in stuck(200, spin).acts] == [Cause.STALLED]


def test_an_idle_gpu_is_no_work() -> None:
    """FACT: an engine that burns CPU while its card idles is stalled as without a card."""
    assert [decision.cause for decision in stuck(200, {}).acts] == [Cause.STALLED]


def test_an_xid_before_the_exit_is_its_cause() -> None:
    """FACT (G8): an exit within seconds of the engine's own Xid is explained by it."""
    story = serving().read(xids(1.0), xids(10.0, {"application": 1}, {"application": 1}))
    assert not story.acts
    story.exited(12.0)
    assert story.engine.cause is Cause.XID
    (record,) = [r for r in story.records if r.event == "engine.exited"]
    assert dict(record.keys)["explanation"] == "Xid of class application; it crashed"


def test_an_xid_that_is_seen_after_the_exit_explains_it_still() -> None:
    """FACT (G8): the incident that is open gets the cause that was found a second later."""
    story = serving().read(xids(1.0))
    story.exited(10.0)
    story.read(xids(10.8, {"reset": 1}, {"reset": 1}))
    (incident,) = [one for one in story.state.incidents if one.subject == story.engine.subject]
    assert (incident.cause, incident.explanation) == (Cause.GPU_FAULT, "Xid of class reset")
    assert [r for r in story.records if r.event == "engine.explained"]


@pytest.mark.parametrize("cause", [Cause.OOM_KILLED, Cause.BAD_ARGUMENTS])
def test_a_cause_that_is_known_stays(cause: Cause) -> None:
    """FACT: an Xid does not replace what is better known."""
    story = serving().read(xids(1.0), xids(10.0, {"application": 1}, {"application": 1}))
    story.exited(12.0, cause)
    assert story.engine.cause is cause


def test_an_xid_of_long_ago_explains_nothing() -> None:
    """FACT: a minute later the exit has another reason."""
    story = serving().read(xids(1.0), xids(10.0, {"application": 1}, {"application": 1}))
    story.exited(70.0)
    assert story.engine.cause is Cause.CRASH


def test_an_xid_restarts_nobody() -> None:
    """FACT (G8): an engine that serves on after an application-class error is left alone."""
    story = serving().read(xids(1.0))
    for at in range(2, 300):
        story.read(
            xids(float(at), {"application": 1}, {"application": 1}),
            metrics(float(at), float(at)),
            process(float(at)),
            http(float(at)),
        )
    assert not story.acts
    assert story.engine.verdict is Verdict.READY


@pytest.mark.parametrize("cause", [Cause.GPU_MEMORY_SHORT, Cause.PORT_IN_USE])
def test_what_others_hold_costs_no_budget(cause: Cause) -> None:
    """FACT (G2): a start that the gate refuses for hours is tried again and again, ever slower."""
    story = serving()
    story.exited(10.0)
    for _ in range(50):
        assert story.engine.in_flight == "restart_engine"
        at = story.acts[-1].at
        story.finished(at + 1.0, "restart_engine", ok=False, cause=cause)
        assert story.engine.retry_at is not None
        assert story.engine.retry_at - at <= 1.0 + 1.1 * story.settings.backoff_max
        story.tick(story.engine.retry_at)
    assert not story.engine.history.breaker_open
    assert not story.engine.history.restarts[1:]
    assert story.acts[-1].at > 3600.0


def test_a_start_that_fails_by_itself_costs_budget() -> None:
    """FACT (D7): the engine's own failures are counted as ever, and end in a breaker."""
    story = serving()
    story.exited(10.0)
    while story.engine.in_flight:
        at = story.acts[-1].at
        story.finished(at + 1.0, "restart_engine", ok=False, cause=Cause.PRE_START_FAILED)
        if story.engine.retry_at is not None:
            story.tick(story.engine.retry_at)
    assert story.engine.history.breaker_open
