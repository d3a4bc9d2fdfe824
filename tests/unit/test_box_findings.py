"""What findings about the box mean for engines in the awkward cases: silence, guesses, no GPU."""

from __future__ import annotations

from dataclasses import replace

from tests.support.box import card, cards, driver, gpu, holders, lost, xids
from tests.support.core import GENERATION, NAME, Story, http, metrics, process, serving, unheard
from tests.support.rules import DEFAULT_RULES
from watchdog.core import cards as own_cards
from watchdog.core.engine import firing
from watchdog.core.model import (
    Cause,
    EngineSpawned,
    HoldReason,
    Mode,
    Reading,
    Sampled,
    Subject,
    SubjectKind,
    Value,
    Verb,
    Verdict,
    engine_subject,
)
from watchdog.core.state import EngineSettings, EngineState, State


def fired(story: Story) -> set[str]:
    """Names of the rules that fire."""
    return {finding.rule for _, finding in firing(story.state)}


def test_an_operators_restart_that_is_refused_gives_nothing_back() -> None:
    """FACT (G2): only what was charged is taken back; the account keeps what was spent."""
    story = unheard()
    story.exited(10.0)
    story.spawned(11.0, "0000000b")
    story.finished(11.5, "restart_engine")
    spent = story.engine.history.restarts
    story.command(Verb.RESTART, 20.0)
    story.finished(21.0, "restart_engine", ok=False, cause=Cause.GPU_MEMORY_SHORT)
    assert story.engine.history.restarts[: len(spent)] == spent
    assert len(spent) == 1


def test_a_start_onto_a_half_upgraded_driver_is_tried_again() -> None:
    """FACT (G12): the gate's refusal is no last word: the module is loaded some minutes later."""
    story = unheard()
    story.exited(10.0)
    story.finished(11.0, "restart_engine", ok=False, cause=Cause.DRIVER_MISMATCH)
    assert story.engine.history.given_up is None
    assert not story.engine.history.restarts
    assert story.engine.in_flight == "restart_engine" or story.engine.retry_at is not None


def silence(at: float) -> Reading:
    """A driver that does not answer."""
    return Reading("gpu", at, 0.0, (), (), "cannot read any GPU: no answer in time")


def test_a_silent_second_source_is_no_recovery() -> None:
    """FACT (G7): NVML falls silent after the loss, the kernel's log has no Xid: still lost."""
    story = unheard()
    for at in range(0, 1900, 100):
        story.read(gpu(float(at)), xids(float(at)))
    story.read(lost(1900.0))
    for at in range(1910, 1990, 10):
        story.read(silence(float(at)), xids(float(at)))
    assert fired(story) - {"probe-failing"} == {"gpu-lost"}
    story.exited(2000.0)
    assert not story.acts


def test_a_card_that_flickers_is_one_finding() -> None:
    """FACT (G7): lost every other second for ten minutes: one incident, and no start in between."""
    story = unheard().read(gpu(0.0))
    for at in range(1, 600):
        story.read(lost(float(at)) if at % 2 else gpu(float(at)))
    assert len([r for r in story.records if r.event == "incident.opened"]) == 1
    assert not [r for r in story.records if r.event == "finding.resolved"]


def test_information_keeps_no_incident_open() -> None:
    """FACT: a narrow slot fires for ever; the incident about lost lanes ends with them back."""
    story = unheard()
    widths = [8] * 100 + [4] * 100 + [8] * 100
    for at, width in enumerate(widths):
        story.read(gpu(float(at), {"pcie_link_width": width}))
    assert "gpu-pcie-narrow" in fired(story)
    (incident,) = story.state.incidents
    assert (incident.rule, incident.outcome) == ("gpu-pcie-degraded", "cleared")


def nameless(at: float, state: str) -> Reading:
    """A card that was never named: it needs a reset since before we came."""
    subject = Subject(SubjectKind.GPU, "index-0")
    labels = (("gpu", "0"), ("uuid", ""))
    return Reading("gpu", at, 0.0, (Sampled(subject, "state", state, labels),))


def test_a_card_that_gets_its_name_leaves_nothing_behind() -> None:
    """FACT (G9): after the reset it has a name; what was found under its place is over."""
    story = unheard()
    looks = (nameless(1.0, "needs reset"), silence(2.0), gpu(3.0))
    verdicts = [story.read(seen).engine.verdict.value for seen in looks]
    assert verdicts == ["gpu_fault", "gpu_fault", "ready"]
    assert not firing(story.state)
    assert all(incident.resolved_at is not None for incident in story.state.incidents)
    assert set(story.state.cards) == {card()}


def test_an_index_that_comes_late_counts() -> None:
    """FACT (G7): a card first told of without its index is its engine's once the index is known."""
    unnumbered = Sampled(card(), "class_errors", 0, (("gpu", ""), ("uuid", ""), ("class", "reset")))
    engine = EngineState(EngineSettings(NAME, gpus=("0",)))
    story = Story(State({NAME: engine}))
    story.read(Reading("xid", 1.0, 0.0, (unnumbered,)), gpu(2.0))
    assert own_cards.own(story.state, story.engine) == {card()}


def placed(*gpus: str) -> Story:
    """A serving engine that may use these cards only."""
    story = unheard()
    settings = EngineSettings(NAME, gpus=gpus)
    story.state = story.state.with_engine(replace(story.engine, settings=settings))
    return story


