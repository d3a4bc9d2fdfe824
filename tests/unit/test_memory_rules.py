"""An engine that grows for days is told of; who restarts it because of that is the operator."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.core import Story, http, metrics, process, serving
from tests.support.rule_stories import fires, times
from tests.support.rule_stories_memory import GIB, memory
from tests.support.rules import DEFAULT_RULES
from watchdog import registry
from watchdog.config.reading import Reader
from watchdog.config.settings import RuleConfig
from watchdog.core.engine import firing
from watchdog.core.model import Cause, Value
from watchdog.core.rules import Rule
from watchdog.rules import build_rules

PAGE = Path(__file__).parents[2] / "docs" / "runbooks" / "engine-memory-growing.md"
GROWING: dict[str, Value] = {
    "engine_bytes": 80 * GIB,
    "engine_growth_bytes_per_hour": 1.0 * GIB,
    "engine_full_in_seconds": 2 * 86_400.0,
    "engine_outlook": "80.0 GiB, 1.0 GiB more every hour: memory full in 2 days",
}


def renewing() -> tuple[Rule, ...]:
    """The default rules and the one that the page proposes."""
    text = next(part for part in PAGE.read_text().split("```toml")[1:] if "actions" in part)
    lines = text.partition("```")[0].splitlines()
    table = tomllib.loads("\n".join(line.removeprefix("   ") for line in lines))
    configs = Reader().structs(RuleConfig, table["rule"], "rule")
    assert isinstance(configs, tuple)
    return build_rules(configs, registry.probes(), registry.actions(), "the page")


def grown(rules: tuple[Rule, ...], running: float) -> Story:
    """An hour in which the engine has ``running`` requests, and grows."""
    story = serving(rule_set=rules)
    for at in times(5.0, 3605.0):
        story.read(memory(at, engine=GROWING), process(at), metrics(at, at, running=running))
        story.read(http(at, canary="ok", status=200))
    return story


def test_growth_is_told_with_its_trend_and_nothing_follows() -> None:
    """FACT: the default rules warn, in words with pace and end, and decide nothing."""
    story = grown(DEFAULT_RULES, running=0.0)
    found = {name: finding for (name, _), finding in firing(story.state)}
    evidence = dict(found["engine-memory-growing"].evidence)
    assert evidence["memory.engine_outlook"] == GROWING["engine_outlook"]
    assert found["engine-memory-growing"].fix.startswith("vllm-watchdog restart ")
    assert story.decisions == []


def test_a_rule_of_the_operators_renews_an_idle_engine() -> None:
    """FACT: the rule of the page restarts a large engine once, while no request is in it."""
    story = grown(renewing(), running=0.0)
    acts = [(act.rule, act.action, act.cause) for act in story.acts]
    assert acts == [("engine-renewed", "restart_engine", Cause.RULE)]


@pytest.mark.parametrize("running", [1.0, 40.0])
def test_it_renews_no_engine_that_is_used(running: float) -> None:
    """FACT: with requests in the engine that rule is silent."""
    story = grown(renewing(), running=running)
    assert not fires(story, "engine-renewed")
    assert story.acts == []
