"""Turns TOML tables into settings and collects every error on the way, each with its key.

msgspec alone would stop at the first one.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from watchdog.config.durations import parse_duration

_SHOWN = 40
_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple[str, ...]: "a list of texts",
    tuple[int | str, ...]: "a list of whole numbers or texts",
    int | str: "a whole number or a text",
    dict[str, str]: "a table of texts",
}
_SECRET = re.compile(r"env|command|notify|.*(?:key|token|secret|password).*")


class Unusable:
    """What stands for a value that could not be read; its error is already noted."""


UNUSABLE = Unusable()


class Reader:
    """Reads one file. ``errors`` are lines ``KEY: what was expected``, in the file's order."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def fail(self, path: str, words: str) -> Unusable:
        """Note an error at ``path``."""
        self.errors.append(f"{path}: {words}")
        return UNUSABLE

    def struct(self, kind: type[Any], raw: object, path: str, *, plug_in: bool = False) -> Any:  # noqa: ANN401
        """An instance of ``kind`` (a Struct type); UNUSABLE when a required field is.

        Other unusable fields get their defaults, so that what depends on the rest can be judged.
        With ``plug_in``, a plain number of seconds may also be written as a duration.
        """
        if not isinstance(raw, dict):
            return self._wrong(path, "a table", raw)
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        self._refuse_unknown(raw, fields, path)
        values: dict[str, object] = {}
        for name, field in fields.items():
            if name in raw:
                values[field.name] = self._value(field.type, raw[name], join(path, name), plug_in)
            elif field.required:
                values[field.name] = self.fail(join(path, name), f"expected {_words(field.type)}")
        required = {field.name for field in fields.values() if field.required}
        if any(values[name] is UNUSABLE for name in required):
            return UNUSABLE
        try:
            return kind(**{name: value for name, value in values.items() if value is not UNUSABLE})
        except (ValueError, TypeError) as error:
            return self.fail(path, one_line(str(error)))

    def table(self, kind: type[Any], raw: object, path: str) -> dict[str, Any]:
        """Named instances of ``kind``; unusable ones are left out."""
        if not isinstance(raw, dict):
            self._wrong(path, "a table of tables", raw)
            return {}
        read = {name: self.struct(kind, value, join(path, name)) for name, value in raw.items()}
        return {name: value for name, value in read.items() if value is not UNUSABLE}

    def _refuse_unknown(self, raw: Mapping[str, object], known: Collection[str], path: str) -> None:
        for name in raw:
            if name not in known:
                expected = ", ".join(known) or "nothing"
                self.fail(join(path, name), f"unknown key, expected one of {expected}")

    def _value(self, kind: Any, raw: object, path: str, plug_in: bool) -> object:  # noqa: ANN401, FBT001
        kind = _without_none(kind)
        if limit := _duration_limit(kind):
            return self._duration(raw, path, positive=limit == "positive")
        if isinstance(kind, type) and issubclass(kind, Struct):
            return self.struct(kind, raw, path, plug_in=plug_in)
        if _is_list_of_tables(kind):
            return self.structs(get_args(kind)[0], raw, path)
        if plug_in and _bare(kind) is float and isinstance(raw, str):
            raw = self._duration(raw, path)
            return raw if raw is UNUSABLE else self._converted(kind, raw, path)
        return self._converted(kind, raw, path)

    def structs(self, kind: type[Any], raw: object, path: str) -> object:
        """A tuple of instances of ``kind``, or UNUSABLE when one of them is."""
        if not isinstance(raw, list):
            return self._wrong(path, "a list of tables", raw)
        read = tuple(self.struct(kind, item, f"{path}[{i}]") for i, item in enumerate(raw))
        return UNUSABLE if UNUSABLE in read else read

    def _duration(self, raw: object, path: str, *, positive: bool = False) -> object:
        if not isinstance(raw, str):
            return self._wrong(path, 'a duration like "30s"', raw)
        try:
            seconds = parse_duration(raw)
        except ValueError as error:
            return self.fail(path, f"{error}, got {shown(raw)}")
        if positive and seconds == 0:
            return self.fail(path, f"expected a duration above zero, got {shown(raw)}")
        return seconds

    def _converted(self, kind: Any, raw: object, path: str) -> object:  # noqa: ANN401
        try:
            value = msgspec.convert(raw, kind)
        except (msgspec.ValidationError, RecursionError):
            return self._wrong_inside(kind, raw, path) or self._wrong(path, _words(kind), raw)
        if isinstance(value, float) and not math.isfinite(value):
            return self._wrong(path, _words(kind), raw)
        return value

    def _wrong_inside(self, kind: Any, raw: object, path: str) -> Unusable | None:  # noqa: ANN401
        """Blame the items of a list or table of plain values rather than the whole."""
        before = len(self.errors)
        if isinstance(raw, list) and get_origin(kind) is tuple:
            for index, item in enumerate(raw):
                self._converted(get_args(kind)[0], item, f"{path}[{index}]")
        elif isinstance(raw, dict) and get_origin(kind) is dict:
            for name, item in raw.items():
                self._converted(get_args(kind)[1], item, join(path, name))
        return UNUSABLE if len(self.errors) > before else None

    def _wrong(self, path: str, words: str, raw: object) -> Unusable:
        secret = any(_SECRET.fullmatch(part) for part in re.split(r"[.\[]", path.lower()))
        return self.fail(path, f"expected {words}, got {_kind(raw) if secret else shown(raw)}")


