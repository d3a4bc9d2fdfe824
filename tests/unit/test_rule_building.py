"""Rules from tables: defaults, what the user overrides, and everything that can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rules import DEFAULT_RULES, RULES, FakeView
from watchdog import registry
from watchdog.config.settings import RuleConfig
from watchdog.contracts import Action, ActionSpec
from watchdog.core.model import HoldReason, Mode, Severity, SubjectKind
from watchdog.core.rules import Rule
from watchdog.rules import RuleError, build_rules, default_rules

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
NEW = RuleConfig(
    name="gpu-warm",
    subject=SubjectKind.GPU,
    when="gpu.temperature_celsius > 80",
    summary="the GPU is warm",
)


def _no_action(_: object) -> Action:
    raise AssertionError("an action that is only declared was built")


ACTIONS = {
    **registry.actions(),
    "reset_gpu": ActionSpec("reset_gpu", "reset it", _no_action, frozenset({SubjectKind.GPU})),
    "call": ActionSpec(
        "call",
        "call somebody",
        _no_action,
        frozenset({SubjectKind.GPU, SubjectKind.HOST}),
        choices=lambda _: ("me", "you"),
    ),
}


def built(*configured: RuleConfig) -> dict[str, Rule]:
    """The rules by name."""
    rules = build_rules(configured, registry.probes(), ACTIONS, "w.toml")
    return {rule.name: rule for rule in rules}


def refused(*configured: RuleConfig) -> tuple[str, ...]:
    """The lines that say why not."""
    with pytest.raises(RuleError) as caught:
        built(*configured)
    return caught.value.lines


def changed(**values: object) -> RuleConfig:
    """The new rule with other values."""
    return RuleConfig(
        **{**{field: getattr(NEW, field) for field in NEW.__struct_fields__}, **values}
    )


def test_every_default_rule_is_complete() -> None:
    """FACT: each has a summary, a severity, its reason, something to show, and a runbook page."""
    assert len(RULES) == len(DEFAULT_RULES) > 40
    for rule in default_rules():
        assert rule.severity, rule.name
        assert rule.reason, rule.name
        assert rule.summary == (rule.summary or "").strip() != "", rule.name
        assert RULES[rule.name].evidence, rule.name
        assert (RUNBOOKS / f"{rule.name}.md").is_file(), rule.name


def test_every_runbook_page_has_its_rule() -> None:
    """FACT: a page of a rule that is gone does not stay behind."""
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == set(RULES)


def test_a_default_rule_is_overridden_field_by_field() -> None:
    """FACT: what is not given stays as it is in the default, the order of the rules too."""
    before = RULES["gpu-hot"]
    rules = built(
        RuleConfig(name="gpu-hot", for_=5.0, mode=Mode.OBSERVE, severity=Severity.CRITICAL)
    )
    rule = rules["gpu-hot"]
    assert (rule.hold_for, rule.mode, rule.severity) == (5.0, Mode.OBSERVE, Severity.CRITICAL)
    assert (rule.when, rule.clear_for, rule.summary) == (before.when, 300.0, before.summary)
    assert (rule.evidence, rule.reason) == (before.evidence, before.reason)
    assert list(rules) == list(RULES)


def test_empty_and_zero_are_values_too() -> None:
    """FACT: a ladder or a duration can be taken away from a default rule."""
    rules = built(
        RuleConfig(name="engine-dead", actions=()),
        RuleConfig(name="gpu-lost", clear_for=0.0, fault=False, evidence=()),
    )
    assert rules["engine-dead"].actions == ()
    lost = rules["gpu-lost"]
    assert (lost.clear_for, lost.fault, lost.evidence) == (0.0, False, ())


def test_another_condition_brings_its_own_evidence() -> None:
    """FACT: what the default condition was shown and reasoned with does not outlive it."""
    when = 'increase(gpu.pcie_replays, "1m") > 50 && gpu.throttled["hw_thermal"]'
    rule = built(RuleConfig(name="gpu-pcie-replays", when=when))["gpu-pcie-replays"]
    assert rule.evidence == ("increase(gpu.pcie_replays, 1m)", "gpu.throttled.hw_thermal")
    assert rule.reason == ""


def test_a_new_rule_has_defaults() -> None:
    """FACT: subject, condition and summary are enough; it comes behind the default rules."""
    rules = built(NEW)
    rule = rules["gpu-warm"]
    assert list(rules)[-1] == "gpu-warm"
    assert rule.severity is Severity.WARNING
    assert (rule.hold_for, rule.clear_for, rule.cooldown) == (0.0, 0.0, 0.0)
    assert (rule.actions, rule.inhibited_by, rule.holds) == ((), (), None)
    assert (rule.mode, rule.fault, rule.runbook) == (Mode.ACT, False, "")
    assert rule.evidence == ("gpu.temperature_celsius",)
    assert rule.when(FakeView({"gpu.temperature_celsius": 81.0})) is True


def test_a_new_rule_can_have_everything() -> None:
    """FACT: every key of the table arrives in the rule."""
    rule = built(
        changed(
            for_=1.0,
            clear_for=2.0,
            cooldown=3.0,
            severity=Severity.INFO,
            actions=("reset_gpu",),
            inhibited_by=("gpu-lost",),
            mode=Mode.OFF,
            reason="because",
            runbook="https://example.org/warm",
            evidence=("gpu.power_watts", 'gpu.throttled["idle"]'),
            holds=HoldReason.BLOCKED,
            fault=True,
        )
    )["gpu-warm"]
    assert (rule.hold_for, rule.clear_for, rule.cooldown) == (1.0, 2.0, 3.0)
    assert (rule.severity, rule.mode, rule.fault) == (Severity.INFO, Mode.OFF, True)
    assert (rule.actions, rule.inhibited_by) == (("reset_gpu",), ("gpu-lost",))
    assert (rule.reason, rule.runbook) == ("because", "https://example.org/warm")
    assert rule.evidence == ("gpu.power_watts", "gpu.throttled.idle")
    assert rule.holds is HoldReason.BLOCKED


@pytest.mark.parametrize(
    ("configured", "line"),
    [
        (
            changed(when="gpu.temprature_celsius > 80"),
            (
                "rule.gpu-warm.when: column 1: unknown sample gpu.temprature_celsius,"
                " did you mean gpu.temperature_celsius?"
            ),
        ),
        (
            changed(when="gpu.temperature_celsius"),
            "rule.gpu-warm.when: column 1: expected a condition (true or false), got a number",
        ),
        (changed(when=""), "rule.gpu-warm.when: column 1: expected a condition"),
        (
            changed(actions=("reset",)),
            (
                'rule.gpu-warm.actions: unknown action "reset",'
                f" expected one of {', '.join(sorted(ACTIONS))}"
            ),
        ),
        (
            changed(actions=("reset_gpu:now",)),
            (
                'rule.gpu-warm.actions: unknown action "reset_gpu:now",'
                f" expected one of {', '.join(sorted(ACTIONS))}"
            ),
        ),
        *(
            (
                changed(actions=(name,)),
                (
                    "rule.gpu-warm.actions: expected call:NAME,"
                    " with a name of [actions.call]: me, you"
                ),
            )
            for name in ("call", "call:", "call:them")
        ),
        (changed(fix="cool it\ndown"), "rule.gpu-warm.fix: expected one line of printable text"),
        (
            changed(fix="cool {gpu.uuid} down"),
            "rule.gpu-warm.fix: expected {gpu.uuid} to stand in the evidence too",
        ),
        (
            changed(actions=("reset_gpu", "stop_engine")),
            "rule.gpu-warm.actions: stop_engine acts on an engine, this rule is about a gpu",
        ),
        (
            changed(inhibited_by=("gpu-losst",)),
            'rule.gpu-warm.inhibited_by: unknown rule "gpu-losst", did you mean gpu-lost?',
        ),
        (
            changed(inhibited_by=("gpu-warm",)),
            "rule.gpu-warm.inhibited_by: a rule cannot be inhibited by itself",
        ),
        (
            changed(holds=HoldReason.PAUSED),
            'rule.gpu-warm.holds: expected "inhibited" or "blocked", got "paused"',
        ),
        (changed(summary=" "), "rule.gpu-warm.summary: expected a text that is not empty"),
        (
            changed(evidence=("gpu.power_watts", "gpu.powr_watts")),
            (
                "rule.gpu-warm.evidence[1]: column 1: unknown sample gpu.powr_watts,"
                " did you mean gpu.power_watts?"
            ),
        ),
        (
            changed(evidence=("gpu.mig && gpu.mig",)),
            "rule.gpu-warm.evidence[0]: expected the name of one sample, or one window",
        ),
        (
            changed(evidence=('increase(gpu.pcie_replays, "5m")',)),
            "rule.gpu-warm.evidence[0]: expected a window of the condition",
        ),
        (changed(evidence=("",)), "rule.gpu-warm.evidence[0]: expected a sample or a window"),
        (
            changed(subject=None),
            (
                'rule.gpu-warm.subject: expected one of "engine", "gpu", "host",'
                " as this is no default rule"
            ),
        ),
        (
            changed(when=None),
            "rule.gpu-warm.when: expected a condition, as this is no default rule",
        ),
        (
            changed(summary=None),
            "rule.gpu-warm.summary: expected a text, as this is no default rule",
        ),
        (
            changed(subject=SubjectKind.PROCESS),
            'rule.gpu-warm.subject: nothing is known of a "process"',
        ),
        (
            RuleConfig(name="gpu-hot", subject=SubjectKind.HOST),
            'rule.gpu-hot.subject: expected "gpu" as in the default rule, got "host"',
        ),
        (
            RuleConfig(name="gpu-hott", for_=1.0),
            (
                "rule.gpu-hott: no default rule has this name, did you mean gpu-hot?"
                " A new one needs subject, when and summary"
            ),
        ),
        (
            RuleConfig(name="gpu-hot", when="gpu.mig && 1"),
            "rule.gpu-hot.when: column 9: && needs true or false on both sides, got a number",
        ),
    ],
)
def test_an_error_names_file_rule_and_key(configured: RuleConfig, line: str) -> None:
    """FACT: each mistake is one line, with what was expected."""
    assert refused(configured) == (f"w.toml: {line}",)


def test_all_errors_of_all_rules_are_told_at_once() -> None:
    """FACT: nobody has to correct a file error by error."""
    lines = refused(
        changed(when="gpu.a > 1 || gpu.b > 1", actions=("x",)),
        RuleConfig(name="gpu-hot", inhibited_by=("nothing-like-it",)),
        RuleConfig(name="own"),
    )
    assert [line.split(": ")[1] for line in lines] == [
        "rule.own.subject",
        "rule.own.when",
        "rule.own.summary",
        "rule.gpu-hot.inhibited_by",
        "rule.gpu-warm.actions",
        "rule.gpu-warm.when",
        "rule.gpu-warm.when",
    ]


def test_a_cycle_of_inhibitions_is_named_once() -> None:
    """FACT: rules that would silence each other are refused, with the way round; a fork is none."""
    a, b, c, d = (f"gpu-{letter}" for letter in "abcd")
    lines = refused(
        changed(name=a, inhibited_by=(b,)),
        changed(name=b, inhibited_by=(c, d)),
        changed(name=c, inhibited_by=(d, a)),
        changed(name=d),
    )
    words = "a cycle of inhibitions: gpu-a, gpu-b, gpu-c, gpu-a"
    assert lines == (f"w.toml: rule.gpu-a.inhibited_by: {words}",)
    assert built(changed(name=a, inhibited_by=(d,)), changed(name=d, inhibited_by=("gpu-hot",)))


def test_a_default_rule_can_complete_a_cycle() -> None:
    """FACT: inhibitions are looked at over defaults and own rules together."""
    (line,) = refused(
        changed(inhibited_by=("gpu-hot",)), RuleConfig(name="gpu-hot", inhibited_by=("gpu-warm",))
    )
    assert "gpu-hot, gpu-warm, gpu-hot" in line


def test_a_name_that_comes_twice_is_refused() -> None:
    """FACT: the second table does not silently replace the first."""
    assert refused(NEW, NEW) == ("w.toml: rule.gpu-warm: expected one rule of that name, got 2",)


def test_a_rule_is_the_same_when_it_is_built_again() -> None:
    """FACT: a reload that changes nothing sees that nothing has changed."""
    assert list(built(NEW).values()) == [*DEFAULT_RULES, built(NEW)["gpu-warm"]]