def test_an_engine_without_a_gpu_does_not_care() -> None:
    """FACT: no card visible, or a torch without CUDA: no card and no driver holds its restart."""
    cpu = Sampled(engine_subject(NAME), "cpu_only", True, (("engine", NAME),))  # noqa: FBT003
    for story in (placed(), unheard()):
        mismatch = driver(1.0, {"versions_match": False})
        samples = (*mismatch.samples, *((cpu,) if story.engine.settings.gpus is None else ()))
        for at in (1.0, 20.0):
            story.read(replace(mismatch, at=at, samples=samples), lost(at))
        assert story.engine.verdict is Verdict.READY
        story.exited(21.0)
        assert len(story.acts) == 1


def test_a_guess_holds_restarts_but_takes_nothing_out_of_service() -> None:
    """FACT: of two cards one is lost, and nobody knows whose the engine is: it serves on."""
    story = unheard().read(cards(1.0, {0: {}, 1: {}}), lost(2.0, 1))
    assert story.engine.verdict is Verdict.READY
    story.exited(3.0)
    assert [decision.hold for decision in story.decisions] == [HoldReason.INHIBITED]


def test_a_rule_that_only_observes_has_no_consequences() -> None:
    """FACT: with mode "observe" a lost card is told, and neither holds nor makes a gpu_fault."""
    rules = tuple(
        replace(rule, mode=Mode.OBSERVE) if "gpu" in rule.name else rule for rule in DEFAULT_RULES
    )
    story = serving(rule_set=rules).read(gpu(1.0), lost(2.0))
    assert fired(story) == {"gpu-lost"}
    assert story.engine.verdict is Verdict.READY
    story.exited(3.0)
    assert len(story.acts) == 1


def test_sources_that_fall_silent_make_no_old_xid_new() -> None:
    """FACT (G8): readings without counts in between, and the same count after: nothing happened."""
    own = {"application": 1}
    story = unheard().read(xids(1.0), xids(2.0, own, own))
    story.read(Reading("xid", 100.0, 0.0, ()), xids(110.0, own, own))
    story.exited(112.0)
    assert story.engine.cause is Cause.CRASH


def test_a_downclock_is_unexplained_only_when_reasons_were_read() -> None:
    """FACT (G6, G14): without any word of reasons nothing is said."""
    story = unheard()
    slow: dict[str, Value] = {"utilization_percent": 100.0, "sm_clock_hertz": 210e6}
    for at in range(120):
        story.read(gpu(float(at), slow, reasons={}))
    assert not firing(story.state)


def test_slowdown_is_told_where_the_driver_does_not_count_it() -> None:
    """FACT (G4): in force for half a minute on a driver without the counters."""
    story = unheard()
    reasons = {"hw_thermal": True, "other": False}
    for at in range(40):
        seen = gpu(float(at), reasons=reasons)
        kept = tuple(s for s in seen.samples if s.sample != "throttle_seconds")
        story.read(replace(seen, samples=kept))
    assert fired(story) == {"gpu-slowdown-uncounted"}


def adopted(*gpus: str) -> Story:
    """An engine that an earlier watchdog started, and that serves; ``gpus`` as configured."""
    settings = EngineSettings(NAME, gpus=gpus or None)
    story = Story(State({NAME: EngineState(settings)}))
    story.take(EngineSpawned(0.0, NAME, GENERATION, 1, Cause.UNKNOWN, adopted=True, ready=True))
    return story.read(process(0.5), metrics(0.5, 1.0), http(0.6, canary="ok", status=200))


def seen_on_card_1(at: float) -> Reading:
    """The engine's memory on card 1; nothing is listed of a lost card."""
    seen = holders(at, {NAME: (1,)})
    return replace(seen, samples=tuple(s for s in seen.samples if s.subject == card(1)))


def test_a_card_that_was_lost_before_an_adoption_holds_restarts() -> None:
    """FACT (G7, W1): it lists no process and has no name: it may be the engine's all the same."""
    for gpus in ((), ("0", "1"), ("GPU-00000000", "GPU-00000001")):
        story = adopted(*gpus)
        both = (*nameless(1.0, "lost").samples, *cards(1.0, {1: {}}).samples)
        story.read(Reading("gpu", 1.0, 0.0, both), seen_on_card_1(1.0))
        assert fired(story) == {"gpu-lost"}
        story.exited(2.0)
        assert [decision.hold for decision in story.decisions] == [HoldReason.INHIBITED], gpus


def test_a_nameless_card_is_no_matter_of_an_engine_that_was_started_without_it() -> None:
    """FACT (G7): started while card 0 was lost already, and seen on card 1: that is its card."""
    story = unheard()
    both = (*nameless(1.0, "lost").samples, *cards(1.0, {1: {}}).samples)
    story.read(Reading("gpu", 1.0, 0.0, both), seen_on_card_1(1.0))
    story.exited(2.0)
    assert len(story.acts) == 1


def test_a_card_stays_who_it_is_when_nobody_can_ask_it_any_more() -> None:
    """FACT (G7): a new NVML worker knows of a lost card its index only; it is who it was there."""
    story = unheard().read(gpu(0.0), holders(0.0, {NAME: (0,)}), lost(1.0))
    for at in range(2, 8000, 100):
        story.read(nameless(float(at), "lost"))
    assert story.engine.verdict is Verdict.GPU_FAULT
    assert own_cards.hold(story.state, story.engine) is not None
    assert set(story.state.cards) == {card()}


def test_a_place_beside_the_only_card_makes_no_guess_of_it() -> None:
    """FACT (G7): one card, lost before it had a name, and an Xid under its place: a gpu_fault."""
    place = Subject(SubjectKind.GPU, "pci-0000:00:06.0")
    labels = (("gpu", ""), ("uuid", place.name), ("class", "application"))
    story = unheard().read(nameless(1.0, "lost"))
    story.read(Reading("xid", 2.0, 0.0, (Sampled(place, "class_errors", 1, labels),)))
    assert story.engine.verdict is Verdict.GPU_FAULT
