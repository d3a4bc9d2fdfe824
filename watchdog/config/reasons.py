"""What settings say of themselves: the texts below their fields, read from the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise


@cache
def reasons(kind: type) -> dict[str, str]:
    """Each field's own text in one line, inherited ones too; empty where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found.update(_told(base))
    return found


def summary(kind: type) -> str:
    """What the type says of itself, in one line."""
    return " ".join((kind.__doc__ or "").split())


def _told(kind: type) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(_body(kind)):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(told))),
            ):
                yield name, " ".join(told.split())
            case _:
                pass


def _body(kind: type) -> list[ast.stmt]:
    if kind.__module__ in {"builtins", "msgspec"}:
        return []
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return []
    return tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
