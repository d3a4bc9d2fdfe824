"""Turns TOML tables into settings and collects every error on the way, each with its key.

msgspec alone would stop at the first one.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, get_args, get_origin

import msgspec

from watchdog.config.durations import parse_duration
from watchdog.config.kinds import (
    bare,
    choices,
    duration_limit,
    is_list_of_tables,
    is_table,
    is_table_of_tables,
    without_none,
    words,
)
from watchdog.names import blotted, is_secret

_SHOWN = 40
_LONGEST = 1000
"""Characters of what was expected: all exit causes fit, somebody's whole file does not."""
_MANY = 100
"""Unknown keys that are compared with the known ones: in a file full of them nobody reads on."""
_NEVER_SHOWN = frozenset({"env", "command", "notify", "pre_start", "post_stop", "reload"})


class Unusable:
    """What stands for a value that could not be read; its error is already noted."""


UNUSABLE = Unusable()


class Reader:
    """Reads one file. ``errors`` are lines ``KEY: what was expected``, in the file's order."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def fail(self, path: str, expected: str) -> Unusable:
        """Note an error at ``path``."""
        line = one_line(expected)
        self.errors.append(f"{path}: {line if len(line) <= _LONGEST else line[:_LONGEST] + '...'}")
        return UNUSABLE

    def unknown(self, path: str, name: str, known: Collection[str], what: str = "key") -> None:
        """Note that ``name`` is none of ``known``, and which of them it may have meant."""
        hint = suggestion(name, known) if len(self.errors) < _MANY else ""
        self.fail(path, f"unknown {what}, expected one of {', '.join(known) or 'nothing'}{hint}")

    def struct(self, kind: type[Any], raw: object, path: str, *, plug_in: bool = False) -> Any:  # noqa: ANN401
        """An instance of ``kind`` (a Struct type); UNUSABLE when a required field is.

        Other unusable fields get their defaults, so that what depends on the rest can be judged.
        With ``plug_in``, a plain number of seconds may also be written as a duration.
        """
        if not isinstance(raw, dict):
            return self.no_table(path, "a table", raw)
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        self._refuse_unknown(raw, fields, path)
        values: dict[str, object] = {}
        for name, field in fields.items():
            if name in raw:
                values[field.name] = self._value(field.type, raw[name], join(path, name), plug_in)
            elif field.required:
                values[field.name] = self.fail(join(path, name), f"expected {words(field.type)}")
        required = {field.name for field in fields.values() if field.required}
        if any(values[name] is UNUSABLE for name in required):
            return UNUSABLE
        try:
            return kind(**{name: value for name, value in values.items() if value is not UNUSABLE})
        except (ValueError, TypeError) as error:
            return self.fail(path, str(error))

    def no_table(self, path: str, expected: str, raw: object) -> Unusable:
        """A text in the place of a table may be a whole command, with its key: it is not shown."""
        got = _kind(raw) if isinstance(raw, str) else shown(raw)
        return self.fail(path, f"expected {expected}, got {got}")

    def table(
        self, kind: type[Any], raw: object, path: str, *, plug_in: bool = False
    ) -> dict[str, Any]:
        """Named instances of ``kind``; unusable ones are left out."""
        if not isinstance(raw, dict):
            self.no_table(path, "a table of tables", raw)
            return {}
        read = {
            name: self.struct(kind, value, join(path, name), plug_in=plug_in)
            for name, value in raw.items()
        }
        return {name: value for name, value in read.items() if value is not UNUSABLE}

    def _named(self, kind: Any, raw: object, path: str, *, plug_in: bool) -> dict[str, Any]:  # noqa: ANN401
        """As ``table``, and each name is judged too."""
        key, value = get_args(kind)
        for name in raw if isinstance(raw, dict) else ():
            self._key(key, name, join(path, name))
        return self.table(value, raw, path, plug_in=plug_in)

    def _refuse_unknown(self, raw: Mapping[str, object], known: Collection[str], path: str) -> None:
        for name in raw:
            if name not in known:
                self.unknown(join(path, name), name, known)

    def _value(self, kind: Any, raw: object, path: str, plug_in: bool) -> object:  # noqa: ANN401, FBT001
        kind = without_none(kind)
        if limit := duration_limit(kind):
            return self._duration(raw, path, positive=limit == "positive")
        if is_table(kind):
            return self.struct(kind, raw, path, plug_in=plug_in)
        if is_list_of_tables(kind):
            return self.structs(get_args(kind)[0], raw, path)
        if is_table_of_tables(kind):
            return self._named(kind, raw, path, plug_in=plug_in)
        if plug_in and bare(kind) is float and isinstance(raw, str):
            raw = self._duration(raw, path)
            return raw if raw is UNUSABLE else self._converted(kind, raw, path)
        return self._converted(kind, raw, path)

    def structs(self, kind: type[Any], raw: object, path: str) -> object:
        """A tuple of instances of ``kind``, or UNUSABLE when one of them is."""
        if not isinstance(raw, list):
            return self.no_table(path, "a list of tables", raw)
        read = tuple(self.struct(kind, item, _item(path, i, item)) for i, item in enumerate(raw))
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
            return self._wrong_inside(kind, raw, path) or self._wrong(path, words(kind), raw)
        if isinstance(value, float) and not math.isfinite(value):
            return self._wrong(path, words(kind), raw)
        return value

    def _wrong_inside(self, kind: Any, raw: object, path: str) -> Unusable | None:  # noqa: ANN401
        """Blame the items of a list or table of plain values rather than the whole."""
        before = len(self.errors)
        if isinstance(raw, list) and get_origin(kind) is tuple:
            for index, item in enumerate(raw):
                self._converted(get_args(kind)[0], item, f"{path}[{index}]")
        elif isinstance(raw, dict) and get_origin(kind) is dict:
            key, value = get_args(kind)
            for name, item in raw.items():
                self._key(key, name, join(path, name))
                self._converted(value, item, join(path, name))
        return UNUSABLE if len(self.errors) > before else None

    def _key(self, kind: Any, name: str, path: str) -> None:  # noqa: ANN401
        try:
            msgspec.convert(name, kind)
        except msgspec.ValidationError:
            if known := choices(kind):
                self.unknown(path, name, known)
            else:
                self.fail(path, f"expected {words(kind)}")

    def _wrong(self, path: str, expected: str, raw: object) -> Unusable:
        parts = re.split(r"[.\[]", path.lower())
        secret = any(part in _NEVER_SHOWN or is_secret(part) for part in parts)
        return self.fail(path, f"expected {expected}, got {_kind(raw) if secret else shown(raw)}")


def join(path: str, key: str) -> str:
    """The dotted path of ``key`` below ``path``, quoted where TOML wants it quoted."""
    name = key if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", key) else shown(key)
    return f"{path}.{name}" if path else name


def _item(path: str, index: int, raw: object) -> str:
    """The path of a table in a list: by its name, as everything else is, or by its place."""
    name = raw.get("name") if isinstance(raw, dict) else None
    named = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name)
    return f"{path}.{name}" if named else f"{path}[{index}]"


def suggestion(name: str, known: Collection[str]) -> str:
    """`` (did you mean X?)`` when one of ``known`` is close to ``name``, else nothing."""
    close = difflib.get_close_matches(name, known, n=1) if len(name) <= _SHOWN else []
    return f" (did you mean {close[0]}?)" if close else ""


def shown(raw: object) -> str:
    """A value for a message: one short line; what could be long is named by its kind.

    Of a URL not who one has to be to use it.
    """
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, int) and raw.bit_length() > 64:  # noqa: PLR2004
        return "a huge number"
    if isinstance(raw, str):
        raw = blotted(raw)
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
