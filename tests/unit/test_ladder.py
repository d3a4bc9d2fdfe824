"""Ladders: which action is next, how long a rule rests, and what is kept of what it did."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.core import (
    GENERATION,
    NAME,
    Is,
    Of,
    Story,
    http,
    process,
    reading,
    rule,
    serving,
)
from watchdog.core.engine import firing
from watchdog.core.model import (
    Cause,
    Commanded,
    Decision,
    EngineSpawned,
    HoldReason,
    Reading,
    Seconds,
    Verb,
    engine_subject,
)
from watchdog.core.rules import Rule
from watchdog.core.state import EngineSettings, EngineState, State, Track
from watchdog.daemon.memory import Memory
from watchdog.store import Store

BAD = Is("custom.bad", (True,))
LADDER = ("nudge", "shake", "restart_engine")
KEY = ("mine", engine_subject(NAME))
NEXT = "0000000b"


def mine(**changes: object) -> Rule:
    """A rule with a ladder over what a probe of the test says."""
    return replace(rule("mine", BAD, actions=LADDER), **changes)  # type: ignore[arg-type]


def told(at: Seconds, *, bad: bool, generation: str = GENERATION, name: str = NAME) -> Reading:
    """What the probe of the test says."""
    return reading("custom", at, ("bad", bad), generation=generation, name=name)


def story(**changes: object) -> Story:
    """A serving engine under that rule."""
    return serving(rule_set=(mine(**changes),))


def actions(of: Story) -> list[str]:
    """What was done, in order."""
    return [act.action for act in of.acts]


def holds(of: Story) -> list[HoldReason | None]:
    """What was decided, in order."""
    return [decision.hold for decision in of.decisions]


def track(of: Story) -> Track:
    """What is kept of the rule."""
    return of.state.tracks[KEY]


def healed(of: Story, at: Seconds) -> Story:
    """The trouble is gone, and its action ends well, at ``at``."""
    of.read(told(at, bad=False)).finished(at, of.acts[-1].action)
    return of


def in_vain(of: Story, at: Seconds, *, ok: bool = True) -> Story:
    """The action ends at ``at``, and the next look finds the trouble as it was."""
    of.finished(at, of.acts[-1].action, ok=ok)
    return of.read(told(at + 0.5, bad=True))


def test_what_did_not_help_is_followed_by_the_next_rung() -> None:
    """FACT: trouble that is found again after an action has ended gets the next one, in order."""
    seen = story().read(told(1.0, bad=True))
    assert actions(seen) == ["nudge"]
    in_vain(seen, 2.0)
    assert actions(seen) == ["nudge", "shake"]
    in_vain(seen, 3.0)
    assert actions(seen) == list(LADDER)
    assert {act.cause for act in seen.acts} == {Cause.RULE}


def test_the_next_rung_needs_a_new_look() -> None:
    """FACT: an action may have helped: nothing is done until the rule's own probe has told."""
    seen = story().read(told(1.0, bad=True))
    seen.finished(2.0, "nudge")
    seen.tick(9.0)
    seen.read(process(10.0), told(1.9, bad=True))
    assert actions(seen) == ["nudge"]
    assert holds(seen) == [None, HoldReason.STALE]
    seen.read(told(11.0, bad=True))
    assert [act.at for act in seen.acts] == [1.0, 11.0]


class Both(Is):
    """As it is, and asks ``other.bad`` too."""

    @property
    def samples(self) -> frozenset[str]:
        """Of two probes."""
        return frozenset({self.name, "other.bad"})


def test_the_next_rung_needs_a_look_of_every_probe_that_the_rule_asks() -> None:
    """FACT: half of an old finding is an old finding."""
    seen = story(when=Both("custom.bad", (True,))).read(
        told(1.0, bad=True), reading("other", 1.0, ("bad", True))
    )
    in_vain(seen, 2.0)
    assert actions(seen) == ["nudge"]
    assert holds(seen)[-1] is HoldReason.STALE
    seen.read(reading("other", 3.0, ("bad", True)))
    assert actions(seen) == ["nudge", "shake"]


def test_nothing_is_done_about_what_is_not_known_now() -> None:
    """FACT: a finding outlives a probe that fails, but no rung is taken on it."""
    seen = story().read(told(1.0, bad=True))
    seen.finished(2.0, "nudge")
    seen.read(reading("custom", 3.0, error="cannot read"))
    assert [finding.rule for _, finding in firing(seen.state)] == ["mine"]
    assert actions(seen) == ["nudge"]
    assert holds(seen)[-1] is HoldReason.STALE
    seen.read(told(4.0, bad=True))
    assert actions(seen) == ["nudge", "shake"]


