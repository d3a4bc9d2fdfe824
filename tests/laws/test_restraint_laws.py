"""Laws of restraint: of the default rules, of their overrides, and of rules that users write."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.auditor import Auditor
from tests.laws.lawful import lawful
from tests.laws.user_rules import Override, overrides, user_rules, with_overrides, with_own
from tests.laws.world import Fate, Look, Moment, World, moments
from watchdog.core.model import HoldReason, Verb, Verdict
from watchdog.core.rules import Rule

EAGER = settings(lawful, max_examples=150)


@lawful
@given(moments(2))
def test_the_default_rules_keep_all_laws(story: list[Moment]) -> None:
    """Whatever happens, an auditor who only looks on finds no law broken."""
    names = ("a", "b")
    Auditor().audit(World(names).live(story).trace)


@EAGER
@given(moments(), overrides())
def test_overridden_rules_keep_all_laws(story: list[Moment], some: list[Override]) -> None:
    """No duration, mode or severity that a user gives to the default rules breaks a law."""
    rules = with_overrides(some)
    Auditor(rules).audit(World(rules=rules).live(story).trace)


@EAGER
@given(moments(), user_rules())
def test_no_rule_of_a_user_breaks_a_law(story: list[Moment], some: list[Rule]) -> None:
    """A rule may ask for any action at any time: a busy engine is let be, rests, budgets, kept."""
    rules = with_own(some)
    Auditor(rules).audit(World(rules=rules).live(story).trace)


_BUSY = st.lists(
    st.builds(
        Moment,
        gap=st.sampled_from([1.0, 2.0]),
        looks=st.tuples(st.sampled_from([Look.TRAFFIC, Look.TRAFFIC, Look.SATURATED, Look.IDLE])),
        fates=st.just((Fate.DONE,)),
        times=st.sampled_from([1, 3, 5]),
    ),
    min_size=4,
    max_size=20,
)


@EAGER
@given(_BUSY, user_rules())
def test_no_rule_of_a_user_touches_a_busy_engine(story: list[Moment], some: list[Rule]) -> None:
    """While requests are in an engine and tokens flow, no rule stops or restarts it."""
    first = Moment(1.0, (Look.IDLE,), (Fate.DONE,))
    rules = with_own(some)
    Auditor(rules).audit(World(rules=rules).live([first, first, *story]).trace)


_FAILING = st.lists(
    st.builds(
        Moment,
        gap=st.sampled_from([1.0, 1.0, 5.0, 60.0, 599.0, 600.0, 1200.0, 1799.9, 3599.0]),
        looks=st.tuples(st.sampled_from([Look.IDLE, Look.EXITS, Look.EXITS, Look.CORE_GONE])),
        fates=st.tuples(st.sampled_from([Fate.DONE, Fate.DONE, Fate.CRASHES, Fate.REFUSED])),
        times=st.just(1),
    ),
    min_size=20,
    max_size=50,
)


@EAGER
@given(_FAILING)
def test_no_row_of_failures_breaks_a_budget(story: list[Moment]) -> None:
    """An engine that dies again and again: backoff, both budgets and the breaker are kept."""
    Auditor().audit(World().live(story).trace)


_RARE = [
    Moment(1.0, (Look.IDLE,), (Fate.REFUSED,)),
    Moment(5.0, (Look.IDLE,), (Fate.DONE,)),
    Moment(5.0, (Look.IDLE,), (Fate.DONE,)),
    Moment(1.0, (Look.QUIET,), (Fate.DONE,), times=5),
    Moment(1.0, (Look.IDLE,), (Fate.DONE,)),
    Moment(1.0, (Look.IDLE,), (Fate.REFUSED,), verb=Verb.STOP),
    Moment(1.0, (Look.IDLE,), (Fate.DONE,), verb=Verb.START),
    Moment(5.0, (Look.IDLE,), (Fate.DONE,)),
    Moment(1.0, (Look.CORE_GONE,), (Fate.DONE,), times=3),
    Moment(1.0, (Look.IDLE,), (Fate.UNKILLABLE,)),
    Moment(1.0, (Look.IDLE,), (Fate.DONE,)),
]
"""Ends that the dice seldom show: refused, stalled, not stopped, and not to be killed."""


def test_the_auditor_is_not_vacuous() -> None:
    """The drawn worlds reach every reason to hold, every rung, every outcome and every end."""
    reached: Counter[str] = Counter()

    @settings(lawful, max_examples=200)
    @given(
        st.one_of(moments(), _FAILING, _BUSY, st.just(_RARE)), st.one_of(st.just([]), user_rules())
    )
    def draw(story: list[Moment], some: list[Rule]) -> None:
        rules = with_own(some)
        reached.update(Auditor(rules).audit(World(rules=rules).live(story).trace).reached)

    draw()
    held = {hold.value for hold in HoldReason} - {HoldReason.OBSERVE.value}
    verdicts = {f"is {one.value}" for one in Verdict} - {f"is {Verdict.GPU_FAULT.value}"}
    actions = ("start_engine", "stop_engine", "restart_engine")
    ends = {f"{action} {how}" for action in actions for how in ("ok", "failed")}
    stories = {f"incident {how}" for how in ("recovered", "operator", "cleared")}
    rungs = {f"rung {number}" for number in range(3)}
    assert held | verdicts | ends | stories | rungs <= set(reached)
