"""The configuration as a JSON Schema, for editors that complete and check TOML.

Built from the settings themselves, so that it knows what the reader knows: types, limits, closed
sets, defaults, and the reasons. It never refuses what the reader accepts; what only the whole can
tell (ports, budgets, conditions) is left to ``check``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from watchdog.config.durations import ROUNDS_TO_ZERO, WITHIN_A_YEAR, duration_text
from watchdog.config.judgement import ENGINE_NAME, GPU_NAMES, MOST_GPUS
from watchdog.config.kinds import (
    bare,
    choices,
    duration_limit,
    is_table,
    metas,
    without_none,
)
from watchdog.config.reasons import reasons, summary
from watchdog.config.settings import Config, ProbeConfig
from watchdog.contracts import ActionSpec, ProbeSpec

Schema = dict[str, Any]

DURATION = f"^{WITHIN_A_YEAR}$"
POSITIVE_DURATION = f"^(?=.*[1-9])(?!(?:{ROUNDS_TO_ZERO})$){WITHIN_A_YEAR}$"

_TYPES: dict[object, object] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    int | str: ["integer", "string"],
}
_GPUS: Schema = {
    "items": {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": MOST_GPUS - 1},
            *({"type": "string", "pattern": f"^{name}$"} for name in GPU_NAMES),
        ]
    },
    "uniqueItems": True,
}
_LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "pattern": "pattern",
    "min_length": "minLength",
    "max_length": "maxLength",
}


def document(
    probes: Mapping[str, ProbeSpec],
    rules: Iterable[str] = (),
    actions: Mapping[str, ActionSpec] = MappingProxyType({}),
) -> Schema:
    """The schema (draft 2020-12) of a whole file; names of rules and actions become examples."""
    tables = _struct(Config)["properties"]
    tables["engine"]["propertyNames"] = {"pattern": f"^{ENGINE_NAME}$"}
    tables["engine"]["additionalProperties"]["properties"]["gpus"] |= _GPUS
    tables["probes"] = _table({name: _probe(spec) for name, spec in sorted(probes.items())})
    tables["actions"] = _table(
        {name: _action(spec) for name, spec in sorted(actions.items()) if _has_keys(spec)}
    )
    fields = tables["rule"]["items"]["properties"]
    fields["name"]["examples"] = sorted(rules)
    fields["actions"]["examples"] = [[name] for name in sorted(actions)]
    del tables["file"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vllm-watchdog",
        "description": "The configuration of vllm-watchdog.",
        **_table(tables),
    }


def _probe(spec: ProbeSpec) -> Schema:
    """When it looks, with the probe's own defaults, and its own settings."""
    timing = _struct(ProbeConfig)["properties"]
    del timing["settings"]
    timing["period"]["default"] = duration_text(spec.period)
    timing["timeout"]["default"] = duration_text(spec.timeout)
    own = _struct(spec.settings, plug_in=True)
    return {**_described(own), **_table({**timing, **own["properties"]}, own.get("required", ()))}


def _has_keys(spec: ActionSpec) -> bool:
    return bool(msgspec.structs.fields(spec.settings))


def _action(spec: ActionSpec) -> Schema:
    """Its own settings, with what it does."""
    own = _struct(spec.settings, plug_in=True)
    return {**own, "description": f"{spec.help}. {own['description']}"}


def _described(schema: Schema) -> Schema:
    return {key: schema[key] for key in ("description",) if key in schema}


def _table(properties: Schema, required: Iterable[str] = ()) -> Schema:
    names = list(required)
    table: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**table, "required": names} if names else table


def _struct(kind: type[Struct], *, plug_in: bool = False) -> Schema:
    told = reasons(kind)
    properties, required = {}, []
    for field in msgspec.structs.fields(kind):
        schema = _value(field.type, plug_in=plug_in)
        if reason := told.get(field.name):
            schema["description"] = reason
        schema.update(_default(field))
        properties[field.encode_name] = schema
        if field.required:
            required.append(field.encode_name)
    return {"description": summary(kind), **_table(properties, required)}


def _value(kind: Any, *, plug_in: bool) -> Schema:  # noqa: ANN401
    kind = without_none(kind)
    if limit := duration_limit(kind):
        return _duration(limit)
    if is_table(kind):
        return _struct(kind, plug_in=plug_in)
    inner = get_args(kind)
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _value(inner[0], plug_in=plug_in)}
    if get_origin(kind) is dict:
        return _named(*inner, plug_in=plug_in)
    plain = _plain(kind)
    return {"anyOf": [plain, _duration("any")]} if plug_in and bare(kind) is float else plain


def _plain(kind: Any) -> Schema:  # noqa: ANN401
    if values := choices(bare(kind)):
        return {"enum": list(values)}
    types = _TYPES.get(bare(kind))
    return {**({"type": types} if types else {}), **_limits(metas(kind))}


def _duration(limit: str) -> Schema:
    pattern = POSITIVE_DURATION if limit == "positive" else DURATION
    return {"type": "string", "pattern": pattern}


def _named(key: Any, value: Any, *, plug_in: bool) -> Schema:  # noqa: ANN401
    """A table whose keys the author chooses, or that are a closed set."""
    if names := choices(bare(key)):
        return _table({name: _value(value, plug_in=False) for name in names})
    limits = _limits(metas(key))
    inner = _value(value, plug_in=plug_in and is_table(value))
    table: Schema = {"type": "object", "additionalProperties": inner}
    return {**table, "propertyNames": limits} if limits else table


def _limits(found: Iterable[Meta]) -> Schema:
    return {
        word: limit
        for meta in found
        for name, word in _LIMITS.items()
        if (limit := getattr(meta, name)) is not None
    }


def _default(field: msgspec.structs.FieldInfo) -> Schema:
    """The default as a file would have it; nothing for null and for a table, which TOML lacks."""
    value = field.default
    if field.default_factory is not NODEFAULT:
        value = field.default_factory()
    if value is NODEFAULT or value is None or value == {} or isinstance(value, Struct):
        return {}
    if duration_limit(without_none(field.type)):
        return {"default": duration_text(value)}
    return {"default": msgspec.to_builtins(value)}