def test_a_finding_that_was_held_and_is_not_known_any_more_stays_held() -> None:
    """FACT: the end of what held it is no reason to act on what nobody sees."""
    cause = rule("cause", Is("why.so", (True,)))
    seen = serving(rule_set=(cause, mine(inhibited_by=("cause",))))
    seen.read(reading("why", 1.0, ("so", True)), told(2.0, bad=True))
    seen.read(reading("custom", 3.0, error="cannot read"), reading("why", 4.0, ("so", False)))
    assert not seen.acts
    assert holds(seen) == [HoldReason.INHIBITED, HoldReason.STALE]
    seen.read(told(5.0, bad=True))
    assert actions(seen) == ["nudge"]


def test_one_action_at_a_time() -> None:
    """FACT: while a rung is under way nothing else is done, however long it takes."""
    seen = story().read(told(1.0, bad=True))
    for at in range(2, 600, 10):
        seen.read(told(float(at), bad=True))
    assert actions(seen) == ["nudge"]
    assert holds(seen) == [None, HoldReason.IN_FLIGHT]


def test_a_rung_that_failed_counts_as_taken() -> None:
    """FACT: what cannot be done is not tried for ever: the next rung follows."""
    seen = in_vain(story().read(told(1.0, bad=True)), 2.0, ok=False)
    assert actions(seen) == ["nudge", "shake"]
    assert not seen.engine.history.failures
    assert seen.engine.process.value == "running"


def test_what_heals_for_a_moment_only_is_not_healed() -> None:
    """FACT: trouble that comes back within the time that proves health gets the next rung."""
    seen = healed(story().read(told(1.0, bad=True)), 2.0)
    assert not firing(seen.state)
    seen.read(told(601.9, bad=True))
    assert actions(seen) == ["nudge", "shake"]


def test_what_was_well_for_long_begins_at_the_first_rung() -> None:
    """FACT: after ten minutes without the finding its action has helped."""
    seen = healed(story().read(told(1.0, bad=True)), 2.0)
    seen.read(told(602.0, bad=True))
    assert actions(seen) == ["nudge", "nudge"]


def test_the_time_that_proves_health_is_configured() -> None:
    """FACT: it is the one after which failures in a row are forgotten."""
    seen = serving(rule_set=(mine(),), reset_after_ready=30.0).read(told(1.0, bad=True))
    healed(seen, 2.0).read(told(32.0, bad=True))
    assert actions(seen) == ["nudge", "nudge"]


def test_the_last_rung_is_taken_again() -> None:
    """FACT: a ladder has no end: budgets bound what costs, five minutes of rest what is free."""
    seen = story(actions=("nudge", "shake")).read(told(1.0, bad=True))
    in_vain(in_vain(seen, 2.0), 3.0)
    assert holds(seen)[-1] is HoldReason.COOLDOWN
    for at in range(1, 4):
        seen.read(told(3.0 + 300.0 * at, bad=True))
        in_vain(seen, 3.0 + 300.0 * at)
    assert [(act.at, act.action) for act in seen.acts[1:]] == [
        (2.5, "shake"),
        *((3.0 + 300.0 * at, "shake") for at in range(1, 4)),
    ]


def test_a_rule_rests_after_its_action() -> None:
    """FACT: the cool-down begins with the end of the action and ends to the moment."""
    seen = story(cooldown=300.0).read(told(1.0, bad=True))
    in_vain(seen, 50.0)
    assert actions(seen) == ["nudge"]
    assert holds(seen) == [None, HoldReason.IN_FLIGHT, HoldReason.COOLDOWN]
    assert seen.tick(349.9).wake_at == 350.0
    assert actions(seen) == ["nudge"]
    seen.tick(350.0)
    assert actions(seen) == ["nudge", "shake"]


def test_a_rule_rests_also_when_its_finding_was_gone_meanwhile() -> None:
    """FACT: a finding that flaps does not get around the cool-down."""
    seen = healed(story(cooldown=300.0).read(told(1.0, bad=True)), 2.0)
    seen.read(told(10.0, bad=True), told(11.0, bad=False), told(12.0, bad=True))
    assert actions(seen) == ["nudge"]
    assert seen.decisions[-1].hold is HoldReason.COOLDOWN
    seen.read(told(302.0, bad=True))
    assert actions(seen) == ["nudge", "shake"]


