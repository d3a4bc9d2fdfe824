"""Rules as users may write them: overrides of the defaults, and new ones that want to act."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tests.support.rules import DEFAULT_RULES
from watchdog.core import rule_set
from watchdog.core.conditions import Condition, Figure, View, Window
from watchdog.core.model import Mode, Severity, SubjectKind, Value
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import Rule


@dataclass(frozen=True, slots=True)
class Among:
    """The sample has one of these values; not known while the sample is not."""

    name: str
    values: tuple[Value, ...]

    @property
    def samples(self) -> frozenset[str]:
        """The one it asks for."""
        return frozenset({self.name})

    @property
    def windows(self) -> tuple[Window, ...]:
        """None."""
        return ()

    def __call__(self, view: View) -> bool | None:
        """Three-valued."""
        value = view.get(self.name)
        return None if value is None else value in self.values


@dataclass(frozen=True, slots=True)
class Above:
    """The sample is a number above ``limit``; not known while the sample is not."""

    name: str
    limit: float

    @property
    def samples(self) -> frozenset[str]:
        """The one it asks for."""
        return frozenset({self.name})

    @property
    def windows(self) -> tuple[Window, ...]:
        """None."""
        return ()

    def __call__(self, view: View) -> bool | None:
        """Three-valued."""
        value = view.get(self.name)
        return None if value is None or isinstance(value, str) else value > self.limit


@dataclass(frozen=True, slots=True)
class Over:
    """A window's figure is above ``limit``: a bound of it while it rises, else when it is seen."""

    window: Window
    limit: float

    @property
    def samples(self) -> frozenset[str]:
        """The one it asks for."""
        return frozenset({self.window.sample})

    @property
    def windows(self) -> tuple[Window, ...]:
        """The one."""
        return (self.window,)

    def __call__(self, view: View) -> bool | None:
        """Three-valued."""
        value, covered = view.get(self.window.name), view.get(self.window.covered)
        if value is None or isinstance(value, str):
            return None
        rises = self.window.figure in {Figure.INCREASE, Figure.MAX_OVER}
        if value > self.limit and (rises or covered):
            return True
        return False if covered else None


RESTS = (0.0, 0.0, 1.0, 10.0, 60.0, 601.0)
"""Durations on and around those of the world."""

CONDITIONS = (
    Among("engine.health", ("busy",)),
    Among("engine.health", ("ready", "busy", "degraded", "dead", "stalled")),
    Among("engine.health", ("ready",)),
    Among("engine.health", ("degraded",)),
    Among("engine.verdict", ("dead", "given_up", "stalled")),
    Among("engine.process", ("running", "starting")),
    Among("engine.process", ("stopped",)),
    Among("engine.wanted", (True, False)),
    Among("engine_http.canary", ("timeout", "failed")),
    Above("engine.members", 0),
    Above("engine_metrics.running.0", 0),
    Above("engine_process.stopped_members", 0),
)
"""About samples of an engine; most of them are true of an engine that should be let be."""

BOX_CONDITIONS = (
    Among("it.bad", (True,)),
    Among("it.bad", (True, False)),
    Above("it.x", 5.0),
    Over(Window(Figure.INCREASE, "it.n", 60.0), 3.0),
    Over(Window(Figure.INCREASE, "it.n", 600.0), 3.0),
    Over(Window(Figure.AVG_OVER, "it.x", 60.0), 5.0),
    Over(Window(Figure.MAX_OVER, "it.x", 60.0), 8.0),
)
"""About what a probe of the box tells of an engine."""

_ACTIONS = ("restart_engine", "restart_engine", "stop_engine", "start_engine", "dump")
BOX_ACTIONS = ("restart_engine", "restart_engine", "dump", "dump", "stop_engine")
_DURATIONS = st.sampled_from(RESTS)
_SEVERITIES = st.sampled_from(list(Severity))


def user_rules(
    most: int = 2,
    *,
    least: int = 1,
    conditions: Sequence[Condition] = CONDITIONS,
    lasts: Sequence[float] = RESTS,
    actions: Sequence[str] = _ACTIONS,
) -> st.SearchStrategy[list[Rule]]:
    """Up to ``most`` new rules about engines, each with a ladder of its own."""
    durations = st.sampled_from(lasts)

    def built(number: int) -> st.SearchStrategy[Rule]:
        return st.builds(
            Rule,
            name=st.just(f"user-{number}"),
            subject=st.just(SubjectKind.ENGINE),
            when=st.sampled_from(conditions),
            severity=_SEVERITIES,
            summary=st.just("a user says so"),
            hold_for=durations,
            clear_for=durations,
            cooldown=durations,
            actions=st.lists(st.sampled_from(actions), min_size=1, max_size=3).map(tuple),
            inhibited_by=st.sampled_from([(), (), ("engine-stalled",), ("engine-dead", "user-0")]),
        )

    return st.lists(st.integers(0), min_size=least, max_size=most).flatmap(
        lambda some: st.tuples(*[built(number) for number in range(len(some))]).map(list)
    )


@dataclass(frozen=True, slots=True)
class Override:
    """What a user may write below the name of a default rule."""

    rule: str
    hold_for: float
    clear_for: float
    cooldown: float
    severity: Severity
    mode: Mode

    def of(self, rule: Rule) -> Rule:
        """``rule`` with it."""
        return replace(
            rule,
            hold_for=self.hold_for,
            clear_for=self.clear_for,
            cooldown=self.cooldown,
            severity=self.severity,
            mode=self.mode,
        )


def overrides() -> st.SearchStrategy[list[Override]]:
    """Some of the default rules about engines and the host, each changed in all that may be."""
    names = [rule.name for rule in DEFAULT_RULES if rule.subject is not SubjectKind.GPU]
    acting = [rule.name for rule in DEFAULT_RULES if rule.name in names and rule.actions]
    one = st.builds(
        Override,
        rule=st.sampled_from(acting) | st.sampled_from(names),
        hold_for=_DURATIONS,
        clear_for=_DURATIONS,
        cooldown=_DURATIONS,
        severity=_SEVERITIES,
        mode=st.sampled_from([Mode.ACT, Mode.ACT, Mode.ACT, Mode.OBSERVE, Mode.OFF]),
    )
    return st.lists(one, max_size=6, unique_by=lambda override: override.rule)


def with_overrides(some: Sequence[Override]) -> RuleSet:
    """The default rules as a user has changed them."""
    changed = {override.rule: override for override in some}
    return rule_set.of(
        tuple(
            changed[rule.name].of(rule) if rule.name in changed else rule for rule in DEFAULT_RULES
        )
    )


def with_own(some: Sequence[Rule]) -> RuleSet:
    """The default rules and those of a user."""
    return rule_set.of((*DEFAULT_RULES, *some))
