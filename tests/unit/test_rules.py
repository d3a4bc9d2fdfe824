"""Rules: three-valued conditions over time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from probes._nvml.names import NAMES, REASONS
from probes._xid.classes import XidClass
from tests.support.core import Of, Story, http, metrics, process, serving
from watchdog import registry
from watchdog.contracts import Owner
from watchdog.core.conditions import Above, All, Fell, OneOf, Rose, View, parts, samples
from watchdog.core.defaults import DEFAULT_RULES
from watchdog.core.engine import view_of
from watchdog.core.model import Finding, HoldReason, Severity, SubjectKind, Value, engine_subject
from watchdog.core.rules import Rule, next_look, rewound, watch
from watchdog.core.state import Watch

SICK, WELL, UNKNOWN = {"health": "dead"}, {"health": "ready"}, {"health": "starting"}
SUBJECT = engine_subject("main")
RULE = replace(
    next(rule for rule in DEFAULT_RULES if rule.name == "engine-dead"),
    when=OneOf("health", ("dead", "given_up"), ("starting", "stopping", "unkillable")),
    evidence=("health",),
    hold_for=10.0,
    clear_for=5.0,
)


def watched(*looks: tuple[float, View], rule: Rule = RULE) -> Watch:
    """The watch after ``looks``, each a time and what was seen."""
    seen = Watch()
    for at, view in looks:
        seen = watch(rule, SUBJECT, view, seen, at)
    return seen


@pytest.mark.parametrize(
    ("view", "answer"),
    [({"x": "a"}, True), ({"x": "c"}, False), ({"x": "b"}, None), ({}, None)],
)
def test_one_of_is_three_valued(view: dict[str, Value], answer: bool | None) -> None:  # noqa: FBT001
    """A missing sample and an undecided value are unknown, not false."""
    assert OneOf("x", ("a",), ("b",))(view) is answer


@pytest.mark.parametrize(
    ("view", "answer"),
    [
        ({"x": 1, "y": 1}, True),
        ({"x": 1, "y": 2}, False),
        ({"y": 2}, False),
        ({"x": 1}, None),
        ({}, None),
    ],
)
def test_false_absorbs_unknown(view: dict[str, Value], answer: bool | None) -> None:  # noqa: FBT001
    """One part that does not hold decides whatever is unknown beside it."""
    assert All((OneOf("x", (1,)), OneOf("y", (1,))))(view) is answer


def test_a_rule_fires_when_its_condition_has_held_long_enough() -> None:
    """Not a moment before ``for``, and exactly at it."""
    assert watched((0.0, SICK), (9.9, SICK)).firing is None
    firing = watched((0.0, SICK), (10.0, SICK)).firing
    assert firing is not None
    assert (firing.since, firing.evidence) == (10.0, (("health", "dead"),))


def test_unknown_neither_fires_nor_clears() -> None:
    """A finding stays through the unknown, and so does health."""
    firing = watched((0.0, SICK), (10.0, SICK))
    unseen = watched((0.0, SICK), (10.0, SICK), (99.0, UNKNOWN), (9e9, UNKNOWN))
    assert unseen.firing == firing.firing
    assert watched((0.0, WELL), (50.0, UNKNOWN), (60.0, {})) == Watch()


def test_the_box_is_not_held_by_what_nobody_sees_any_more() -> None:
    """FACT: about a GPU a finding ends after an hour without a word; a word begins it anew."""
    rule = replace(RULE, subject=SubjectKind.GPU)
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
    assert next_look(RULE, watched((0.0, SICK))) == 10.0
    assert next_look(RULE, watched((0.0, SICK), (10.0, SICK))) is None
    assert next_look(RULE, watched((0.0, SICK), (10.0, SICK), (11.0, WELL))) == 16.0
    assert next_look(RULE, Watch()) is None


def test_a_rewind_forgets_what_was_held() -> None:
    """What was pending or held must hold anew; what is being acted upon goes on."""
    finding = Finding("r", SUBJECT, Severity.CRITICAL, "s", 1.0)
    acting, held = Watch(1.0, finding), Watch(1.0, finding, held=HoldReason.PAUSED)
    keys = [(name, SUBJECT) for name in "abc"]
    after = rewound(dict(zip(keys, (acting, held, Watch(1.0)), strict=True)))
    assert list(after.values()) == [acting, Watch(), Watch()]


@pytest.mark.parametrize(
    ("view", "fires"),
    [
        ({"health": "dead", "process": "backoff", "wanted": True}, {"engine-dead"}),
        ({"health": "given_up", "process": "given_up", "wanted": True}, {"engine-dead"}),
        ({"health": "stalled", "process": "running", "wanted": True}, {"engine-stalled"}),
        ({"health": "stopped", "process": "stopped", "wanted": True}, {"engine-down"}),
        ({"health": "stopped", "process": "stopped", "wanted": False}, set()),
        ({"health": "busy", "process": "running", "wanted": True}, set()),
        ({"health": "degraded", "process": "running", "wanted": True}, set()),
        ({"health": "starting", "process": "starting", "wanted": True}, set()),
    ],
)
def test_what_the_default_rules_fire_on(view: dict[str, Value], fires: set[str]) -> None:
    """Each trouble has one rule, and neither load, nor degradation, nor a sticky stop has one."""
    found = {r.name for r in DEFAULT_RULES if watched((0.0, view), rule=r).firing is not None}
    assert found == fires


def test_every_default_rule_has_its_page() -> None:
    """Each has a name of its own, and a runbook that says what a person can do."""
    names = [rule.name for rule in DEFAULT_RULES]
    assert len(set(names)) == len(names)
    runbooks = Path(__file__).parents[2] / "docs" / "runbooks"
    assert all((runbooks / f"{rule.runbook or rule.name}.md").is_file() for rule in DEFAULT_RULES)


def test_every_sample_that_a_default_rule_asks_for_is_declared() -> None:
    """A name that no probe brings would never be known, and its rule never fire or clear."""
    specs = registry.probes().values()
    declared = {f"{spec.name}.{sample.name}" for spec in specs for sample in spec.samples}
    declared |= {"engine.ours", "engine.waiting"} | set(view_of(serving().engine))
    for rule in DEFAULT_RULES:
        asked = {*samples(rule.when), *rule.evidence}
        stems = {".".join(name.split()[0].split(".")[:2]) for name in asked}
        assert stems <= declared, rule.name


def test_every_label_and_word_that_a_default_rule_asks_for_exists() -> None:
    """FACT: a label or a word that no probe brings would make a rule that never fires."""
    labels = {
        "throttled": {*REASONS.values(), "other"},
        "throttle_seconds": {*REASONS.values()},
        "class_errors": {kind.value for kind in XidClass},
        "memory_bytes": {owner.value for owner in Owner},
    }
    words = {*NAMES.values(), "ok", "lost", "needs reset", "unresponsive", ""}
    for condition in (one for rule in DEFAULT_RULES for one in parts(rule.when)):
        for name in samples(condition):
            probe, _, rest = name.partition(".")
            sample, _, label = rest.partition(".")
            assert not label or label in labels[sample], name
            if isinstance(condition, OneOf) and probe in {"gpu", "driver"}:
                assert {value for value in condition.values if isinstance(value, str)} <= words


def test_counters_are_what_rules_see_rising() -> None:
    """FACT: a rise is asked of counters only, and a text is never compared with a number."""
    specs = registry.probes().values()
    declared = {f"{spec.name}.{one.name}": one for spec in specs for one in spec.samples}
    for condition in (one for rule in DEFAULT_RULES for one in parts(rule.when)):
        for name in samples(condition):
            spec = declared.get(".".join(name.split(".")[:2]))
            if spec is not None and isinstance(condition, Rose):
                assert spec.counter, name
            if spec is not None and isinstance(condition, Above | Fell):
                assert spec.type is not str, name
            if spec is not None and isinstance(condition, OneOf):
                assert {type(value) for value in condition.values} == {spec.type}, name


def test_only_findings_about_engines_act() -> None:
    """No finding about a GPU or the host restarts an engine; some hold restarts."""
    box = [rule for rule in DEFAULT_RULES if rule.subject is not SubjectKind.ENGINE]
    assert not [rule.name for rule in box if rule.actions]
    assert {rule.name for rule in DEFAULT_RULES if rule.holds is not None} == {
        *("gpu-lost", "gpu-reset-needed", "gpu-xid-reset", "engine-driver-too-old"),
        *("driver-unresponsive", "driver-mismatch", "gpu-access-lost"),
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
    when = OneOf("verdict", ("degraded",), ("starting", "stopping"))
    rule = Rule("mine", SubjectKind.ENGINE, when, Severity.WARNING, "", actions=("restart_engine",))
    story = serving(rule_set=(rule,))
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
    generation = f"{int(at):08x}"
    story.spawned(at, generation)
    story.finished(at + 0.1, "restart_engine")
    of = Of(generation=generation)
    story.read(process(at + 1, **of), metrics(at + 1, 0.0, **of))
    return story.read(http(at + 2, canary="ok", status=200, **of))