def test_another_rule_does_not_rest_with_it() -> None:
    """FACT: the cool-down is the rule's own."""
    other = rule("other", Is("custom.worse", (True,)), actions=("restart_engine",))
    seen = serving(rule_set=(mine(cooldown=300.0), other)).read(told(1.0, bad=True))
    seen.finished(2.0, "nudge")
    seen.read(reading("custom", 3.0, ("bad", True), ("worse", True)))
    assert actions(seen) == ["nudge", "restart_engine"]


def test_trouble_that_is_clearing_is_let_clear() -> None:
    """FACT: while ``clear_for`` runs nothing more is done about it."""
    seen = story(clear_for=30.0).read(told(1.0, bad=True), told(1.5, bad=False))
    seen.finished(2.0, "nudge")
    assert actions(seen) == ["nudge"]
    assert seen.decisions[-1].hold is HoldReason.COOLDOWN
    seen.tick(31.5)
    assert not firing(seen.state)


def test_what_was_done_is_kept() -> None:
    """FACT: the rung, when it was taken, when it ended, and when the finding cleared."""
    seen = story(clear_for=5.0).read(told(1.0, bad=True))
    nudged = Track(rung=1, acted_at=1.0, action="nudge")
    assert track(seen) == nudged
    seen.finished(4.0, "nudge", ok=False)
    assert track(seen) == replace(nudged, ended_at=4.0)
    seen.read(told(4.5, bad=True))
    shaken = Track(rung=2, acted_at=4.5, action="shake")
    assert track(seen) == shaken
    seen.read(told(5.0, bad=False))
    seen.finished(6.0, "shake")
    assert track(seen) == replace(shaken, ended_at=6.0)
    seen.tick(10.0)
    assert track(seen) == replace(shaken, ended_at=6.0, healed_at=10.0)
    seen.serve(19.0).read(told(20.0, bad=True))
    assert track(seen) == Track(rung=3, acted_at=20.0, action="restart_engine")


def test_an_action_ends_when_it_ends_whatever_else_runs() -> None:
    """FACT: a restart that runs beside it neither waits for it nor ends it, nor the other way."""
    seen = story(cooldown=30.0).read(told(1.0, bad=True))
    seen.command(Verb.RESTART, 2.0)
    assert (actions(seen), seen.engine.in_flight) == (["nudge", "restart_engine"], "restart_engine")
    seen.finished(4.0, "nudge")
    assert seen.engine.in_flight == "restart_engine"
    ended = Track(rung=1, acted_at=1.0, ended_at=4.0, action="nudge")
    assert track(seen) == ended
    seen.restarted(20.0, NEXT)
    assert track(seen) == ended
    seen.read(told(34.0, bad=True, generation=NEXT))
    assert actions(seen) == ["nudge", "restart_engine", "shake"]


def test_nothing_is_kept_of_a_rule_that_did_nothing() -> None:
    """FACT: findings without an action, and those that were held, leave no track."""
    seen = story(actions=()).read(told(1.0, bad=True), told(2.0, bad=False))
    assert not seen.state.tracks
    paused = story()
    paused.command(Verb.PAUSE, 0.5)
    paused.read(told(1.0, bad=True))
    assert paused.decisions[-1].hold is HoldReason.PAUSED
    assert not paused.state.tracks


def recalled(before: Story, at: Seconds) -> Story:
    """The next watchdog: it has the history and the tracks, and adopts the engine."""
    kept = EngineState(EngineSettings(NAME), history=before.engine.history)
    after = Story(State({NAME: kept}, tracks=before.state.tracks), rule_set=before.rule_set)
    after.take(EngineSpawned(at, NAME, GENERATION, 1, Cause.UNKNOWN, adopted=True, ready=True))
    return after.read(http(at, canary="ok", status=200))


def test_our_own_restart_forgets_neither_rung_nor_rest() -> None:
    """FACT: the next watchdog goes on at the next rung, when the cool-down is over."""
    before = story(cooldown=300.0).read(told(1.0, bad=True))
    before.finished(2.0, "nudge")
    after = recalled(before, 10.0).read(told(11.0, bad=True))
    assert holds(after) == [HoldReason.COOLDOWN]
    after.read(told(302.0, bad=True))
    assert actions(after) == ["shake"]


