"""CEL's messages in the words of somebody who writes rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from watchdog.config.reading import one_line
from watchdog.rules.drafts import NONZERO
from watchdog.rules.vocabulary import meant

_ERROR = re.compile(r"^(?:[A-Z_]+: )?ERROR: <input>:(-?\d+):(-?\d+): (.*)$", re.MULTILINE)
_OVERLOAD = re.compile(r"found no matching overload for '([^']*)' applied to '\((.*)\)'")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_SELECT = re.compile(r"expression of type '(.*)' cannot be the operand of a select operation")
_SYNTAX = re.compile(
    r"Syntax error: (?:mismatched|extraneous|no viable alternative at) input '(.*?)'"
)
_MISSING = re.compile(r"Syntax error: missing '(.*?)' at '(.*?)'")
_SLOT = re.compile(r"__[a-z]+\d*")
_TYPES = {
    "bool": "true or false",
    "double": "a number",
    "int": "a whole number",
    "uint": "an unsigned number",
    "string": "a text",
    "bytes": "bytes",
    "null_type": "null",
    "null": "null",
    "dyn": "anything",
    "timestamp": "a time",
    "google.protobuf.Timestamp": "a time",
    "duration": "a duration",
    "google.protobuf.Duration": "a duration",
}
_OPERATORS = re.compile(r"_(==|!=|<|<=|>|>=|\+|-|\*|/|%|&&|\|\|)_")
_WRONG = {
    "!_": "! needs true or false, got {0}",
    "-_": "cannot negate {0}",
    "_?_:_": "expected a condition before ?, got {0}",
    NONZERO: "cannot divide by {0}",
    "@in": "cannot look for {0} in {1}",
    "_[_]": "cannot look into {0} by {1}",
}
_COMPARED = frozenset({"==", "!=", "<", "<=", ">", ">="})
_LONG = 60
_ECHOES = ("<<nil>>", "'*error*'")
"""What CEL says once more of what it could not read, or has said to be wrong."""


class Said(NamedTuple):
    """One error of CEL's: its place, in lines and columns from 1 (or below), and its message."""

    line: int
    column: int
    message: str


def said(message: str) -> list[Said]:
    """All errors in the message of a compilation that failed."""
    found = [Said(int(m[1]), int(m[2]), m[3]) for m in _ERROR.finditer(message)]
    found = [one for one in found if not any(echo in one.message for echo in _ECHOES)]
    return found or [Said(-1, -1, message)]


def worded(message: str, names: Iterable[str], written: Callable[[str], str]) -> str:
    """A message in plain words.

    ``names`` are those that can be meant, ``written`` knows what a slot stands for.
    """
    message = _SLOT.sub(lambda slot: written(slot.group()), one_line(message))
    if match := _OVERLOAD.search(message):
        return _overload(match[1], [type_words(kind) for kind in _split(match[2])])
    if match := _UNDECLARED.search(message):
        return f"unknown name {match[1]}{meant(match[1], names)}"
    if match := _SELECT.search(message):
        return f"{type_words(match[1])} has no fields"
    if match := _MISSING.search(message):
        return f"expected {match[1]} before {_token(match[2])}"
    if match := _SYNTAX.search(message):
        return f"unexpected {_token(match[1])}"
    return _other(message)


def type_words(name: str) -> str:
    """A type of CEL's, as a rule's author knows it."""
    low = name.lower()
    if low.startswith("list"):
        return "a list"
    if low.startswith("map"):
        return "a table by label"
    return _TYPES.get(low, _TYPES.get(name, "another kind of value"))


def _overload(function: str, kinds: list[str]) -> str:
    if operator := _OPERATORS.fullmatch(function):
        return _operator(operator[1], kinds)
    if function == "_?_:_" and kinds[0] == _TYPES["bool"]:
        return f"expected the same kind on both sides of :, got {kinds[1]} and {kinds[2]}"
    words = _WRONG.get(function)
    if words is not None:
        return words.format(*kinds)
    return f"{function} does not take {', '.join(kinds) or 'nothing'}"


def _operator(sign: str, kinds: list[str]) -> str:
    left, right = kinds
    if sign in _COMPARED and left == right:
        return f"{sign} does not work on {left}"
    if sign in _COMPARED:
        return f"cannot compare {left} with {right}"
    if sign in {"&&", "||"}:
        wrong = left if left != _TYPES["bool"] else right
        return f"{sign} needs true or false on both sides, got {wrong}"
    return f"cannot compute {left} {sign} {right}"


def _split(kinds: str) -> list[str]:
    """The types in ``string, map(string, double)``."""
    found, depth = [""], 0
    for character in kinds:
        depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [kind.strip() for kind in found]


def _token(text: str) -> str:
    return "end" if text == "<EOF>" else text[-_LONG:]


def _other(message: str) -> str:
    if "recursion" in message:
        return "expected fewer parts within parts"
    words = message.removeprefix("Syntax error: ").partition(" [")[0]
    return f"{words[:1].lower()}{words[1:]}"[:200]
