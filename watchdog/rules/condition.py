"""The condition of a rule, compiled: what the core asks for and calls at every look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from watchdog.core.conditions import View, Window
from watchdog.core.model import SubjectKind, Value
from watchdog.rules.compiling import compiled
from watchdog.rules.drafts import Draft, Filling, Labelled, Macro, Place, Sample
from watchdog.rules.program import Program, Seen, has_nan
from watchdog.rules.rewriting import Rewriter
from watchdog.rules.tokens import ConditionError, Source
from watchdog.rules.vocabulary import Vocabulary

_MOST_KEPT = 256
"""Answers that are remembered; a rule sees the same values again and again."""

_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CelCondition:
    """A condition about subjects of one kind, as ``core.conditions.Condition`` wants it.

    ``evidence`` are the names of its samples and windows, in the order in which they are written.
    """

    kind: SubjectKind
    text: str
    samples: frozenset[str] = field(compare=False)
    windows: tuple[Window, ...] = field(compare=False)
    evidence: tuple[str, ...] = field(compare=False)
    _names: tuple[str, ...] = field(compare=False, repr=False)
    _labelled: tuple[str, ...] = field(compare=False, repr=False)
    _program: Program = field(compare=False, repr=False)
    _memo: dict[_Key, bool | None] = field(compare=False, repr=False, default_factory=dict)

    def __call__(self, view: View) -> bool | None:
        """True, False, or None when a value that it needs is not known. Never raises."""
        key: _Key = tuple(map(view.get, self._names))
        if self._labelled:
            tables = (view.labelled(name) for name in self._labelled)
            key += tuple(frozenset(table.items()) for table in tables)
        try:
            return self._memo[key]
        except KeyError:
            return self._looked(key)

    def _looked(self, key: _Key) -> bool | None:
        count = len(self._names)
        tables: list[Mapping[str, Value]] = [dict(table) for table in key[count:]]  # type: ignore[call-overload]
        values: Mapping[str, Value | None] = dict(zip(self._names, key[:count], strict=True))  # type: ignore[arg-type]
        seen = Seen(values, dict(zip(self._labelled, tables, strict=True)))
        answer = self._program.answer(seen)
        answer = answer if isinstance(answer, bool) else None
        if has_nan(chain(key[:count], *(table.values() for table in tables))):
            return answer
        if len(self._memo) >= _MOST_KEPT:
            self._memo.clear()
        self._memo[key] = answer
        return answer


def condition(text: str, kind: SubjectKind, vocabulary: Vocabulary) -> CelCondition:
    """The condition ``text`` about subjects of ``kind``. Raises ConditionError."""
    draft = Rewriter(Source(text), vocabulary, kind).condition()
    program = compiled(draft, (*vocabulary.roots, *vocabulary.names(kind)))
    fillings = list(dict.fromkeys(_fillings(draft)))
    windows = tuple(one.window for one in fillings if isinstance(one, Place))
    samples = tuple(one.name for one in fillings if isinstance(one, Sample))
    labelled = tuple(one.name for one in fillings if isinstance(one, Labelled))
    figures = (name for window in windows for name in (window.name, window.covered))
    return CelCondition(
        kind=kind,
        text=text,
        samples=frozenset((*samples, *labelled, *(window.sample for window in windows))),
        windows=windows,
        evidence=tuple(_evidence(fillings)),
        _names=(*samples, *figures),
        _labelled=labelled,
        _program=program,
    )


def evidence(text: str, kind: SubjectKind, vocabulary: Vocabulary, when: CelCondition) -> str:
    """The name in a view of a sample or a window of ``when``. Raises ConditionError."""
    filling = Rewriter(Source(text), vocabulary, kind).evidence()
    if isinstance(filling, Sample):
        return filling.name
    if filling.window not in when.windows:
        raise ConditionError(("expected a window of the condition",))
    return filling.window.name


def _fillings(draft: Draft) -> Iterator[Filling]:
    """All that a draft and its macros ask for, in the order of the text."""
    for filling in draft.slots.values():
        if isinstance(filling, Macro):
            for part in filling.parts:
                yield from _fillings(part)
        else:
            yield filling


def _evidence(fillings: list[Filling]) -> Iterator[str]:
    for filling in fillings:
        if isinstance(filling, Sample):
            yield filling.name
        elif isinstance(filling, Place):
            yield filling.window.name
