"""From a file to a configuration that makes sense, or to all that is wrong with it."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from watchdog.config import judgement
from watchdog.config.kinds import without_none
from watchdog.config.reading import UNUSABLE, Reader, join, one_line
from watchdog.config.settings import (
    Config,
    EngineConfig,
    PlugIns,
    ProbeConfig,
    default_probes,
)
from watchdog.core.state import Attach

SIZE_LIMIT = 1 << 20
"""Bytes. A configuration is a few kB; this is somebody's log or a device."""

_DOTS_LIMIT = 500
"""In a key. The parser takes time with the square of a dotted key's length: minutes for 1 MB."""

_LINES_LIMIT = 100
"""Mistakes that are told of: more than that is not a configuration that went wrong somewhere."""

_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


class ConfigError(Exception):
    """A configuration that cannot be used. ``lines`` are ``FILE: KEY: what was expected``."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def load(
    path: Path | None,
    plug_ins: PlugIns,
    command: Sequence[str] = (),
    attach: Attach | None = None,
) -> Config:
    """The configuration in ``path``, or the built-in one for None. Raises ConfigError.

    ``command``, when not empty, replaces that of the engine ``main`` before anything is judged, and
    ``attach`` says that somebody else runs it. There may be no engine at all.
    """
    if path is None:
        return with_command(_plain(plug_ins), command, attach)
    file = one_line(str(path))
    reader = Reader()
    config = _read(reader, _parse(file, _text(file, path)), plug_ins)
    config = msgspec.structs.replace(config, file=file)
    config = _replaced(config, command, attach) if command else config
    _raise(file, [*reader.errors, *_not_implied(judgement.faults(config), reader.errors)])
    return config


def with_command(config: Config, command: Sequence[str], attach: Attach | None = None) -> Config:
    """``config`` with the engine ``main`` running ``command``; its other keys stay.

    Raises ConfigError when the command is unusable. An empty command changes nothing.
    """
    if not command:
        return config
    config = _replaced(config, command, attach)
    _raise(config.file, tuple(judgement.faults(config)))
    return config


def _replaced(config: Config, command: Sequence[str], attach: Attach | None) -> Config:
    main = config.engine.get("main") or EngineConfig(log_file=judgement.default_log_file("main"))
    main = msgspec.structs.replace(main, command=tuple(command), attach=attach or main.attach)
    return msgspec.structs.replace(config, engine={**config.engine, "main": main})


def _not_implied(faults: Iterable[str], errors: Sequence[str]) -> list[str]:
    """Those faults that are not found only because a default stands in for an unusable value."""
    unread = {error.partition(": ")[0] for error in errors}
    policy = any(key.startswith("policy") for key in unread)
    keys = [(fault.partition(": ")[0], fault) for fault in faults]
    return [
        fault for key, fault in keys if key not in unread and not (policy and key[:7] == "policy.")
    ]


def shortened(file: str, lines: Sequence[str]) -> list[str]:
    """The first mistakes of many, and how many there are more."""
    shown = list(lines[:_LINES_LIMIT])
    if more := len(lines) - len(shown):
        shown.append(f"{file}: more: {more} further mistakes are not shown")
    return shown


def _raise(file: str, errors: Sequence[str]) -> None:
    lines = shortened(file, [f"{file}: {error}" for error in errors])
    if lines:
        raise ConfigError(lines)


def _text(file: str, path: Path) -> str:
    try:
        data = _bytes(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError([f"{file}: cannot be read: {(reason or 'unknown').lower()}"]) from None
    if data is None:
        raise ConfigError([f"{file}: cannot be read: expected a regular file"])
    if len(data) > SIZE_LIMIT:
        raise ConfigError([f"{file}: cannot be read: expected at most {SIZE_LIMIT} bytes"])
    try:
        return data.decode("utf-8-sig")  # editors of other systems begin with a mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{file}: line {line}: expected UTF-8"]) from None


def _bytes(path: Path) -> bytes | None:
    """At most one byte more than the limit; None for what is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as source:
            return source.read(SIZE_LIMIT + 1)
    finally:
        os.close(descriptor)


