"""Which program a command line runs: an interpreter, a wrapper or a path in front of it aside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

_WITH_VALUE = frozenset({"-X", "-W"})
"""Options of the Python interpreter whose value is the next word."""


def runs(argv: Sequence[str], command: Sequence[str]) -> bool:
    """Whether ``argv`` is the program that ``command`` starts, behind whatever wraps it there.

    A title in the place of the arguments is no program that a command names.
    """
    program = _program(argv)
    words = {PurePath(word).name for part in command for word in part.split()}
    return bool(program) and (program in words or (_is_vllm(program) and any(map(_is_vllm, words))))


def _is_vllm(program: str) -> bool:
    """``vllm``, or one of its modules that serve as well."""
    return program.partition(".")[0] == "vllm"


def _program(argv: Sequence[str]) -> str:
    """``vllm`` of ``python3 /opt/bin/vllm serve``, the module of ``python3 -m MODULE``."""
    words = iter(argv)
    first = PurePath(next(words, "")).name
    if not first.startswith("python"):
        return first
    for word in words:
        if word == "-m":
            return next(words, "")
        if word in _WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return PurePath(word).name
        elif word.endswith("c") and not word.startswith("--"):
            return ""  # a text is no name
    return ""
