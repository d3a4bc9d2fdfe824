"""What is accepted in a configuration and yet hardly meant: one line each, for ``check``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from watchdog.config import Config, RuleConfig
from watchdog.config.durations import duration_text
from watchdog.contracts import ProbeSpec
from watchdog.core.model import Mode
from watchdog.core.rules import Rule

_NAMED = 5


def oddities(
    config: Config, rules: tuple[Rule, ...], probes: Mapping[str, ProbeSpec]
) -> Iterator[str]:
    """Lines ``KEY: what it leads to``."""
    yield from config.warnings
    live = [rule for rule in rules if rule.mode is not Mode.OFF]
    yield from _empty(config.rule)
    yield from _without_inhibitor(rules, live)
    yield from _idle_ladders(config.rule, rules)
    yield from _blind(config, live)
    for rule in live:
        yield from _narrow(rule, config, probes)


def _empty(configured: tuple[RuleConfig, ...]) -> Iterator[str]:
    for rule in configured:
        given = [value for value in msgspec.structs.astuple(rule) if value is not None]
        if given == [rule.name]:
            yield f"rule.{rule.name}: changes nothing"


def _without_inhibitor(rules: tuple[Rule, ...], live: list[Rule]) -> Iterator[str]:
    idle = {rule.name: rule.mode.value for rule in rules if rule.mode is not Mode.ACT}
    for name, mode in sorted(idle.items()):
        heirs = [rule.name for rule in live if name in rule.inhibited_by]
        if heirs:
            yield f"rule.{name}.mode: {mode}, so it no longer holds back {_listed(heirs)}"


def _idle_ladders(configured: tuple[RuleConfig, ...], rules: tuple[Rule, ...]) -> Iterator[str]:
    modes = {rule.name: rule.mode for rule in rules}
    for rule in configured:
        mode = modes.get(rule.name, Mode.ACT)
        if rule.actions and mode is not Mode.ACT:
            yield f"rule.{rule.name}.actions: never taken, the rule's mode is {mode.value}"


def _blind(config: Config, live: list[Rule]) -> Iterator[str]:
    """Probes that are off although rules look at what they see."""
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    for rule in live:
        for probe in {name.partition(".")[0] for name in rule.when.samples}:
            wanted[probe].append(rule.name)
    for name, configured in config.probes.items():
        if not configured.enabled and wanted[name]:
            yield f"probes.{name}.enabled: false, so nothing is known for {_listed(wanted[name])}"


def _narrow(rule: Rule, config: Config, probes: Mapping[str, ProbeSpec]) -> Iterator[str]:
    """A window in which its probe looks less than twice is hardly ever covered."""
    for window in rule.when.windows:
        name = window.sample.partition(".")[0]
        if name not in probes:
            continue
        period = config.probes[name].period or probes[name].period
        if window.seconds < 2 * period:
            yield (
                f"rule.{rule.name}.when: {window.name} is hardly ever known,"
                f" {name} looks every {duration_text(period)}"
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(sorted(names)[:_NAMED]) + more