def _keys(line: str) -> Iterator[str]:
    """Whatever can be a key: what stands before an equals sign, and the header of a table."""
    if line.lstrip(" \t").startswith("["):
        yield line
    for before in line.split("=")[:-1]:
        yield before.rpartition(",")[2]


def _parse(file: str, text: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if any(key.count(".") > _DOTS_LIMIT for key in _keys(line)):
            words = f"expected at most {_DOTS_LIMIT} dots in a key"
            raise ConfigError([f"{file}: line {number}: {words}"])
    try:
        return tomllib.loads(text)
    except RecursionError:
        words = "cannot be read: expected fewer brackets within brackets"
        raise ConfigError([f"{file}: {words}"]) from None
    except ValueError as error:
        message = str(error)
        place = _TOML_PLACE.search(message)
        line = place.group(1) if place and place.group(1) else str(text.count("\n") + 1)
        words = one_line(_TOML_PLACE.sub("", message))
        raise ConfigError([f"{file}: line {line}: {words[:1].lower()}{words[1:]}"]) from None


def _plain(plug_ins: PlugIns) -> Config:
    """With nothing configured."""
    return Config(probes=default_probes(plug_ins.probes), actions=plug_ins.default_actions())


def _read(reader: Reader, raw: dict[str, Any], plug_ins: PlugIns) -> Config:
    """What could be read; where something could not, the default, and its error in ``reader``."""
    values: dict[str, Any] = {}
    kinds = {field.name: field.type for field in msgspec.structs.fields(Config)}
    for key, value in raw.items():
        match key:
            case "watchdog" | "policy" | "nginx" | "evidence":
                values[key] = reader.struct(without_none(kinds[key]), value, key)
            case "engine" | "notify":
                values[key] = reader.table(kinds[key].__args__[1], value, key)
            case "rule":
                values[key] = reader.structs(kinds[key].__args__[0], value, key)
            case "probes":
                values[key] = _probes(reader, value, plug_ins.probes)
            case "actions":
                values[key] = _actions(reader, value, plug_ins)
            case _:
                reader.unknown(join("", key), key, [name for name in kinds if name != "file"])
    values = {key: value for key, value in values.items() if value is not UNUSABLE}
    values["engine"] = {
        name: engine if engine.log_file else _with_log_file(name, engine)
        for name, engine in values.get("engine", {}).items()
    }
    return msgspec.structs.replace(_plain(plug_ins), **values)


def _with_log_file(name: str, engine: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(engine, log_file=judgement.default_log_file(name))


def _probes(
    reader: Reader, raw: object, probe_settings: Mapping[str, type[Struct]]
) -> dict[str, ProbeConfig]:
    probes = default_probes(probe_settings)
    if not isinstance(raw, dict):
        reader.no_table("probes", "a table of tables", raw)
        return probes
    for name, table in raw.items():
        path = join("probes", name)
        if name not in probe_settings:
            reader.unknown(path, name, sorted(probe_settings), "probe")
        elif not isinstance(table, dict):
            reader.no_table(path, "a table", table)
        else:
            probes[name] = _probe(reader, table, path, probe_settings[name])
    return probes


def _actions(reader: Reader, raw: object, plug_ins: PlugIns) -> dict[str, Any]:
    actions = plug_ins.default_actions()
    if not isinstance(raw, dict):
        reader.no_table("actions", "a table of tables", raw)
        return actions
    for name, table in raw.items():
        path = join("actions", name)
        if name not in actions:
            reader.unknown(path, name, sorted(actions), "action")
            continue
        settings = reader.struct(plug_ins.actions[name], table, path, plug_in=True)
        if settings is not UNUSABLE:
            actions[name] = settings
    return actions


def _probe(reader: Reader, table: dict[str, Any], path: str, kind: type[Struct]) -> ProbeConfig:
    """When to look is ours, all other keys are the probe's own."""
    timing = ("enabled", "period", "timeout")
    ours = {key: value for key, value in table.items() if key in timing}
    own = {key: value for key, value in table.items() if key not in timing}
    config = reader.struct(ProbeConfig, ours, path)
    settings = reader.struct(kind, own, path, plug_in=True)
    if UNUSABLE in (config, settings):
        return ProbeConfig()
    return ProbeConfig(
        enabled=config.enabled, period=config.period, timeout=config.timeout, settings=settings
    )