def test_the_store_keeps_what_was_done(tmp_path: Path) -> None:
    """FACT: what the next watchdog reads is what this one has decided, to the last field."""
    seen = story(clear_for=5.0).read(told(1.0, bad=True), told(5.0, bad=False))
    seen.finished(6.0, "nudge")
    done = seen.tick(10.0)
    with closing(Store.open(tmp_path / "state.db")) as store:
        Memory(store).keep(done)
    with closing(Store.open(tmp_path / "state.db")) as store:
        after = Memory(store).recall((EngineSettings(NAME),), frozenset())
    kept = Track(1, acted_at=1.0, ended_at=6.0, healed_at=10.0, action="nudge")
    assert after.tracks == {KEY: kept}
    assert after.tracks == seen.state.tracks


@pytest.mark.parametrize(("since", "first"), [(500.0, "shake"), (700.0, "nudge")])
def test_our_own_restart_does_not_forget_since_when_it_is_well(since: Seconds, first: str) -> None:
    """FACT: the time that proves health goes on over it."""
    before = healed(story().read(told(1.0, bad=True)), 2.0)
    after = recalled(before, since - 1.0).read(told(since, bad=True))
    assert actions(after) == [first]


def test_a_person_who_resets_the_breaker_begins_anew() -> None:
    """FACT: the ladder and the cool-down of the engine are forgotten with its account."""
    seen = story(cooldown=300.0).read(told(1.0, bad=True))
    seen.finished(2.0, "nudge")
    seen.command(Verb.RESET_BREAKER, 3.0)
    assert actions(seen) == ["nudge", "nudge"]
    assert seen.acts[-1].rule == "mine"


def test_each_engine_has_its_own_ladder() -> None:
    """FACT: what was done about one engine is no rung of another's, and its end neither."""
    names = (NAME, "other")
    engines = {name: EngineState(EngineSettings(name)) for name in names}
    seen = Story(State(engines), rule_set=(mine(cooldown=60.0),))
    for name in names:
        seen.take(EngineSpawned(0.0, name, GENERATION, 1, Cause.OPERATOR))
        seen.serve(0.0, name=name)
    seen.read(told(1.0, bad=True), told(5.0, bad=True, name="other"))
    assert [_who(act) for act in seen.acts] == [(NAME, "nudge"), ("other", "nudge")]
    seen.finished(10.0, "nudge")
    assert seen.state.tracks["mine", engine_subject("other")].ended_at is None
    seen.take(Commanded(11.0, Verb.RESET_BREAKER, "other"))
    seen.finished(20.0, "nudge", name="other")
    assert seen.state.tracks[KEY].rung == 1
    assert [_who(act) for act in seen.acts[2:]] == [("other", "nudge")]


def _who(act: Decision) -> tuple[str, str]:
    return act.target.name, act.action


def test_a_restart_by_a_ladder_is_one_story() -> None:
    """FACT: from the nudge to the restart that helped it is one incident with all its actions."""
    seen = story().read(told(1.0, bad=True))
    in_vain(in_vain(seen, 2.0), 3.0)
    seen.spawned(5.0, NEXT, Cause.RULE)
    seen.finished(5.1, "restart_engine")
    of = Of(generation=NEXT)
    seen.serve(8.0, NEXT).read(told(9.0, bad=False, **of))
    (incident,) = seen.state.incidents
    assert (incident.actions, incident.outcome) == (LADDER, "recovered")


def test_what_was_found_of_an_old_generation_is_no_reason_to_act_on_the_new_one() -> None:
    """FACT: until the probe has looked again nobody knows whether the restart has helped."""
    seen = story(actions=("restart_engine",)).read(told(1.0, bad=True))
    seen.restarted(5.0, NEXT)
    seen.tick(10.0)
    assert actions(seen) == ["restart_engine"]
    seen.read(told(11.0, bad=True, generation=NEXT))
    assert actions(seen) == ["restart_engine", "restart_engine"]


def test_an_action_on_the_side_leaves_the_processes_alone() -> None:
    """FACT: what neither starts nor stops costs no budget, and the engine serves on meanwhile."""
    seen = story().read(told(1.0, bad=True))
    before = seen.engine
    assert (before.process.value, before.health.value) == ("running", "ready")
    seen.finished(2.0, "nudge", ok=False)
    after = replace(seen.engine, in_flight=before.in_flight, reasons=before.reasons)
    assert (after.process, after.generation, after.history) == (
        before.process,
        before.generation,
        before.history,
    )
    assert not seen.engine.history.restarts
