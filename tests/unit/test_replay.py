"""Replay: the same rules decide the same as then; other rules show what would have been done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.laws.clockwork import Clockwork, Fault
from tests.support.core import NAME, Is, Story, http, metrics, of_box, process, rule, serving
from tests.support.rules import DEFAULT_RULES, when
from watchdog.core.conditions import View
from watchdog.core.engine import step
from watchdog.core.model import (
    HOST,
    Decision,
    Event,
    HoldReason,
    Mode,
    Seconds,
    Severity,
    SubjectKind,
    Tick,
    Verb,
    engine_subject,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import Rule
from watchdog.core.state import Budget, PolicySettings
from watchdog.recorder import Recorder, Start, Told, read
from watchdog.replay import Report, Row, replay


class Tape:
    """Records a story as it is told."""

    def __init__(self, folder: Path, story: Story) -> None:
        self.folder, self.story = folder, story
        self.now: Seconds = 0.0
        self.recorder = Recorder(folder, self._warn, clock=lambda: self.now, wall=lambda: self.now)
        self.recorder.begin(story.state, self.now)
        take = story.take

        def recorded(event: Event) -> object:
            self.now = max(self.now, event.at)
            done = take(event)
            self.recorder.observe(event, done)
            return done

        story.take = recorded  # type: ignore[method-assign, assignment]

    @staticmethod
    def _warn(text: str) -> None:
        raise AssertionError(text)

    def replayed(self, rules: RuleSet | Sequence[Rule] | None = None, **options: object) -> Report:
        """End the recording and judge it, by default by the rules of the story."""
        self.recorder.close(60.0)
        assert self.recorder.lost == 0
        policy = options.pop("policy", self.story.settings)
        return replay(
            read(self.folder, self._warn),
            self.story.rule_set if rules is None else rules,
            policy,  # type: ignore[arg-type]
            **options,  # type: ignore[arg-type]
        )


def key(one: Decision) -> tuple[object, ...]:
    """All that is compared of a decision, its time included."""
    return one.at, one.rule, one.target, one.action, one.hold, one.cause


def lived(folder: Path, fault: Fault, seconds: int) -> Tape:
    """An engine with a fault, recorded."""
    tape = Tape(folder, Story())
    clockwork = Clockwork(fault, story=tape.story)
    for until in range(60, seconds + 1, 60):
        clockwork.run(float(until))
        assert tape.recorder.flush(60.0)
    return tape


FAULTS = {
    "well": Fault(),
    "stopped": Fault(after=900.0, lasts=200.0, answers=False, stopped=1),
    "dies": Fault(dies_after=700.0),
    "dies at birth": Fault(dies_at_birth=2.0),
    "computes": Fault(after=900.0, answers=False, computes=True),
    "unhealthy": Fault(after=900.0, answers=False, health="status"),
    "refuses": Fault(after=900.0, answers=False, health="refused"),
    "unreadable": Fault(readable=False),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_same_rules_decide_the_same_at_the_same_times(name: str, tmp_path: Path) -> None:
    """Acts and holds of a replay are those of the day, although quiet times are thinned."""
    tape = lived(tmp_path, FAULTS[name], 3600)
    report = tape.replayed()
    assert [key(row.now) for row in report.rows if row.now] == list(map(key, tape.story.decisions))
    assert [key(row.then) for row in report.rows if row.then] == list(
        map(key, tape.story.decisions)
    )
    assert (report.differences, report.bugs, report.runs) == (0, 0, 1)
    assert report.acts_now == len(tape.story.acts) > 0
    exact = tape.replayed(every_step=True)
    assert (exact.rows, exact.findings) == (report.rows, report.findings)


@given(
    after=st.integers(100, 900),
    lasts=st.integers(1, 400),
    answers=st.booleans(),
    stopped=st.integers(0, 1),
    computes=st.booleans(),
    health=st.sampled_from(["ok", "status", "refused"]),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_fault_replays_alike(  # noqa: PLR0917 - one fault, whole
    tmp_path_factory: pytest.TempPathFactory,
    after: int,
    lasts: int,
    answers: bool,  # noqa: FBT001
    stopped: int,
    computes: bool,  # noqa: FBT001
    health: str,
) -> None:
    """Whatever was wrong and however long, decisions and their times come back."""
    fault = Fault(
        float(after), float(lasts), answers, stopped=stopped, computes=computes, health=health
    )
    tape = lived(tmp_path_factory.mktemp("tape"), fault, 1500)
    report = tape.replayed()
    assert [key(row.now) for row in report.rows if row.now] == list(map(key, tape.story.decisions))


def test_a_pause_and_a_gap_are_lived_again(tmp_path: Path) -> None:
    """What a pause and a sleep of the machine held back is held back in the replay too."""
    tape = Tape(tmp_path, serving())
    story = tape.story
    story.command(Verb.PAUSE, 5.0, until=50.0)
    story.exited(10.0)
    story.tick(50.0)
    story.tick(51.0)
    story.asleep(600.0)
    story.tick(601.0)
    report = tape.replayed()
    assert [key(row.now) for row in report.rows if row.now] == list(map(key, story.decisions))
    assert {decision.hold for decision in story.decisions} >= {HoldReason.PAUSED}


def idle(tape: Tape, begin: int, end: int) -> None:
    """A serving engine without requests, second by second."""
    for second in range(begin, end):
        at = float(second)
        tape.story.read(process(at, cpu_seconds=at), http(at, canary="ok", status=200))
        tape.story.read(metrics(at, at))


IDLE = rule(
    "idle",
    Is("engine.verdict", ("ready",)),
    severity=Severity.CRITICAL,
    hold_for=30.0,
    actions=("restart_engine",),
)


def test_an_act_of_today_is_hypothetical_and_its_engine_lives_on(tmp_path: Path) -> None:
    """It is on the account and in flight for a minute; the budget ends it like any other."""
    tape = Tape(tmp_path, serving())
    idle(tape, 1, 900)
    assert tape.story.acts == []
    report = tape.replayed((*DEFAULT_RULES, IDLE))
    acts = [row for row in report.rows if row.now is not None and row.now.hold is None]
    assert all(row.would and row.then is None and row.rule == "idle" for row in acts)
    assert 2 <= len(acts) <= 5
    times = [row.wall for row in acts]
    assert all(b - a >= 60.0 for a, b in pairwise(times))
    assert times[0] == pytest.approx(31.0)
    last = report.rows[-1].now
    assert last is not None
    assert last.hold in {HoldReason.BUDGET, HoldReason.BREAKER_OPEN, HoldReason.INHIBITED}
    assert report.acts_then == 0


def test_a_fact_of_the_engine_ends_a_hypothetical_act(tmp_path: Path) -> None:
    """An exit of then is the engine's own, although a restart would have been under way."""
    tape = Tape(tmp_path, serving())
    idle(tape, 1, 40)
    tape.story.exited(40.0)
    report = tape.replayed((*DEFAULT_RULES, IDLE))
    told = [(row.rule, row.would, row.same) for row in report.rows]
    assert ("idle", True, False) in told
    dead = [row for row in report.rows if row.rule == "engine-dead"]
    assert dead
    assert dead[0].then is not None
    assert dead[0].now is not None


