"""Compiled rules for tests: the defaults, and conditions over samples made up on the spot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from watchdog import registry
from watchdog.contracts import Probe, ProbeSpec, SampleSpec
from watchdog.core.model import SubjectKind, Value
from watchdog.core.rules import Rule
from watchdog.rules import build_rules
from watchdog.rules.condition import CelCondition, condition
from watchdog.rules.vocabulary import Vocabulary

DEFAULT_RULES: tuple[Rule, ...] = build_rules((), registry.probes(), registry.actions(), "no file")
"""The default rules, as they are shipped."""

RULES: Mapping[str, Rule] = {rule.name: rule for rule in DEFAULT_RULES}
"""The same by name."""

Declaration = type[bool | int | float | str] | SampleSpec


class NoSettings(msgspec.Struct, frozen=True):
    """Of a probe that is never built."""


@dataclass(frozen=True, slots=True)
class FakeView:
    """A view with these values by name, and by label those of whole samples."""

    values: Mapping[str, Value] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    def get(self, name: str, /) -> Value | None:
        """See ``core.conditions.View``."""
        return self.values.get(name)

    def labelled(self, name: str, /) -> Mapping[str, Value]:
        """See ``core.conditions.View``."""
        return self.tables.get(name, {})


def probe(name: str, kind: SubjectKind, *samples: SampleSpec) -> ProbeSpec:
    """A probe that only declares."""
    return ProbeSpec(name, kind, NoSettings, samples, _never)


def vocabulary(kind: SubjectKind = SubjectKind.ENGINE, **samples: Declaration) -> Vocabulary:
    """The samples ``it.NAME`` of ``kind``, and the core's own."""
    specs = [
        one if isinstance(one, SampleSpec) else SampleSpec(name, one, "", "")
        for name, one in samples.items()
    ]
    return Vocabulary({"it": probe("it", kind, *specs)})


def when(text: str, kind: SubjectKind = SubjectKind.ENGINE, **samples: Declaration) -> CelCondition:
    """A condition over the samples ``it.NAME``: ``when("it.x > 5", x=float)``."""
    return condition(text, kind, vocabulary(kind, **samples))


def _never(_settings: object, _target: object) -> Probe:
    raise AssertionError("a probe that only declares was built")
