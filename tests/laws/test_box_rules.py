"""Laws of rules over what a probe of the box tells of engines: load, looks, windows, ladders."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.laws.boxed import PROMPT, STORIES, Boxed, Said
from tests.laws.lawful import lawful
from tests.laws.user_rules import BOX_ACTIONS, BOX_CONDITIONS, Among, Over, user_rules, with_own
from tests.laws.world import SETTINGS, Fate, Look, Moment, Seen, own_acts
from watchdog.core.conditions import Figure, Window
from watchdog.core.model import Severity, SubjectKind, Verb
from watchdog.core.rules import Rule

Story = list[tuple[Moment, tuple[Said, ...]]]
EAGER = settings(lawful, max_examples=30)


def _rules(most: int, least: int = 1) -> st.SearchStrategy[list[Rule]]:
    return user_rules(
        most, least=least, conditions=BOX_CONDITIONS, lasts=PROMPT, actions=BOX_ACTIONS
    )


SOME, SEVERAL = _rules(2), _rules(3, 2)


HOT = Rule(
    "hot",
    SubjectKind.ENGINE,
    Among("it.bad", (True,)),
    Severity.WARNING,
    "it is hot",
    actions=("stop_engine",),
)
RESTARTS = replace(HOT, actions=("restart_engine",))
RISES = replace(RESTARTS, when=Over(Window(Figure.INCREASE, "it.n", 60.0), 3.0))
HIGH = replace(RESTARTS, when=Over(Window(Figure.AVG_OVER, "it.x", 60.0), 5.0))
ADOPTED = True
MOMENT = Moment(1.0, (Look.IDLE,), (Fate.DONE,))
HIDDEN = Said(look=Look.SILENT, late=10.0)
FAR = Said(level=9.0)


@EAGER
@example([(MOMENT, (Said(), HIDDEN, HIDDEN, replace(HIDDEN, bad=True)))], [RESTARTS], ADOPTED)
@example(
    [(MOMENT, (Said(look=Look.UNHEALTHY), Said(look=Look.UNHEALTHY, bad=True)))],
    [RESTARTS],
    ADOPTED,
)
@example([(MOMENT, (Said(rises=2), Said(rises=2, late=16.0), Said()))], [RISES], ADOPTED)
@example(
    [
        (replace(MOMENT, verb=Verb.PAUSE), (Said(), Said(rises=5))),
        (replace(MOMENT, verb=Verb.RESUME), (Said(),)),
    ],
    [RISES],
    ADOPTED,
)
@example(
    [(MOMENT, (FAR,) * 40), (MOMENT, (replace(FAR, blind=True),) * 5), (MOMENT, (FAR,) * 15)],
    [HIGH],
    ADOPTED,
)
@example([(MOMENT, (Said(bad=True, late=0.25),) * 20)], [RESTARTS], ADOPTED)
@example([(MOMENT, (Said(bad=True, ends=False),) * 4)], [RESTARTS], ADOPTED)
@given(STORIES, SOME, st.booleans())
def test_no_rule_about_the_box_breaks_a_law(
    story: Story,
    some: list[Rule],
    adopted: bool,  # noqa: FBT001 - drawn
) -> None:
    """Also of an adopted engine: its load is known first, and windows hold what was seen alone."""
    world = Boxed(rules=with_own(some), adopted=adopted)
    world.tells(story)
    world.auditor().audit(world.trace)


@EAGER
@given(STORIES, SEVERAL)
def test_two_rules_on_one_engine_break_no_law(story: Story, some: list[Rule]) -> None:
    """What one has done the other looks at first: every act is on what is found since the start."""
    world = Boxed(rules=with_own(some), adopted=True)
    world.tells(story)
    world.auditor().audit(world.trace)


COOL = replace(HOT, name="cool", when=Among("it.bad", (False,)), actions=("start_engine",))


@settings(lawful, max_examples=20)
@example([True, False] * 12)
@given(st.lists(st.booleans(), min_size=12, max_size=24))
def test_stops_and_starts_by_rules_are_bounded(hot: list[bool]) -> None:
    """However often a rule stops what another starts again, the budget of starts ends it."""
    world = Boxed(rules=with_own([HOT, COOL]), adopted=True)
    for bad in hot:
        world.waits(300.0)
        world.tells([(MOMENT, (Said(bad=bad),))])
    auditor = world.auditor()
    auditor.audit(world.trace)
    assert max(_within_an_hour(world.trace)) <= SETTINGS.restart_budget.count


def _within_an_hour(trace: list[Seen]) -> list[int]:
    """Of each start the number of those in the hour before it."""
    ats = [act.at for act in own_acts(trace) if act.action == "start_engine"]
    return [sum(0.0 <= at - one < 3600.0 for one in ats) for at in ats] or [0]


def test_these_worlds_are_not_vacuous() -> None:
    """Rules act on levels, on rises and on averages, beside an engine and on it, twice in a row."""
    reached: Counter[str] = Counter()

    @settings(lawful, max_examples=60)
    @given(STORIES, SOME)
    def draw(story: Story, some: list[Rule]) -> None:
        world = Boxed(rules=with_own(some), adopted=True)
        world.tells(story)
        reached.update(world.auditor().audit(world.trace).reached)

    draw()
    long = Boxed(rules=with_own([HIGH]), adopted=True)
    long.tells([(MOMENT, (FAR,) * 64)])
    reached.update(long.auditor().audit(long.trace).reached)
    figures = {f"acts on {name}" for name in ("increase", "avg_over", "max_over")}
    ends = {f"{name} ok" for name in ("dump", "restart_engine", "stop_engine")}
    assert {*figures, *ends, "rung 1", "stale", "inhibited", "paused"} <= set(reached)