def test_an_act_of_then_that_no_rule_makes_today(tmp_path: Path) -> None:
    """Its stop, spawn and outcome are taken as they came: nothing today calls them a crash."""
    tape = Tape(tmp_path, replace(serving(), rule_set=(*DEFAULT_RULES, IDLE)))
    idle(tape, 1, 33)
    story = tape.story
    assert [one.rule for one in story.acts] == ["idle"]
    story.exited(34.0)
    story.restarted(35.0, "0000000b")
    for second in range(37, 60):
        story.read(process(float(second), generation="0000000b"))
    report = tape.replayed(DEFAULT_RULES)
    assert [(row.rule, row.now) for row in report.rows if row.then is not None] == [("idle", None)]
    assert report.acts_now == 0
    assert report.differences == len(report.rows) == 1


@pytest.mark.parametrize("kind", [SubjectKind.ENGINE, SubjectKind.HOST])
def test_what_would_have_been_done_beside_ends(tmp_path: Path, kind: SubjectKind) -> None:
    """An action beside that did not happen is over in a minute: it would come again, as it does."""
    tape = Tape(tmp_path, serving(rule_set=()))
    subject = engine_subject(NAME) if kind is SubjectKind.ENGINE else HOST
    for second in range(1, 1200):
        tape.story.read(of_box(float(second), (subject, "x", 9.0)))
    calls = rule("calls", when("it.x > 5", kind, x=float), kind, actions=("call",))
    report = tape.replayed((calls,))
    ats = [row.now.at for row in report.rows if row.now and not row.now.hold]
    assert [round(at) for at in ats] == [1, 361, 721, 1081]


