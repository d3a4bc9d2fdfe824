"""What CEL gets to see of a condition, and how to find back from there to what the author wrote.

Samples, windows and macros become slots: variables such as ``__d0`` that one shared environment
declares. A draft is one CEL expression; the arguments of macros are drafts of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from watchdog.core.conditions import Window
from watchdog.rules.tokens import HEXADECIMAL, Source

SLOTS = 32
"""Variables of one type that an expression may have; maps a quarter of it."""
UNKNOWN = "__u"
"""A bool that never has a value."""
NONZERO = "__nz"
"""A function that gives its number back, or an error for zero."""
_LETTERS: dict[type, str] = {bool: "b", float: "d", str: "s"}

SampleType = type[bool | float | str]


class MacroName(StrEnum):
    """What is asked about an expression as a whole."""

    KNOWN = "known"
    SURE = "sure"
    ANY_KNOWN = "any_known"


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a sample, by its name in a view."""

    name: str
    type: SampleType


@dataclass(frozen=True, slots=True)
class Labelled:
    """All values of a sample, by its own label: a map."""

    name: str
    type: SampleType


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro and its arguments."""

    name: MacroName
    parts: tuple[Draft, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """One occurrence of a window: each is a number of its own until the window was covered.

    ``compared`` says that it is one side of a comparison.
    """

    window: Window
    compared: bool = False


Filling = Sample | Labelled | Macro | Place


class SlotsError(Exception):
    """Too many variables. The message is one line."""


@dataclass(slots=True, eq=False)
class Draft:
    """The tokens ``start`` to ``end`` of the source, rewritten piece by piece."""

    source: Source
    start: int
    end: int
    slots: dict[str, Filling] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    _pieces: list[tuple[str, int]] = field(default_factory=list)
    _whole: dict[int, str] = field(default_factory=dict)
    _names: dict[Filling, str] = field(default_factory=dict)

    def add(self, text: str, at: int) -> None:
        """Take over ``text`` for what is at the character ``at``."""
        self._pieces.append((text, at))

    def number(self, text: str, at: int) -> None:
        """A number, as a double if it can be: samples are doubles, and CEL does not convert."""
        if text[-1] not in "uU" and (text.isdigit() or text[:2] in HEXADECIMAL):
            self._whole[len(self._pieces)] = text
            self.numbers.append(len(self._pieces))
            text = f"{int(text, 16 if text[:2] in HEXADECIMAL else 10)}.0"
        self.add(text, at)

    def fill(self, filling: Filling, at: int) -> None:
        """A slot; the same sample always gets the same. Raises SlotsError."""
        kept = isinstance(filling, Sample | Labelled)
        slot = self._names.get(filling) if kept else None
        if slot is None:
            slot = self._names[filling] = self._free(filling)
            self.slots[slot] = filling
        self.add(slot, at)

    def _free(self, filling: Filling) -> str:
        names = slot_names(_prefix(filling))
        slot = next((name for name in names if name not in self.slots), None)
        if slot is None:
            raise SlotsError(f"expected at most {len(names)} such names in one expression")
        return slot

    def text(self, whole: Iterable[int] = ()) -> str:
        """The expression for CEL; the numbers ``whole`` are left as they were written."""
        pieces = [text for text, _ in self._pieces]
        for index in whole:
            pieces[index] = self._whole[index]
        return " ".join(pieces)

    def character(self, line: int, column: int) -> int:
        """Where in the source is what CEL calls ``line`` and ``column`` of ``text()``."""
        text = self.text()
        offset = sum(len(one) + 1 for one in text.split("\n")[: line - 1]) + column - 1
        if offset >= len(text):
            return self._behind()
        index = bisect_right(self._cut(), offset) - 1
        if self._pieces[index][0] == "(" and self._named(index - 1):
            index -= 1  # CEL blames the bracket for the function
        while self._pieces[index][0] == "." and self._named(index - 1):
            index -= 2 if index > 1 and self._pieces[index - 2][0] == "." else 1
        return self._pieces[index][1]

    def _named(self, index: int) -> bool:
        return index >= 0 and self._pieces[index][0].isidentifier()

    def written(self, slot: str) -> str:
        """What the author wrote where ``slot`` stands, for messages."""
        filling = self.slots.get(slot)
        match filling:
            case Sample() | Labelled():
                return filling.name
            case Place():
                return filling.window.name
            case Macro():
                return f"{filling.name.value}(...)"
            case None:
                return "unknown" if slot == UNKNOWN else slot

    def _behind(self) -> int:
        tokens = self.source.tokens
        if self.end < len(tokens):
            return tokens[self.end].at
        return len(self.source.text.rstrip())

    def _cut(self) -> Sequence[int]:
        lengths = (len(text) + 1 for text, _ in self._pieces)
        return [0, *accumulate(lengths)][:-1]


def _prefix(filling: Filling) -> str:
    match filling:
        case Sample():
            return f"__{_LETTERS[filling.type]}"
        case Labelled():
            return f"__m{_LETTERS[filling.type]}"
        case Place():
            return f"__{_LETTERS[float]}"
        case Macro():
            return f"__{_LETTERS[bool]}"


def slot_names(prefix: str) -> tuple[str, ...]:
    """All variables that begin with ``prefix``: ``__d`` doubles, ``__md`` maps of them."""
    count = SLOTS // 4 if prefix.startswith("__m") else SLOTS
    return tuple(f"{prefix}{index}" for index in range(count))
