"""Cuts the text of a condition into tokens, each with its place in what the author wrote."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

LONGEST = 4096
"""Characters of a condition. The longest default one has a tenth of it."""
DEEPEST = 16
"""Brackets within brackets. CEL's own limit counts several levels for one of ours."""


class ConditionError(Exception):
    """A condition that cannot be used. ``lines`` are ``column 8: what was expected``."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Kind(Enum):
    """What a token is."""

    TEXT = auto()
    NUMBER = auto()
    NAME = auto()
    SIGN = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text; ``at`` is its first character's index."""

    kind: Kind
    text: str
    at: int


_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*)*")
_TOKENS = (
    (
        Kind.TEXT,
        re.compile(
            r"""[bB]?[rR](?:'{3}.*?'{3}|"{3}.*?"{3}|'[^'\n]*'|"[^"\n]*")"""
            r"""|[bB]?(?:'{3}(?:[^\\]|\\.)*?'{3}|"{3}(?:[^\\]|\\.)*?"{3}"""
            r"""|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")""",
            re.DOTALL,
        ),
    ),
    (
        Kind.NUMBER,
        re.compile(
            r"0[xX][0-9a-fA-F]+[uU]?|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[uU]?"
        ),
    ),
    (Kind.NAME, re.compile(r"[A-Za-z_][A-Za-z0-9_]*")),
    (Kind.SIGN, re.compile(r"==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]{}]")),
)
HEXADECIMAL = frozenset({"0x", "0X"})
_PAIRS = {"(": ")", "[": "]", "{": "}"}


class Source:
    """The text of a condition in tokens, and which bracket closes which.

    Raises ConditionError when the text is too long, cannot be cut, or its brackets do not fit.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > LONGEST:
            words = f"expected at most {LONGEST} characters, got {len(text)}"
            raise ConditionError((words,))
        self.tokens = tuple(self._cut())
        self.closing: Mapping[int, int] = dict(self._paired())

    def place(self, at: int) -> str:
        """``column 8``, from 1; with the line where the text has several."""
        line, column = self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
        return f"line {line}, column {column}" if "\n" in self.text else f"column {column}"

    def error(self, at: int, words: str) -> ConditionError:
        """The error at the character ``at``."""
        return ConditionError((f"{self.place(at)}: {words}",))

    def sign(self, index: int, *texts: str) -> bool:
        """Whether the token ``index`` is there and one of these signs."""
        if not 0 <= index < len(self.tokens):
            return False
        token = self.tokens[index]
        return token.kind is Kind.SIGN and token.text in texts

    def name(self, index: int) -> bool:
        """Whether the token ``index`` is there and a name."""
        return 0 <= index < len(self.tokens) and self.tokens[index].kind is Kind.NAME

    def commas(self, opening: int) -> list[int]:
        """Where the commas directly within a bracket are."""
        found, index, end = [], opening + 1, self.closing[opening]
        while index < end:
            if self.sign(index, ","):
                found.append(index)
            index = self.closing.get(index, index) + 1
        return found

    def _cut(self) -> Iterator[Token]:
        for at, character in enumerate(self.text):
            if not character.isprintable() and character not in "\t\r\n":
                raise self.error(at, "unexpected character that does not print")
        at = self._space(0)
        while at < len(self.text):
            token = self._token(at)
            yield token
            at = self._space(at + len(token.text))

    def _space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return at if match is None else match.end()

    def _token(self, at: int) -> Token:
        for kind, pattern in _TOKENS:
            if match := pattern.match(self.text, at):
                return Token(kind, match.group(), at)
        character = self.text[at]
        if character in "'\"":
            raise self.error(at, "the text that begins here has no end")
        raise self.error(at, f"unexpected {character}")

    def _paired(self) -> Iterator[tuple[int, int]]:
        opened: list[int] = []
        for index, token in enumerate(self.tokens):
            if self.sign(index, *_PAIRS):
                opened.append(index)
            elif self.sign(index, *_PAIRS.values()):
                if not opened or _PAIRS[self.tokens[opened[-1]].text] != token.text:
                    raise self.error(token.at, f"unexpected {token.text}")
                yield opened.pop(), index
            if len(opened) > DEEPEST:
                raise self.error(token.at, f"expected at most {DEEPEST} brackets in brackets")
        for index in opened:
            token = self.tokens[index]
            raise self.error(token.at, f"the {token.text} that opens here is never closed")


def plain_text(token: Token) -> str | None:
    """What a text literal says; None when it is none, or has escapes or a prefix."""
    text = token.text
    if token.kind is not Kind.TEXT or "\\" in text or text[0] not in "'\"":
        return None
    quote = 3 if text[:3] in {"'''", '"""'} else 1
    return text[quote:-quote]


def number(text: str) -> float:
    """What a number says; infinite when it is too large for a double."""
    digits = text.rstrip("uU")
    try:
        return float(int(digits, 16)) if text[:2] in HEXADECIMAL else float(digits)
    except OverflowError:
        return math.inf
