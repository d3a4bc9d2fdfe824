"""A compiled expression and its three-valued answer.

What is missing is an error to CEL, which its ``&&`` and ``||`` absorb as three-valued logic wants.
A window that was not covered yet is known from one side only: ``increase`` is at least what was
seen. The answer is known when it is the same wherever the true figure may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from watchdog.core.conditions import Figure
from watchdog.core.model import Value
from watchdog.rules.drafts import Labelled, MacroName, Place, Sample, SampleType

_MOST_OPEN = 4
"""Windows of one expression that may be uncovered; further ones are not known at all."""
_INFINITY = math.inf
_BOUNDS: Mapping[Figure, float] = {
    Figure.INCREASE: _INFINITY,
    Figure.MAX_OVER: _INFINITY,
    Figure.CHANGES: _INFINITY,
    Figure.MIN_OVER: -_INFINITY,
}
"""How far the figure of the whole window may be from what was seen of it."""

Data = dict[str, object]
Known = object
"""What an expression gives: a value of any type; None when it is not known."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look gives to a condition: values by name, and by label those of a whole sample."""

    values: Mapping[str, Value | None]
    labelled: Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class Ask:
    """A compiled macro."""

    name: MacroName
    parts: tuple[Program, ...]

    def answer(self, seen: Seen) -> bool | None:
        """What is asked; ``known`` and ``sure`` always have an answer."""
        answers = [part.answer(seen) for part in self.parts]
        match self.name:
            case MacroName.KNOWN:
                return answers[0] is not None
            case MacroName.SURE:
                return answers[0] is True
            case MacroName.ANY_KNOWN:
                return True if True in answers else False if False in answers else None


@dataclass(frozen=True, slots=True)
class Program:
    """``run`` evaluates with what the slots hold: one left out is not known."""

    run: Callable[[Data], Known]
    samples: tuple[tuple[str, Sample], ...] = ()
    labelled: tuple[tuple[str, Labelled], ...] = ()
    windows: tuple[tuple[str, Place], ...] = ()
    macros: tuple[tuple[str, Ask], ...] = ()

    def answer(self, seen: Seen) -> Known:
        """The value of the expression, None when it is not known."""
        data = self._data(seen)
        uncovered: list[tuple[str, float, float]] = []
        for slot, place in self.windows:
            window = place.window
            figure = typed(seen.values.get(window.name), float)
            if figure is None:
                continue
            if seen.values.get(window.covered):
                data[slot] = figure
            elif place.compared and window.figure in _BOUNDS:
                uncovered.append((slot, float(figure), _BOUNDS[window.figure]))
        return self._everywhere(data, uncovered[:_MOST_OPEN]) if uncovered else self.run(data)

    def _data(self, seen: Seen) -> Data:
        data: Data = {}
        for slot, sample in self.samples:
            data[slot] = typed(seen.values.get(sample.name), sample.type)
        for slot, whole in self.labelled:
            known = seen.labelled.get(whole.name, {}).items()
            values = {label: typed(value, whole.type) for label, value in known}
            data[slot] = {k: v for k, v in values.items() if v is not None} or None
        for slot, macro in self.macros:
            data[slot] = macro.answer(seen)
        return {slot: value for slot, value in data.items() if value is not None}

    def _everywhere(self, data: Data, uncovered: list[tuple[str, float, float]]) -> Known:
        """Beside a comparison the ends of a bound decide about all that is between them."""
        slots = [slot for slot, _, _ in uncovered]
        ends = product(*((figure, bound) for _, figure, bound in uncovered))
        answers = (self.run({**data, **dict(zip(slots, end, strict=True))}) for end in ends)
        first = next(answers)
        alike = first is not None and all(answer == first for answer in answers)
        return first if alike else None


def typed(value: Value | None, kind: SampleType) -> Value | None:
    """``value`` as the declared type; None when it is not of that kind, or no number at all."""
    if value is None or isinstance(value, str) or kind is str:
        return value if isinstance(value, str) and kind is str else None
    try:
        number = float(value) + 0.0  # no minus zero: it is equal to zero, and divides otherwise
    except OverflowError:
        return None
    if kind is bool:
        return bool(number) if number in {0.0, 1.0} else None
    return None if math.isnan(number) else number


def has_nan(values: Iterator[object]) -> bool:
    """Whether one is NaN, which is not even equal to itself."""
    return any(isinstance(value, float) and math.isnan(value) for value in values)
