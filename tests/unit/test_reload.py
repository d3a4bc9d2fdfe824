"""What a reload does to the state and to what looks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.core import NAME, Is, Story, rule, serving
from tests.support.engines import Target
from tests.support.rules import NoSettings
from tests.support.simulated import until
from watchdog.contracts import Endpoint, ProbeSpec, SampleSpec
from watchdog.core import reload, rule_set
from watchdog.core.model import (
    HOST,
    Event,
    HoldReason,
    Mode,
    Reading,
    ReadingTaken,
    Record,
    Sampled,
    SubjectKind,
    Verb,
    engine_subject,
)
from watchdog.core.reload import NewOrder
from watchdog.core.rules import Rule
from watchdog.core.state import EngineSettings, EngineState
from watchdog.daemon.following import Following
from watchdog.daemon.lookout import Looking, Lookout
from watchdog.daemon.mailbox import Mailbox
from watchdog.runner import ProbeRun
from watchdog.schedule import Schedule

SICK = rule("sick", Is("box.sick", (True,)), SubjectKind.HOST)
SLOW = rule("slow", Is("box.sick", (True,)), SubjectKind.HOST, hold_for=10.0)


def told(at: float, *, sick: bool) -> ReadingTaken:
    """What a probe of the host saw."""
    return ReadingTaken(at, Reading("box", at, 0.0, (Sampled(HOST, "sick", sick),)))


def watching(*rules: Rule) -> Story:
    """A story in which the host is sick since 0."""
    story = Story(rule_set=rules)
    story.take(told(0.0, sick=True))
    return story


def reloaded(story: Story, *rules: Rule, at: float = 1.0, **changed: Any) -> tuple[Record, ...]:  # noqa: ANN401
    """The story goes on with these rules; the journal lines of the reload."""
    order = NewOrder(
        rules=(rule_set.of(story.rule_set), rule_set.of(rules)),
        engines=tuple(one.settings for one in story.state.engines.values()),
        comers={},
        mode=story.state.mode,
    )
    story.state, records = reload.reloaded(story.state, at, replace(order, **changed))
    story.rule_set = rule_set.of(rules)
    return records


def fires(story: Story) -> set[str]:
    """Names of the rules that fire."""
    return {name for (name, _), seen in story.state.watches.items() if seen.firing is not None}


# --- rules ----------------------------------------------------------------------------------------


def test_what_fires_goes_on_and_what_was_pending_holds_anew() -> None:
    """An unchanged rule keeps its finding; nine seconds of a ``for`` of ten count for nothing."""
    story = watching(SICK, SLOW)
    story.take(told(9.0, sick=True))
    other = replace(SICK, name="other", hold_for=1e6)
    assert reloaded(story, SICK, SLOW, other, at=9.5) == ()
    assert fires(story) == {"sick"}
    story.take(told(10.0, sick=True))
    story.take(told(19.0, sick=True))
    assert fires(story) == {"sick"}
    story.take(told(20.0, sick=True))
    assert fires(story) == {"sick", "slow"}


def test_a_reload_that_changes_nothing_takes_nothing_back() -> None:
    """Who reloads every few seconds does not keep a rule from ever firing."""
    story = watching(SICK, SLOW)
    for second in range(1, 10):
        before = story.state
        assert reloaded(story, SICK, SLOW, at=second + 0.5) == ()
        assert story.state is before
        story.take(told(second + 0.6, sick=True))
    assert fires(story) == {"sick"}
    story.take(told(10.0, sick=True))
    assert fires(story) == {"sick", "slow"}


def test_a_probe_that_looks_no_more_leaves_no_finding() -> None:
    """What its samples had shown is resolved with it: nobody would ever ask again."""
    story = watching(SICK)
    (record,) = reloaded(story, SICK, dropped=frozenset({"box"}))
    assert (record.event, dict(record.keys)["rule"]) == ("finding.resolved", "sick")
    assert fires(story) == set()


@pytest.mark.parametrize("after", [(), (replace(SICK, hold_for=5.0),)], ids=["gone", "changed"])
def test_a_finding_ends_with_its_rule(after: tuple[Rule, ...]) -> None:
    """A rule that went away or changed has found nothing yet; that its finding ended is told."""
    story = watching(SICK, SLOW)
    (record,) = reloaded(story, *after, SLOW)
    assert (record.event, dict(record.keys)["rule"]) == ("finding.resolved", "sick")
    assert fires(story) == set()
    story.take(told(2.0, sick=True))
    assert fires(story) == set()
    story.take(told(7.0, sick=True))
    assert fires(story) == {one.name for one in after}


def test_what_was_only_observed_is_not_acted_upon_by_a_change_of_mode() -> None:
    """From observe to act what was found must hold anew before anything is decided about it."""
    story = serving()
    story.state = replace(story.state, mode=Mode.OBSERVE)
    story.exited(10.0)
    held = {seen.held for seen in story.state.watches.values() if seen.firing is not None}
    assert held == {HoldReason.OBSERVE}
    reloaded(story, *rule_set.of(story.rule_set), at=11.0, mode=Mode.ACT)
    assert fires(story) == {"engine-dead"}
    assert all(seen.pending_since is None for seen in story.state.watches.values())
    assert story.acts == []
    story.tick(11.0)
    assert [decision.action for decision in story.acts] == ["restart_engine"]


def test_histories_survive() -> None:
    """Pause, restart account, breaker and incidents are after the reload what they were before."""
    story = serving()
    story.exited(10.0)
    story.command(Verb.PAUSE, 11.0)
    before = story.state
    reloaded(story, *rule_set.of(story.rule_set), at=12.0)
    assert story.engine.history == before.engines[NAME].history
    assert story.engine.history.restarts
    assert (story.state.pause, story.state.incidents) == (before.pause, before.incidents)
    assert story.state.incidents


def test_a_probe_that_looks_no_longer_knows_nothing() -> None:
    """Its last reading is no evidence any more; a rule that asks for it does not know."""
    story = watching(SICK)
    reloaded(story, SICK, dropped=frozenset({"box"}))
    assert "box" not in story.state.views[HOST]
    assert ("box", "") not in story.state.readings


# --- engines --------------------------------------------------------------------------------------


def test_what_runs_keeps_its_cards_until_it_is_replaced() -> None:
    """New patience holds at once, new cards from the spawn that uses them."""
    story = serving()
    new = EngineSettings(NAME, start_timeout=7.0, gpus=("1",))
    reloaded(story, engines=(new,))
    assert story.engine.settings == replace(new, gpus=None)
    assert reload.settled(story.state, new).engines[NAME].settings == new


def test_what_does_not_run_has_its_cards_at_once() -> None:
    """There is nothing on the old ones."""
    story = Story()
    new = EngineSettings(NAME, gpus=("1",))
    reloaded(story, engines=(new,))
    assert story.engine.settings == new


def test_engines_stand_in_the_order_of_the_file() -> None:
    """Who comes has its place, who leaves stands last until it is forgotten."""
    story = serving()
    comer = EngineState(EngineSettings("first"))
    reloaded(story, engines=(comer.settings,), comers={"first": comer})
    assert list(story.state.engines) == ["first", NAME]


def test_forgotten_is_forgotten_but_for_its_incidents() -> None:
    """Nothing of it is left in the state, its findings resolved and its incident closed."""
    story = serving()
    story.exited(10.0)
    state, records = reload.forgotten(story.state, NAME, 11.0)
    assert [record.event for record in records] == ["finding.resolved", "incident.resolved"]
    subject = engine_subject(NAME)
    assert NAME not in state.engines
    assert all(subject not in key for key in (*state.watches, *state.series, *state.tracks))
    assert all(name != NAME for _, name in state.readings)
    assert [incident.subject for incident in state.incidents] == [subject]
    assert reload.forgotten(state, NAME, 12.0) == (state, ())


# --- what looks -----------------------------------------------------------------------------------


@dataclass
class Probe:
    """Reads what it is told to, waits for ``gate`` when there is one, and knows when it closed."""

    value: int = 0
    gate: threading.Event | None = None
    closed: int = 0

    def read(self, deadline: float) -> Iterable[Sampled]:  # noqa: ARG002 - as the contract has it
        """One sample."""
        if self.gate is not None:
            self.gate.wait(30)
        return [Sampled(HOST, "value", self.value)]

    def close(self) -> None:
        """Count."""
        self.closed += 1


def looking(probe: Probe, post: Callable[[Event], None]) -> Looking:
    """A run of ``probe``, many times a second."""
    spec = ProbeSpec(
        "it",
        SubjectKind.HOST,
        NoSettings,
        (SampleSpec("value", int, "", ""),),
        lambda *_: probe,
        timeout=60.0,
    )
    return Looking(ProbeRun(spec, probe, None, None, post), 0.02)


def test_a_hung_probe_is_replaced_without_waiting() -> None:
    """While the old read hangs the new run reads; the others are not even closed."""
    gate = threading.Event()
    hung, other, fresh = Probe(1, gate), Probe(2), Probe(3)
    seen: list[Event] = []
    schedule = Schedule(lambda *_: None)
    kept = looking(other, seen.append)
    lookout = Lookout(schedule, {("hung", ""): looking(hung, seen.append), ("other", ""): kept})
    try:
        lookout.settle()
        schedule.start()
        until(lambda: values(seen) == {2} and lookout.looking["hung", ""].run.begin() is False)
        lookout.switch({("hung", ""): looking(fresh, seen.append), ("other", ""): kept})
        lookout.settle()
        until(lambda: values(seen) == {2, 3})
        assert (hung.closed, other.closed, fresh.closed) == (1, 0, 0)
    finally:
        schedule.stop()
        lookout.close()
        gate.set()
    assert (hung.closed, other.closed, fresh.closed) == (1, 1, 1)
    assert 1 not in values(seen)


def values(seen: Iterable[Event]) -> set[object]:
    """What was read so far."""
    readings = (event.reading for event in tuple(seen) if isinstance(event, ReadingTaken))
    return {sample.value for reading in readings for sample in reading.samples}


def test_a_probe_follows_its_engine() -> None:
    """Where the engine's address changes the probe is built anew, once, and the old one closed."""
    target = Target(Endpoint("127.0.0.1", 1))
    built: list[Probe] = []

    def build(_: object, at: Target) -> Probe:
        built.append(Probe(at.endpoint.port))
        return built[-1]

    probe = Following(build, None, target)
    assert [one.value for _ in range(2) for one in read(probe)] == [1, 1]
    target.endpoint = Endpoint("127.0.0.1", 2)
    assert [one.value for _ in range(2) for one in read(probe)] == [2, 2]
    probe.close()
    assert [one.closed for one in built] == [1, 1]


def read(probe: Following) -> list[Sampled]:
    """One read."""
    return [one for one in probe.read(0.0) if isinstance(one, Sampled)]


def test_a_mailbox_keeps_the_order() -> None:
    """What came before the opening comes out at once, what comes later is passed on."""
    passed: list[Event] = []
    mailbox = Mailbox(passed.append)
    first, second = told(1.0, sick=True), told(2.0, sick=True)
    mailbox(first)
    assert (mailbox.open(), passed) == ((first,), [])
    mailbox(second)
    assert (mailbox.open(), passed) == ((), [second])