def join(path: str, key: str) -> str:
    """The dotted path of ``key`` below ``path``, quoted where TOML wants it quoted."""
    name = key if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", key) else shown(key)
    return f"{path}.{name}" if path else name


def shown(raw: object) -> str:
    """A value for a message: one short line; what could be long is named by its kind."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, int) and raw.bit_length() > 64:  # noqa: PLR2004
        return "a huge number"
    if isinstance(raw, str):
        return json.dumps(raw if len(raw) <= _SHOWN else raw[:_SHOWN] + "...")
    return str(raw) if isinstance(raw, int | float) else _kind(raw)


def one_line(text: str) -> str:
    """``text`` without line breaks and other characters that do not print."""
    return "".join(c if c.isprintable() else " " for c in text)


def _kind(raw: object) -> str:
    match raw:
        case bool():
            return "true or false"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case dict():
            return "a table"
        case list() | tuple():
            return "a list"
        case _:
            return "a date or time"


def _words(kind: Any) -> str:  # noqa: ANN401
    """What a value of this type is to the author of a file."""
    kind = _without_none(kind)
    if _duration_limit(kind):
        return 'a duration like "30s"'
    bare = _bare(kind)
    words = _WORDS.get(bare)
    if isinstance(bare, type) and issubclass(bare, StrEnum):
        words = "one of " + ", ".join(f'"{member.value}"' for member in bare)
    metas = kind.__metadata__ if get_origin(kind) is Annotated else ()
    limits = [limit for meta in metas if isinstance(meta, Meta) and (limit := _limit(meta))]
    return " ".join([words or "another kind of value", *limits])


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


def _without_none(kind: Any) -> Any:  # noqa: ANN401
    if get_origin(kind) in {Union, types.UnionType}:
        rest = [part for part in get_args(kind) if part is not type(None)]
        return rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007
    return kind


def _bare(kind: Any) -> Any:  # noqa: ANN401
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _duration_limit(kind: Any) -> str:  # noqa: ANN401
    if get_origin(kind) is not Annotated:
        return ""
    extras = [meta.extra or {} for meta in kind.__metadata__ if isinstance(meta, Meta)]
    return next((str(extra["duration"]) for extra in extras if "duration" in extra), "")


def _is_list_of_tables(kind: Any) -> bool:  # noqa: ANN401
    if get_origin(kind) is not tuple:
        return False
    item = get_args(kind)[0]
    return isinstance(item, type) and issubclass(item, Struct)
