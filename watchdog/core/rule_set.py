"""All rules together, with what every step asks of them worked out once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from watchdog.core.conditions import Window
from watchdog.core.model import Mode, Severity, SubjectKind
from watchdog.core.rules import Rule


@dataclass(frozen=True, slots=True, eq=False)
class RuleSet:
    """Rules in their order. Those that are ``off`` are known by name and judge nothing.

    ``asking`` has, by probe, the rules about the box that a reading of it concerns, and under
    ``engines`` those that ask for nothing but what the core itself knows;
    ``windows`` what has to be kept, by sample; ``quiet`` are names of rules that only tell.
    """

    rules: tuple[Rule, ...]
    by_name: Mapping[str, Rule] = field(init=False)
    of_engines: tuple[Rule, ...] = field(init=False)
    of_box: tuple[Rule, ...] = field(init=False)
    asking: Mapping[str, tuple[Rule, ...]] = field(init=False)
    windows: Mapping[str, tuple[Window, ...]] = field(init=False)
    quiet: frozenset[str] = field(init=False)
    _asked: Mapping[str, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        """Work it out."""
        live = [rule for rule in self.rules if rule.mode is not Mode.OFF]
        of_box = tuple(rule for rule in live if rule.subject is not SubjectKind.ENGINE)
        quiet = (r.name for r in live if r.severity is Severity.INFO and not r.actions)
        for name, value in (
            ("by_name", {rule.name: rule for rule in self.rules}),
            ("of_engines", tuple(r for r in live if r.subject is SubjectKind.ENGINE)),
            ("of_box", of_box),
            ("asking", _by_probe(of_box)),
            ("windows", _by_sample(live)),
            ("quiet", frozenset(quiet)),
            ("_asked", {rule.name: _names(rule) for rule in of_box}),
        ):
            object.__setattr__(self, name, value)

    def asked_by(self, probe: str) -> tuple[Rule, ...]:
        """The rules about the box whose answer a reading of the probe can change."""
        return (*self.asking.get(probe, ()), *self.asking.get(_ANY, ()))

    def may_differ(self, rule: Rule, names: frozenset[str] | None) -> bool:
        """Whether the answer of a rule about the box can be another one after ``names`` changed.

        What the core itself adds to a view changes without a reading.
        """
        asked = self._asked[rule.name]
        return names is None or _ALWAYS in asked or not asked.isdisjoint(names)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)


_ALWAYS = "engines."
_ANY = "engines"


def _names(rule: Rule) -> frozenset[str]:
    """All that it asks a view for; ``_ALWAYS`` when that is more than can be told by name."""
    when = rule.when
    figures = {name for window in when.windows for name in (window.name, window.covered)}
    always = {_ALWAYS} if any(name.startswith(_ALWAYS) for name in when.samples) else set()
    return frozenset(when.samples | figures | always)


def of(rules: RuleSet | Sequence[Rule]) -> RuleSet:
    """``rules`` as a set; whoever steps often passes one."""
    return rules if isinstance(rules, RuleSet) else _of(tuple(rules))


@lru_cache(maxsize=32)
def _of(rules: tuple[Rule, ...]) -> RuleSet:
    return RuleSet(rules)


def _by_probe(rules: Iterable[Rule]) -> dict[str, tuple[Rule, ...]]:
    found: dict[str, tuple[Rule, ...]] = {}
    for rule in rules:
        roots = {name.partition(".")[0] for name in rule.when.samples}
        for probe in sorted(roots - {_ANY} or roots):
            found[probe] = (*found.get(probe, ()), rule)
    return found


def _by_sample(rules: Iterable[Rule]) -> dict[str, tuple[Window, ...]]:
    found: dict[str, tuple[Window, ...]] = {}
    for rule in rules:
        for window in rule.when.windows:
            if window not in found.get(window.sample, ()):
                found[window.sample] = (*found.get(window.sample, ()), window)
    return found
