"""From configured rules to rules that judge: merged with the defaults, compiled and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from watchdog.config.loading import shortened
from watchdog.config.reading import shown
from watchdog.config.settings import RuleConfig
from watchdog.contracts import ActionSpec, ProbeSpec
from watchdog.core.model import HoldReason, Mode, Severity, SubjectKind
from watchdog.core.rules import PLACE, SUBJECT, Rule
from watchdog.rules import inhibitions
from watchdog.rules.condition import CelCondition, condition, evidence
from watchdog.rules.defaults import default_rules
from watchdog.rules.errors import RuleError
from watchdog.rules.tokens import ConditionError
from watchdog.rules.vocabulary import Vocabulary, article, meant

_BUILT_IN = "built-in rules"
_HOLDS = (HoldReason.INHIBITED, HoldReason.BLOCKED)
_REQUIRED = ("subject", "when", "summary")
_JUDGED = ("evidence", "reason", "fix")
"""What belongs to a condition: it goes when another one comes."""


def build_rules(
    configured: Sequence[RuleConfig],
    specs: Mapping[str, ProbeSpec],
    actions: Mapping[str, ActionSpec],
    file: str,
    settings: Mapping[str, object] | None = None,
) -> tuple[Rule, ...]:
    """The default rules with the fields that ``configured`` replaces, and then its own.

    ``specs`` and ``actions`` are what is registered, ``settings`` those of the actions by name,
    where they are not the defaults. Raises RuleError with all that is wrong; what the configuration
    says has ``file`` in front.
    """
    return _Builder(specs, actions, file, settings or {}).rules(configured)


class _Builder:
    def __init__(
        self,
        specs: Mapping[str, ProbeSpec],
        actions: Mapping[str, ActionSpec],
        file: str,
        settings: Mapping[str, object],
    ) -> None:
        self._vocabulary = Vocabulary(specs)
        self._actions = actions
        self._choices = {
            name: spec.choices(settings.get(name, spec.settings()))
            for name, spec in actions.items()
            if spec.choices is not None
        }
        self._file = file
        self._lines: list[str] = []
        self._given: dict[str, RuleConfig] = {}

    def rules(self, configured: Sequence[RuleConfig]) -> tuple[Rule, ...]:
        """All of them, or RuleError with all that is wrong."""
        self._given = {rule.name: rule for rule in configured}
        for name, count in Counter(rule.name for rule in configured).items():
            if count > 1:
                self._fail(name, "", f"expected one rule of that name, got {count}")
        defaults = {rule.name: rule for rule in default_rules()}
        merged = [self._overridden(rule) for rule in defaults.values()]
        new = [rule for name, rule in self._given.items() if name not in defaults]
        merged += [rule for rule in new if self._complete(rule, defaults)]
        self._inhibitions([*defaults.values(), *new], merged)
        built = [rule for one in merged if (rule := self._rule(one)) is not None]
        if self._lines:
            raise RuleError(shortened(self._file, self._lines))
        return tuple(built)

    def _fail(self, name: str, key: str, words: str) -> None:
        """Note an error, blamed on the file that said so."""
        given = self._given.get(name)
        field = key.partition("[")[0]
        ours = given is not None and (not key or getattr(given, field) is not None)
        place = f"rule.{name}.{key}" if key else f"rule.{name}"
        self._lines.append(f"{self._file if ours else _BUILT_IN}: {place}: {words}")

    def _overridden(self, default: RuleConfig) -> RuleConfig:
        given = self._given.get(default.name)
        if given is None:
            return default
        if given.subject not in {None, default.subject}:
            kind = default.subject.value if default.subject else ""
            words = f'expected "{kind}" as in the default rule, got "{given.subject}"'
            self._fail(default.name, "subject", words)
        values = {field: getattr(given, field) for field in given.__struct_fields__}
        changed = {field: value for field, value in values.items() if value is not None}
        if given.when is not None:
            changed = {**dict.fromkeys(_JUDGED), **changed}
        return msgspec.structs.replace(default, **{**changed, "subject": default.subject})

    def _complete(self, rule: RuleConfig, defaults: Mapping[str, RuleConfig]) -> bool:
        missing = [field for field in _REQUIRED if getattr(rule, field) is None]
        near = meant(rule.name, defaults) if "when" in missing and "subject" in missing else ""
        if near:
            words = f"no default rule has this name{near} A new one needs subject, when and summary"
            self._fail(rule.name, "", words)
            return False
        for field in missing:
            line = f"rule.{rule.name}.{field}: {self._wanted(field)}"
            self._lines.append(f"{self._file}: {line}")
        return not missing

    def _wanted(self, field: str) -> str:
        kinds = ", ".join(f'"{kind.value}"' for kind in self._vocabulary.kinds())
        words = {"subject": f"one of {kinds}", "when": "a condition", "summary": "a text"}
        return f"expected {words[field]}, as this is no default rule"

    def _inhibitions(self, known: Iterable[RuleConfig], merged: Iterable[RuleConfig]) -> None:
        by_name: dict[str, Sequence[str]] = {rule.name: () for rule in known}
        by_name |= {rule.name: rule.inhibited_by or () for rule in merged}
        for name, words in inhibitions.faults(by_name, self._given):
            self._fail(name, "inhibited_by", words)

    def _rule(self, config: RuleConfig) -> Rule | None:
        """The rule; None when its errors are noted."""
        before = len(self._lines)
        kind = config.subject
        if kind is None or kind not in self._vocabulary.kinds():
            self._fail(config.name, "subject", f'nothing is known of a "{kind}"')
            return None
        for key, words in (*self._ladder(config, kind), *_texts(config), *self._holds(config)):
            self._fail(config.name, key, words)
        when = self._condition(config, kind)
        if when is None:
            return None
        shown_with_it = self._evidence(config, when)
        for name in PLACE.findall(config.fix or ""):
            if name not in {SUBJECT, *shown_with_it}:
                words = f"expected {{{name}}} to stand in the evidence too"
                self._fail(config.name, "fix", words)
        return None if len(self._lines) > before else _built(config, when, shown_with_it)

    def _condition(self, config: RuleConfig, kind: SubjectKind) -> CelCondition | None:
        try:
            return condition(config.when or "", kind, self._vocabulary)
        except ConditionError as error:
            for line in error.lines:
                self._fail(config.name, "when", line)
            return None

    def _evidence(self, config: RuleConfig, when: CelCondition) -> tuple[str, ...]:
        if config.evidence is None:
            return when.evidence
        found = []
        for index, text in enumerate(config.evidence):
            try:
                found.append(evidence(text, when.kind, self._vocabulary, when))
            except ConditionError as error:
                for line in error.lines:
                    self._fail(config.name, f"evidence[{index}]", line)
        return tuple(found)

    def _ladder(self, config: RuleConfig, kind: SubjectKind) -> Iterator[tuple[str, str]]:
        for whole in config.actions or ():
            name, colon, choice = whole.partition(":")
            spec = self._actions.get(name)
            if spec is None or (colon and spec.choices is None):
                known = ", ".join(sorted(self._actions)) or "none"
                yield "actions", f"unknown action {shown(whole)}, expected one of {known}"
                continue
            if kind not in spec.subjects:
                acts = " or ".join(article(one) for one in SubjectKind if one in spec.subjects)
                yield "actions", f"{name} acts on {acts}, this rule is about {article(kind)}"
            if spec.choices is not None and choice not in self._choices[name]:
                known = ", ".join(self._choices[name]) or "none"
                yield "actions", f"expected {name}:NAME, with a name of [actions.{name}]: {known}"

    def _holds(self, config: RuleConfig) -> Iterator[tuple[str, str]]:
        if config.holds is not None and config.holds not in _HOLDS:
            yield "holds", f'expected "inhibited" or "blocked", got "{config.holds.value}"'
        elif config.holds and config.actions and config.subject is SubjectKind.ENGINE:
            given = self._given.get(config.name)
            key = "actions" if given is None or given.holds is None else "holds"
            yield key, "a rule with actions that holds restarts holds itself: expected one of both"


def _texts(config: RuleConfig) -> Iterator[tuple[str, str]]:
    if config.summary is not None and not config.summary.strip():
        yield "summary", "expected a text that is not empty"
    if config.fix is not None and not config.fix.isprintable():
        yield "fix", "expected one line of printable text"


def _built(config: RuleConfig, when: CelCondition, shown_with_it: tuple[str, ...]) -> Rule:
    return Rule(
        name=config.name,
        subject=when.kind,
        when=when,
        severity=config.severity or Severity.WARNING,
        summary=config.summary or "",
        hold_for=config.for_ or 0.0,
        clear_for=config.clear_for or 0.0,
        cooldown=config.cooldown or 0.0,
        actions=config.actions or (),
        inhibited_by=config.inhibited_by or (),
        mode=config.mode or Mode.ACT,
        runbook=config.runbook or "",
        evidence=shown_with_it,
        holds=config.holds,
        fault=bool(config.fault),
        reason=config.reason or "",
        fix=config.fix or "",
    )
