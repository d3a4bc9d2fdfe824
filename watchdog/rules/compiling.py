"""The door to CEL: the only module that imports it. From the text of a condition to a program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache, partial

from cel_expr_python import cel

from watchdog.core.conditions import Figure
from watchdog.rules.drafts import (
    NONZERO,
    UNKNOWN,
    Draft,
    Labelled,
    Macro,
    MacroName,
    Place,
    Sample,
    slot_names,
)
from watchdog.rules.program import Ask, Data, Known, Program
from watchdog.rules.tokens import ConditionError
from watchdog.rules.wording import Said, said, type_words, worded

_TYPES = {"b": cel.Type.BOOL, "d": cel.Type.DOUBLE, "s": cel.Type.STRING}
_NOTHING = (cel.Type.ERROR, cel.Type.UNKNOWN)
_FAILURES = (RuntimeError, ValueError, TypeError, OverflowError)
"""What the binding raises; a text that is no UTF-8 is a ValueError."""
_NAMES = (*Figure, *MacroName, "unknown", "size", "startsWith", "endsWith", "contains", "matches")
_MOST_ERRORS = 5
_MOST_NUMBERS = 24


def compiled(draft: Draft, names: Iterable[str] = ()) -> Program:
    """The program of a condition; ``names`` can be meant by a wrong one. Raises ConditionError."""
    return _Compilation((*_NAMES, *names)).condition(draft)


class _Compilation:
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def condition(self, draft: Draft) -> Program:
        """The program of what must be true or false."""
        if draft.start == draft.end:
            raise draft.source.error(0, "expected a condition")
        expression, program = self._program(draft)
        kind = expression.return_type()
        if kind != cel.Type.BOOL:
            words = f"expected a condition (true or false), got {type_words(kind.name())}"
            raise draft.source.error(draft.source.tokens[draft.start].at, words)
        return program

    def _program(self, draft: Draft) -> tuple[cel.Expression, Program]:
        macros = tuple(
            (slot, self._ask(filling))
            for slot, filling in draft.slots.items()
            if isinstance(filling, Macro)
        )
        expression = self._expression(draft)
        slots = draft.slots.items()
        return expression, Program(
            run=partial(_run, expression),
            samples=tuple((slot, one) for slot, one in slots if isinstance(one, Sample)),
            labelled=tuple((slot, one) for slot, one in slots if isinstance(one, Labelled)),
            windows=tuple((slot, one) for slot, one in slots if isinstance(one, Place)),
            macros=macros,
        )

    def _ask(self, macro: Macro) -> Ask:
        if macro.name is MacroName.KNOWN:
            return Ask(macro.name, (self._program(macro.parts[0])[1],))
        return Ask(macro.name, tuple(self.condition(part) for part in macro.parts))

    def _expression(self, draft: Draft) -> cel.Expression:
        try:
            return _environment().compile(draft.text())
        except _FAILURES as error:
            errors = said(str(error))
        return _with_whole_numbers(draft, errors) or self._fail(draft, errors)

    def _fail(self, draft: Draft, errors: list[Said]) -> cel.Expression:
        lines = []
        for error in errors[:_MOST_ERRORS]:
            words = worded(error.message, self._names, draft.written)
            at = draft.character(error.line, error.column) if error.line > 0 else None
            lines.append(words if at is None else f"{draft.source.place(at)}: {words}")
        raise ConditionError(tuple(dict.fromkeys(lines)))


def _with_whole_numbers(draft: Draft, errors: list[Said]) -> cel.Expression | None:
    """``size(x) > 3`` needs a whole 3: leave as written what makes the errors no more."""
    if len(draft.numbers) > _MOST_NUMBERS:
        return None
    whole: list[int] = []
    fewest = len(errors)
    for index in draft.numbers:
        try:
            return _environment().compile(draft.text([*whole, index]))
        except _FAILURES as error:
            count = len(said(str(error)))
        if count <= fewest:
            whole.append(index)
            fewest = count
    return None


def _run(expression: cel.Expression, data: Data) -> Known:
    """The value; None for every error: something missing, no such label, not a number."""
    try:
        value = expression.eval(data=data)
        if value.type() in _NOTHING:
            return None
        plain = value.plain_value()
    except _FAILURES:
        return None
    return None if isinstance(plain, float) and math.isnan(plain) else plain


def _nonzero(divisor: float) -> float:
    if divisor == 0:
        raise ZeroDivisionError("division by zero")
    return divisor


@cache
def _environment() -> cel.Env:
    """One for all conditions: each costs memory, and their variables are anonymous slots."""
    overloads = [
        cel.Overload(f"{NONZERO}_{kind.name()}", kind, [kind], impl=_nonzero)
        for kind in (cel.Type.DOUBLE, cel.Type.INT)
    ]
    return cel.NewEnv(
        variables=dict(_variables()), functions=[cel.FunctionDecl(NONZERO, overloads)]
    )


def _variables() -> Iterator[tuple[str, cel.Type]]:
    yield UNKNOWN, cel.Type.BOOL
    for letter, kind in _TYPES.items():
        yield from ((name, kind) for name in slot_names(f"__{letter}"))
        table = cel.Type.Map(cel.Type.STRING, kind)
        yield from ((name, table) for name in slot_names(f"__m{letter}"))
