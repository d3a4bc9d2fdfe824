"""Rules: three-valued conditions over time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from probes._nvml.names import NAMES, REASONS
from probes._xid.classes import XidClass
from tests.support.core import Is, Story, rule, serving
from tests.support.rules import DEFAULT_RULES, RULES, FakeView, when
from watchdog import registry
from watchdog.contracts import Owner, SampleSpec
from watchdog.core.conditions import Figure, View
from watchdog.core.model import Finding, HoldReason, Severity, SubjectKind, Value, engine_subject
from watchdog.core.rules import Rule, holds_since, next_look, rewound, watch
from watchdog.core.state import State, Watch
from watchdog.rules import default_rules

SICK, WELL = FakeView({"engine.health": "dead"}), FakeView({"engine.health": "ready"})
UNKNOWN = FakeView({"engine.verdict": "starting"})
SUBJECT = engine_subject("main")
RULE = replace(
    RULES["engine-dead"],
    when=Is("engine.health", ("dead", "given_up")),
    evidence=("engine.health",),
    hold_for=10.0,
    clear_for=5.0,
)
FINDING = Finding("r", SUBJECT, Severity.CRITICAL, "s", 1.0)


def watched(*looks: tuple[float, View], rule: Rule = RULE) -> Watch:
    """The watch after ``looks``, each a time and what was seen."""
    seen = Watch()
    for at, view in looks:
        seen = watch(rule, SUBJECT, view, seen, at)
    return seen


def test_a_rule_fires_when_its_condition_has_held_long_enough() -> None:
    """Not a moment before ``for``, and exactly at it."""
    assert watched((0.0, SICK), (9.9, SICK)).firing is None
    firing = watched((0.0, SICK), (10.0, SICK)).firing
    assert firing is not None
    assert (firing.since, firing.evidence) == (10.0, (("engine.health", "dead"),))


def test_unknown_neither_fires_nor_clears() -> None:
    """A finding stays through the unknown, and so does health."""
    firing = watched((0.0, SICK), (10.0, SICK))
    unseen = watched((0.0, SICK), (10.0, SICK), (99.0, UNKNOWN), (9e9, UNKNOWN))
    assert unseen.firing == firing.firing
    assert watched((0.0, WELL), (50.0, UNKNOWN), (60.0, FakeView())) == Watch()


@pytest.mark.parametrize(
    "rule",
    [replace(RULE, subject=SubjectKind.GPU), replace(RULE, holds=HoldReason.BLOCKED)],
    ids=["gpu", "holds"],
)
def test_nobody_is_held_by_what_nobody_sees_any_more(rule: Rule) -> None:
    """FACT: about a GPU, or holding starts, it ends after an hour without a word, counted anew."""
    fired = ((0.0, SICK), (10.0, SICK), (20.0, UNKNOWN))
    assert watched(*fired, (3600.0, UNKNOWN), rule=rule).firing is not None
    assert watched(*fired, (3621.0, UNKNOWN), rule=rule) == Watch()
    again = ((3600.0, SICK), (3630.0, UNKNOWN), (7000.0, UNKNOWN))
    assert watched(*fired, *again, rule=rule).firing is not None


def test_what_nobody_saw_does_not_count() -> None:
    """Trouble and health that were out of sight in between must last anew."""
    assert watched((0.0, SICK), (5.0, UNKNOWN), (10.0, SICK), (19.0, SICK)).firing is None
    fired = ((0.0, SICK), (10.0, SICK))
    assert watched(*fired, (11.0, WELL), (14.0, UNKNOWN), (16.0, WELL)).firing is not None


def test_a_moment_of_health_starts_the_time_anew() -> None:
    """Trouble that went away in between has not lasted."""
    assert watched((0.0, SICK), (9.0, WELL), (10.0, SICK), (19.0, SICK)).firing is None


def test_a_finding_clears_when_health_has_held_long_enough() -> None:
    """Trouble that comes back within ``clear_for`` keeps the finding, the first one."""
    fired = ((0.0, SICK), (10.0, SICK))
    assert watched(*fired, (11.0, WELL), (15.9, WELL)).firing is not None
    assert watched(*fired, (11.0, WELL), (16.0, WELL)) == Watch()
    again = watched(*fired, (11.0, WELL), (12.0, SICK), (16.0, WELL)).firing
    assert again is not None
    assert again.since == 10.0


def test_next_look_is_when_time_alone_decides() -> None:
    """The end of ``for`` while pending, of ``clear_for`` while clearing, else never."""
    assert next_look(RULE, watched((0.0, SICK))) == (10.0,)
    assert next_look(RULE, watched((0.0, SICK), (10.0, SICK), (11.0, WELL))) == (16.0,)
    assert next_look(RULE, Watch()) == ()


def test_next_look_of_what_fires_is_when_it_may_be_acted_upon() -> None:
    """After a pause or a gap a finding must have held for ``for`` again, from its next look on."""
    fired = watched((0.0, SICK), (10.0, SICK))
    again = watch(RULE, SUBJECT, SICK, replace(fired, pending_since=None), 50.0)
    assert again.firing is fired.firing
    assert holds_since(RULE, again) == 60.0
    assert next_look(RULE, again) == (60.0,)
    assert holds_since(RULE, replace(fired, pending_since=None)) is None


def test_next_look_of_what_nobody_tells_of_is_its_end() -> None:
    """A finding about a card ends an hour later; one about an engine is the engine's story."""
    card = replace(RULE, subject=SubjectKind.GPU)
    unseen = Watch(0.0, FINDING, unseen_since=100.0)
    assert max(next_look(card, unseen)) == 3700.0
    assert max(next_look(RULE, unseen)) == 10.0


