"""A rule set: what every step asks of the rules, worked out once and worked out right."""

from __future__ import annotations

from dataclasses import replace

from tests.support.box import gpu, xids
from tests.support.core import NAME, Above, Is, Story, rule, serving
from tests.support.rules import DEFAULT_RULES
from watchdog.core import rule_set
from watchdog.core.conditions import Figure, View, Window
from watchdog.core.engine import firing
from watchdog.core.model import Mode, Reading, Severity, SubjectKind, engine_subject
from watchdog.core.state import State

GPU, HOST = SubjectKind.GPU, SubjectKind.HOST
REPLAYS = Window(Figure.INCREASE, "gpu.pcie_replays", 300.0)
WIDTH = Window(Figure.MAX_OVER, "gpu.pcie_link_width", 300.0)


class Two:
    """A condition over samples of two probes."""

    samples = frozenset({"gpu.state", "xid.class_errors.reset"})
    windows: tuple[Window, ...] = ()

    def __call__(self, view: View) -> bool | None:
        """Trouble when the Xid is known, whatever the state."""
        value = view.get("xid.class_errors.reset")
        return None if value is None else value == 1


def test_rules_that_are_off_judge_nothing_and_have_a_name() -> None:
    """FACT: a finding of a rule that was switched off can still be explained."""
    off = rule("off", Above(REPLAYS, 0), GPU, mode=Mode.OFF)
    rules = rule_set.of((off,))
    assert rules.by_name == {"off": off}
    assert (rules.of_engines, rules.of_box, dict(rules.asking), dict(rules.windows)) == (
        (),
        (),
        {},
        {},
    )
    story = serving(rule_set=(off,)).read(gpu(1.0), gpu(2.0, {"pcie_replays": 99}))
    assert not firing(story.state)
    assert not story.state.series


def test_rules_keep_their_order() -> None:
    """FACT: the order of the files is the order of the tables."""
    assert tuple(rule_set.of(DEFAULT_RULES)) == tuple(DEFAULT_RULES)


def test_a_rule_is_asked_by_every_probe_that_it_needs() -> None:
    """FACT: whichever reading comes last, the rule sees it at once."""
    both = rule("both", Two(), GPU)
    rules = rule_set.of((both,))
    assert dict(rules.asking) == {"gpu": (both,), "xid": (both,)}
    story = serving(rule_set=rules).read(gpu(1.0), xids(2.0), xids(3.0, {"reset": 1}))
    assert [name for (name, _), _ in firing(story.state)] == ["both"]


def test_a_reading_asks_no_rule_that_does_not_need_it() -> None:
    """FACT: what a probe cannot change is not looked at: steps stay fast with many rules."""

    class Counted(Two):
        asked = 0

        def __call__(self, view: View) -> bool | None:
            """Count it."""
            Counted.asked += 1
            return super().__call__(view)

    story = serving(rule_set=(rule("both", Counted(), GPU),)).read(gpu(1.0))
    asked = Counted.asked
    story.read(*(_other(float(at)) for at in range(2, 9)))
    assert (asked, Counted.asked) == (1, 1)


def _other(at: float) -> Reading:
    return replace(gpu(at), probe="gpu_processes")


def test_a_window_is_kept_once_for_all_rules() -> None:
    """FACT: two rules that look through the same window share it; others have their own."""
    rules = rule_set.of(
        (
            rule("a", Above(REPLAYS, 1), GPU),
            rule("b", Above(REPLAYS, 99), GPU),
            rule("c", Above(WIDTH, 1), GPU),
        )
    )
    assert dict(rules.windows) == {REPLAYS.sample: (REPLAYS,), WIDTH.sample: (WIDTH,)}


def test_information_without_an_action_is_quiet() -> None:
    """FACT: only what neither warns nor acts keeps no incident open."""
    when = Is("engine.process", ("running",))
    rules = rule_set.of(
        (
            rule("told", when, severity=Severity.INFO),
            rule("acts", when, severity=Severity.INFO, actions=("start_engine",)),
            rule("warns", when),
        )
    )
    assert rules.quiet == {"told"}


def test_engines_and_the_box_are_asked_apart() -> None:
    """FACT: a rule about engines is asked for each engine, one about the host for the host."""
    rules = rule_set.of(
        (
            rule("engine", Is("engine.process", ("running",))),
            rule("host", Is("watchdog.failing_probes", ("",)), HOST),
        )
    )
    assert [one.name for one in rules.of_engines] == ["engine"]
    assert [one.name for one in rules.of_box] == ["host"]
    story = serving(rule_set=rules)
    assert {subject for (_, subject), _ in firing(story.state)} == {
        engine_subject(NAME),
        *(s for s in story.state.views if s.kind is HOST),
    }
    assert len(firing(story.state)) == 2


def test_a_sequence_is_worked_out_once() -> None:
    """FACT: whoever steps with the same rules gets the same set."""
    assert rule_set.of(DEFAULT_RULES) is rule_set.of(tuple(DEFAULT_RULES))
    assert rule_set.of(rule_set.of(DEFAULT_RULES)) is rule_set.of(DEFAULT_RULES)


def test_no_rules_are_rules() -> None:
    """FACT: a daemon without any rule looks, and does nothing."""
    story = Story(State(), rule_set=())
    assert story.tick(1.0).decisions == ()