def test_another_policy_is_judged(tmp_path: Path) -> None:
    """With a smaller budget today, the second restart would not have been made."""
    tape = lived(tmp_path, FAULTS["dies"], 3600)
    strict = PolicySettings(restart_budget=Budget(1, 3600.0))
    report = tape.replayed(policy=strict)
    restarts = [row for row in report.rows if row.now is not None and row.rule == "engine-dead"]
    holds = [row.now.hold for row in restarts if row.now]
    assert holds[0] is None
    assert holds.count(None) == 1
    assert HoldReason.BUDGET in holds
    assert report.differences > 0


def test_what_an_observer_would_have_done(tmp_path: Path) -> None:
    """A recording of observe mode can be judged as if it had been allowed to act."""
    story = serving()
    story.state = replace(story.state, mode=Mode.OBSERVE)
    tape = Tape(tmp_path, story)
    story.exited(10.0)
    assert tape.replayed().acts_now == 0
    report = tape.replayed(mode=Mode.ACT)
    assert [(row.rule, row.would) for row in report.rows if row.now and not row.now.hold] == [
        ("engine-dead", True)
    ]


def test_only_what_was_since_is_shown(tmp_path: Path) -> None:
    """Earlier events are lived through, and not reported."""
    tape = lived(tmp_path, FAULTS["dies"], 3600)
    late = tape.replayed(since=2000.0)
    assert late.rows
    assert all(row.wall >= 2000.0 for row in late.rows)
    assert late.began is not None
    assert late.began >= 2000.0


def test_rules_and_engines_that_are_unknown_today_do_no_harm(tmp_path: Path) -> None:
    """Without any rule a recording is told as it was; engines come from the recording."""
    tape = lived(tmp_path, FAULTS["stopped"], 1800)
    report = tape.replayed(())
    assert report.acts_now == report.bugs == 0
    assert report.acts_then == len(tape.story.acts)


def test_a_bug_of_a_rule_costs_its_event(tmp_path: Path) -> None:
    """A condition that raises is counted, and the replay comes to its end."""

    class Broken(Is):
        def __call__(self, view: View) -> bool | None:  # noqa: ARG002
            raise ZeroDivisionError

    tape = Tape(tmp_path, serving())
    idle(tape, 1, 30)
    report = tape.replayed([rule("broken", Broken("engine.verdict", ()))])
    assert report.bugs > 0
    assert report.ended is not None
    assert report.ended > 20.0


def test_times_from_nowhere_come_to_an_end() -> None:
    """Events at infinity, far ahead or long ago are judged without counting through the years."""
    story = serving()
    start = Start(0.0, story.state, fresh=True, offset=0.0)
    times = [1.0, 1e300, math.inf, math.nan, -1e300, 2.0]
    told = [Told(Tick(at), (), 0.0) for at in times]
    assert replay([start, *told], DEFAULT_RULES, PolicySettings()).events == 4


def test_rows_are_the_same_when_action_and_hold_are() -> None:
    """A hold then and an act now differ; details do not count."""
    story = serving()
    done = step(story.state, Tick(1.0), DEFAULT_RULES, PolicySettings())
    assert done.decisions == ()
    act = Decision(1.0, "r", story.engine.subject, "restart_engine", story.engine.cause)
    held = replace(act, hold=HoldReason.BACKOFF)
    assert Row(0.0, act.target, NAME, act, replace(act, detail="else")).same
    assert not Row(0.0, act.target, NAME, act, held).same
    assert not Row(0.0, act.target, NAME, act, None).same