def test_a_rewind_forgets_what_was_held() -> None:
    """What was pending is gone; what fires goes on firing, and since when it holds is unknown."""
    acting, held = Watch(1.0, FINDING), Watch(1.0, FINDING, held=HoldReason.PAUSED)
    keys = [(name, SUBJECT) for name in "abc"]
    after = rewound(State(watches=dict(zip(keys, (acting, held, Watch(1.0)), strict=True)))).watches
    assert after == dict.fromkeys(keys[:2], Watch(firing=FINDING))


def _engine(health: str, process: str, *, wanted: bool = True) -> dict[str, Value]:
    known: dict[str, Value] = {
        "engine.process": process,
        "engine.wanted": wanted,
        "engine.action": "",
    }
    return known | ({"engine.health": health} if health else {})


@pytest.mark.parametrize(
    ("view", "fires"),
    [
        (_engine("dead", "backoff"), {"engine-dead"}),
        (_engine("given_up", "given_up"), {"engine-dead"}),
        (_engine("stalled", "running"), {"engine-stalled"}),
        (_engine("stopped", "stopped"), {"engine-down"}),
        (_engine("stopped", "stopped", wanted=False), set()),
        (_engine("busy", "running"), set()),
        (_engine("degraded", "running"), set()),
        (_engine("", "starting"), set()),
    ],
)
def test_what_the_default_rules_fire_on(view: dict[str, Value], fires: set[str]) -> None:
    """Each trouble has one rule, and neither load, nor degradation, nor a sticky stop has one."""
    found = {
        r.name for r in DEFAULT_RULES if watched((0.0, FakeView(view)), rule=r).firing is not None
    }
    assert found == fires


def test_every_default_rule_has_its_page() -> None:
    """Each has a name of its own, and a runbook that says what a person can do."""
    names = [rule.name for rule in DEFAULT_RULES]
    assert len(set(names)) == len(names)
    runbooks = Path(__file__).parents[2] / "docs" / "runbooks"
    assert all((runbooks / f"{rule.runbook or rule.name}.md").is_file() for rule in DEFAULT_RULES)


