"""From the tokens of a condition to drafts: names are resolved, macros and windows taken out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from watchdog.config.durations import parse_duration
from watchdog.core.conditions import Figure, Window
from watchdog.core.model import SubjectKind
from watchdog.rules.comparing import is_compared
from watchdog.rules.drafts import (
    NONZERO,
    UNKNOWN,
    Draft,
    Filling,
    Labelled,
    Macro,
    MacroName,
    Place,
    Sample,
    SlotsError,
)
from watchdog.rules.own import CORE_PARTS
from watchdog.rules.tokens import ConditionError, Kind, Source, number, plain_text
from watchdog.rules.vocabulary import Declared, Vocabulary, VocabularyError

_LOOPS = frozenset({"all", "exists", "exists_one", "filter", "map"})
_DEEPEST_LOOP = 2
_MOST_LOOPS = 16
_LONGEST_NUMBER = 40
_FIGURES = frozenset(figure.value for figure in Figure)
_MACROS = frozenset(macro.value for macro in MacroName)
_EXAMPLE = 'like (gpu.pcie_replays, "5m")'


@dataclass(frozen=True, slots=True)
class _Reference:
    """A sample that was named, and the index of the token behind it."""

    filling: Sample | Labelled
    declared: Declared
    behind: int


class Rewriter:
    """Rewrites one condition. ``errors`` has what is wrong with its names, each with its place."""

    def __init__(self, source: Source, vocabulary: Vocabulary, kind: SubjectKind) -> None:
        self.errors: list[tuple[int, str]] = []
        self._source = source
        self._vocabulary = vocabulary
        self._kind = kind

    def condition(self) -> Draft:
        """The whole text as one draft. Raises ConditionError with all that is wrong with names."""
        self.errors.extend(_loop_errors(self._source))
        draft = self._draft(0, len(self._source.tokens))
        self._raise()
        return draft

    def evidence(self) -> Sample | Place:
        """The text as the name of one sample or one window. Raises ConditionError."""
        tokens = self._source.tokens
        if not tokens or tokens[0].kind is not Kind.NAME:
            raise ConditionError(("expected a sample or a window",))
        draft = Draft(self._source, 0, len(tokens))
        behind = self._name(draft, 0)
        self._raise()
        filling = next(iter(draft.slots.values()), None)
        if behind != len(tokens) or not isinstance(filling, Sample | Place):
            raise ConditionError(("expected the name of one sample, or one window",))
        return filling

    def _raise(self) -> None:
        if self.errors:
            lines = (f"{self._source.place(at)}: {words}" for at, words in sorted(self.errors))
            raise ConditionError(tuple(dict.fromkeys(lines)))

    def _draft(self, start: int, end: int) -> Draft:
        draft = Draft(self._source, start, end)
        self._take(draft, start, end)
        return draft

    def _take(self, draft: Draft, index: int, end: int) -> None:
        while index < end:
            index = self._next(draft, index)

    def _next(self, draft: Draft, index: int) -> int:
        """Rewrite what begins at a token; the index of the token behind it."""
        token = self._source.tokens[index]
        member = self._source.sign(index - 1, ".")
        if token.kind is Kind.NAME and not member:
            return self._name(draft, index)
        if token.kind is Kind.NUMBER:
            self._number(draft, index)
        else:
            draft.add(token.text, token.at)
        if self._source.sign(index, "/"):
            return self._divisor(draft, index + 1)
        return index + 1

    def _number(self, draft: Draft, index: int) -> None:
        token = self._source.tokens[index]
        if len(token.text) > _LONGEST_NUMBER or not math.isfinite(number(token.text)):
            self.errors.append((token.at, "expected a smaller number"))
        else:
            draft.number(token.text, token.at)

    def _divisor(self, draft: Draft, start: int) -> int:
        """Nothing is divided by zero: CEL's doubles would make infinity of it."""
        end = self._operand_end(start)
        if end > start:
            at = self._source.tokens[start].at
            draft.add(NONZERO, at)
            draft.add("(", at)
            self._take(draft, start, end)
            draft.add(")", at)
        return end

    def _operand_end(self, index: int) -> int:
        source = self._source
        while source.sign(index, "-", "!"):
            index += 1
        if index >= len(source.tokens) or source.sign(index, ")", "]", "}", ","):
            return index
        index = source.closing.get(index, index) + 1
        while source.sign(index, ".", "(", "["):
            index = index + 2 if source.sign(index, ".") else source.closing[index] + 1
        return min(index, len(source.tokens))

    def _name(self, draft: Draft, index: int) -> int:
        token = self._source.tokens[index]
        called = self._source.sign(index + 1, "(")
        if called and token.text in _FIGURES:
            return self._window(draft, index)
        if called and token.text in _MACROS:
            return self._macro(draft, index)
        if token.text in self._vocabulary.roots and not called:
            return self._sample(draft, index)
        if token.text.startswith("__"):
            self.errors.append((token.at, f"{token.text} begins with __, which is not allowed"))
        elif called and token.text == "has":
            self.errors.append((token.at, "has() is not for samples, use known(...)"))
        draft.add(UNKNOWN if token.text == "unknown" and not called else token.text, token.at)
        return index + 1

    def _sample(self, draft: Draft, index: int) -> int:
        at = self._source.tokens[index].at
        try:
            found = self._reference(index)
        except VocabularyError as error:
            self.errors.append((at, str(error)))
            return index + 3 if self._source.sign(index + 1, ".") else index + 1
        self._fill(draft, found.filling, at)
        return found.behind

    def _fill(self, draft: Draft, filling: Filling, at: int) -> None:
        try:
            draft.fill(filling, at)
        except SlotsError as error:
            self.errors.append((at, str(error)))

    def _reference(self, index: int) -> _Reference:
        tokens, root = self._source.tokens, self._source.tokens[index].text
        if not (self._source.sign(index + 1, ".") and self._source.name(index + 2)):
            raise VocabularyError(f"{root} alone is no sample, expected {root}.NAME")
        declared = self._vocabulary.find(f"{root}.{tokens[index + 2].text}", self._kind)
        label, behind = self._label(index + 3)
        if self._source.sign(behind, "("):
            raise VocabularyError(f"{declared.name} is a sample, not a function")
        if len(declared.labels) > 1:
            labels = ", ".join(declared.labels)
            raise VocabularyError(f"{declared.name} has several labels ({labels}): not for rules")
        if not declared.labels and label is not None:
            raise VocabularyError(f"{declared.name} has no label, got {label}")
        if declared.labels and label is None:
            return _Reference(Labelled(declared.name, declared.type), declared, behind)
        name = declared.name if label is None else declared.labelled(label)
        return _Reference(Sample(name, declared.type), declared, behind)

    def _label(self, index: int) -> tuple[str | None, int]:
        """The label value that begins at a token, if one does, and the token behind it."""
        source, tokens = self._source, self._source.tokens
        if source.sign(index, ".") and source.name(index + 1) and not source.sign(index + 2, "("):
            return tokens[index + 1].text, index + 2
        if source.sign(index, "[") and source.closing[index] == index + 2:
            text = plain_text(tokens[index + 1])
            return text, index if text is None else index + 3
        return None, index

    def _window(self, draft: Draft, index: int) -> int:
        opening = index + 1
        closing, commas = self._source.closing[opening], self._source.commas(opening)
        name, at = self._source.tokens[index].text, self._source.tokens[index].at
        if len(commas) != 1 or commas[0] == opening + 1:
            self.errors.append((at, f"expected {name} of a sample and a time, {_EXAMPLE}"))
            return closing + 1
        seconds = self._seconds(commas[0] + 1, closing)
        sample = self._windowed(Figure(name), opening + 1, commas[0])
        if seconds is not None and sample is not None:
            window = Window(Figure(name), sample.name, seconds)
            self._fill(draft, Place(window, is_compared(self._source, index, closing)), at)
        return closing + 1

    def _windowed(self, figure: Figure, start: int, end: int) -> Sample | None:
        token = self._source.tokens[start]
        words = f"expected a sample in {figure.value}, {_EXAMPLE}"
        if token.kind is not Kind.NAME or token.text not in self._vocabulary.roots:
            self.errors.append((token.at, words))
            return None
        try:
            found = self._reference(start)
        except VocabularyError as error:
            self.errors.append((token.at, str(error)))
            return None
        if found.behind != end:
            self.errors.append((token.at, words))
        elif isinstance(found.filling, Labelled):
            self.errors.append((token.at, _choose(found.declared)))
        elif token.text in CORE_PARTS:
            words = f'nothing is kept of {found.filling.name}, use the rule\'s "for" instead'
            self.errors.append((token.at, words))
        elif figure is not Figure.CHANGES and found.filling.type is not float:
            kind = "a text" if found.filling.type is str else "true or false"
            words = f"{figure.value} needs a number, {found.filling.name} is {kind}"
            self.errors.append((token.at, words))
        else:
            return found.filling
        return None

    def _seconds(self, start: int, end: int) -> float | None:
        at = self._source.tokens[start].at
        text = plain_text(self._source.tokens[start]) if end == start + 1 else None
        if text is None:
            self.errors.append((at, 'expected a duration like "5m"'))
            return None
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            self.errors.append((at, str(error)))
            return None
        if seconds <= 0:
            self.errors.append((at, "expected a duration above zero"))
            return None
        return seconds

    def _macro(self, draft: Draft, index: int) -> int:
        opening = index + 1
        closing, commas = self._source.closing[opening], self._source.commas(opening)
        name, at = MacroName(self._source.tokens[index].text), self._source.tokens[index].at
        bounds = list(_between(opening, commas, closing))
        if any(start == end for start, end in bounds):
            self.errors.append((at, f"expected an expression in {name.value}(...)"))
        elif len(bounds) > 1 and name is not MacroName.ANY_KNOWN:
            self.errors.append((at, f"{name.value} takes one expression, got {len(bounds)}"))
        else:
            parts = tuple(self._draft(start, end) for start, end in bounds)
            self._fill(draft, Macro(name, parts), at)
        return closing + 1


