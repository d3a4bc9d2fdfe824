"""What the type of a setting says: durations, limits, tables; for the reader and the schema."""

from __future__ import annotations

import types
from enum import StrEnum
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Meta, Struct

_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    int | str: "a whole number or a text",
}
_PLURALS = {"a whole number": "whole numbers", "a number": "numbers", "a text": "texts"}


def without_none(kind: Any) -> Any:  # noqa: ANN401
    """``kind`` without ``| None``: TOML has no null, what is not given is left out."""
    if get_origin(kind) in {Union, types.UnionType}:
        rest = [part for part in get_args(kind) if part is not type(None)]
        return rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007
    return kind


def bare(kind: Any) -> Any:  # noqa: ANN401
    """``kind`` without its ``Annotated``."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def metas(kind: Any) -> tuple[Meta, ...]:  # noqa: ANN401
    """What ``kind`` is annotated with."""
    found = kind.__metadata__ if get_origin(kind) is Annotated else ()
    return tuple(meta for meta in found if isinstance(meta, Meta))


def duration_limit(kind: Any) -> str:  # noqa: ANN401
    """``any`` or ``positive`` for a duration, "" for everything else."""
    extras = [meta.extra or {} for meta in metas(kind)]
    return next((str(extra["duration"]) for extra in extras if "duration" in extra), "")


def is_table(kind: Any) -> bool:  # noqa: ANN401
    """Whether ``kind`` is a settings type of its own."""
    return isinstance(kind, type) and issubclass(kind, Struct)


def is_list_of_tables(kind: Any) -> bool:  # noqa: ANN401
    """Whether ``kind`` is a tuple of settings types."""
    return get_origin(kind) is tuple and is_table(get_args(kind)[0])


def is_table_of_tables(kind: Any) -> bool:  # noqa: ANN401
    """Whether ``kind`` maps names to a settings type."""
    return get_origin(kind) is dict and is_table(get_args(kind)[1])


def choices(kind: Any) -> tuple[str, ...]:  # noqa: ANN401
    """The values of a closed set of texts; empty for everything else."""
    closed = isinstance(kind, type) and issubclass(kind, StrEnum)
    return tuple(member.value for member in kind) if closed else ()


def words(kind: Any) -> str:  # noqa: ANN401
    """What a value of this type is to the author of a file."""
    kind = without_none(kind)
    if duration_limit(kind):
        return 'a duration like "30s"'
    limits = [limit for meta in metas(kind) if (limit := _limit(meta))]
    return " ".join([_plain_words(bare(kind)), *limits])


def _plain_words(kind: Any) -> str:  # noqa: ANN401
    if values := choices(kind):
        return "one of " + ", ".join(f'"{value}"' for value in values)
    if is_table(kind):
        return "a table"
    inner = get_args(kind)
    match get_origin(kind):
        case _ if is_list_of_tables(kind):
            return "a list of tables"
        case origin if origin is tuple:
            return f"a list of {_plural(inner[0])}"
        case origin if origin is dict:
            return f"a table of {'tables' if is_table(inner[1]) else _plural(inner[1])}"
        case _:
            return _WORDS.get(kind, "another kind of value")


def _plural(kind: Any) -> str:  # noqa: ANN401
    singular = _plain_words(bare(kind))
    return " or ".join(_PLURALS.get(word, "values") for word in singular.split(" or "))


def _limit(meta: Meta) -> str:
    if meta.pattern is not None:
        return f"like {meta.pattern}"
    parts = [
        f"{word} {bound}"
        for word, bound in (("of at least", meta.ge), ("above", meta.gt), ("below", meta.lt))
        if bound is not None
    ]
    if meta.le is not None:
        parts.append(f"at most {meta.le}")
    return " and ".join(parts)