def _declared() -> dict[str, SampleSpec]:
    specs = registry.probes().values()
    return {f"{spec.name}.{one.name}": one for spec in specs for one in spec.samples}


def test_every_label_that_a_default_rule_asks_for_exists() -> None:
    """FACT: a label that no probe brings would make a rule that never fires."""
    declared, labels = (
        _declared(),
        {
            "throttled": {*REASONS.values(), "other"},
            "throttle_seconds": {*REASONS.values()},
            "class_errors": {kind.value for kind in XidClass},
            "memory_bytes": {owner.value for owner in Owner},
        },
    )
    for rule_ in DEFAULT_RULES:
        names = (*rule_.when.samples, *(n for n in rule_.evidence if "(" not in n))
        for probe, sample, label in (one.split(".", 2) for one in names if one.count(".") == 2):
            assert label in labels[sample], rule_.name
            assert set(declared[f"{probe}.{sample}"].label_values) == labels[sample], sample


def test_every_word_that_a_default_rule_asks_for_exists() -> None:
    """FACT: a word that no probe says would make a rule that never fires."""
    words = {*NAMES.values(), "ok", "lost", "needs reset", "unresponsive", ""}
    for rule_ in default_rules():
        if rule_.subject is SubjectKind.ENGINE:
            continue
        for word in re.findall(r'"([^"]*)"', rule_.when or ""):
            assert word in words or re.fullmatch(r"[0-9]+[smh]", word), rule_.name


def test_counters_are_what_rules_see_rising() -> None:
    """FACT: a rise is asked of counters only: a level that falls did not begin anew."""
    declared = _declared()
    rises = [
        window.sample
        for rule_ in DEFAULT_RULES
        for window in rule_.when.windows
        if window.figure is Figure.INCREASE
    ]
    assert rises
    for name in rises:
        assert declared[".".join(name.split(".")[:2])].counter, name


def test_only_findings_about_engines_act() -> None:
    """No finding about a GPU or the host restarts an engine; some hold restarts.

    Two sweep what dead engines have left: nothing that is opt-in stands in a default rule.
    """
    box = [rule for rule in DEFAULT_RULES if rule.subject is not SubjectKind.ENGINE]
    assert {rule.name: rule.actions for rule in box if rule.actions} == {
        "tmpfs-full": ("sweep_leftovers",),
        "tmpfs-inodes-full": ("sweep_leftovers",),
    }
    assert {rule.name for rule in DEFAULT_RULES if rule.holds is not None} == {
        *("gpu-lost", "gpu-reset-needed", "gpu-xid-reset", "engine-driver-too-old"),
        *("driver-unresponsive", "driver-mismatch", "gpu-access-lost", "foreign-manager"),
    }
    assert {rule.name for rule in box if rule.fault} <= {r.name for r in box if r.holds is not None}


def test_a_finding_that_is_clearing_does_not_act() -> None:
    """A user's ``clear_for = "30s"`` delays the end of the finding, it restarts nobody."""
    rules = tuple(replace(rule, clear_for=30.0) for rule in DEFAULT_RULES)
    story = _crashed_and_restarted(serving(rule_set=rules))
    assert story.engine.verdict.value == "ready"
    assert len(story.acts) == 1


def test_every_rule_is_charged_for_its_restarts() -> None:
    """The budget is over all causes: a rule on ``degraded`` cannot restart without end."""
    text = 'engine.verdict in ["starting", "stopping"] ? unknown : engine.verdict == "degraded"'
    mine = rule("mine", when(text), actions=("restart_engine",))
    story = serving(rule_set=(mine,))
    for round_ in range(1, 10):
        at = 400.0 * round_
        story.tick(at)
        if story.engine.in_flight:
            _restarted(story, at + 1)
    assert len(story.acts) <= 5


def _crashed_and_restarted(story: Story) -> Story:
    story.exited(10.0)
    return _restarted(story, 11.0)


def _restarted(story: Story, at: float) -> Story:
    return story.restarted(at, f"{int(at):08x}")