def _between(opening: int, commas: Sequence[int], closing: int) -> Iterator[tuple[int, int]]:
    edges = [opening, *commas, closing]
    if commas and commas[-1] + 1 == closing:
        edges.pop()  # a comma behind the last one, as CEL's lists may have
    return ((before + 1, after) for before, after in pairwise(edges))


def _choose(declared: Declared) -> str:
    values = declared.spec.label_values
    like = f"{declared.name}.{values[0]}" if values else f'{declared.name}["..."]'
    return f"expected one {declared.labels[0]} of {declared.name}, like {like}"


def _loop_errors(source: Source) -> Iterator[tuple[int, str]]:
    """What could run for long or grow without bounds: loops are few, and not in each other."""
    open_until: list[int] = []
    loops = maps = 0
    for index, token in enumerate(source.tokens):
        open_until = [end for end in open_until if end > index]
        member = source.sign(index - 1, ".") and source.sign(index + 1, "(")
        if not member or token.text not in _LOOPS:
            continue
        loops, maps = loops + 1, maps + (token.text == "map")
        open_until.append(source.closing[index + 1])
        if len(open_until) > _DEEPEST_LOOP:
            yield token.at, f"expected at most {_DEEPEST_LOOP} loops within each other"
        elif token.text == "map" and maps > 1:
            yield token.at, "expected at most one map(...)"
        elif loops > _MOST_LOOPS:
            yield token.at, f"expected at most {_MOST_LOOPS} loops"
