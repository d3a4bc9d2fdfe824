"""From configuration to rules and limits."""

from __future__ import annotations

import pytest

from watchdog.config import Config, EngineConfig, RuleOverride, StopSettings
from watchdog.core.defaults import DEFAULT_RULES
from watchdog.daemon.wiring import RuleError, build_rules, outer_limit

ACTIONS = ("restart_engine", "start_engine", "stop_engine")


def test_an_override_changes_what_it_names_and_nothing_else() -> None:
    """The fields that are given replace those of the default rule of that name."""
    config = Config(rule=(RuleOverride(name="engine-stalled", for_=20.0),))
    rules = {rule.name: rule for rule in build_rules(config, ACTIONS)}
    defaults = {rule.name: rule for rule in DEFAULT_RULES}
    assert rules["engine-stalled"].hold_for == 20.0
    assert rules["engine-stalled"].actions == defaults["engine-stalled"].actions
    assert rules["engine-dead"] == defaults["engine-dead"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (RuleOverride(name="no-such-rule"), "rule.no-such-rule: expected the name"),
        (RuleOverride(name="engine-dead", actions=("reboot",)), "rule.engine-dead.actions"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_in_one_line(override: RuleOverride, words: str) -> None:
    """Unknown rules and unknown actions are named, with what was expected."""
    with pytest.raises(RuleError, match=words) as caught:
        build_rules(Config(rule=(override,)), ACTIONS)
    assert "\n" not in str(caught.value)


def test_a_shutdown_outlasts_the_longest_ladder() -> None:
    """A configured drain of an hour is not cut off by our own limit."""
    patient = EngineConfig(command=("x",), stop=StopSettings(drain_timeout=3600.0))
    config = Config(engine={"a": EngineConfig(command=("y",)), "b": patient})
    assert outer_limit(config) > 3600.0 + patient.stop.term_timeout + patient.stop.kill_timeout
