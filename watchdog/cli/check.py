"""``check``: whether the configuration is accepted, and whether its engines would start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from watchdog import config as configuration
from watchdog import procfs, registry
from watchdog.cli.client import fail
from watchdog.cli.root import common, examples
from watchdog.command_line import CommandError, EngineCommand, describe
from watchdog.config import Config, ConfigError, EngineConfig
from watchdog.nvidia import obstacle

USAGE = 2


@click.command(
    short_help="Would the engines start?",
    epilog=examples(
        "check --config watchdog.toml", "check -- vllm serve /models/llama --port 8000"
    ),
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@common
def check(
    command: tuple[str, ...],
    config: Path | None,
    state_dir: Path | None,  # noqa: ARG001 - every command takes it
    as_json: bool,  # noqa: FBT001 - click calls by name
) -> None:
    """Validate the configuration, and whether its engines, or COMMAND, would start.

    Exit code 0, 1 for problems, 2 for a configuration or usage error.
    """
    try:
        effective = load(config, command)
    except ConfigError as error:
        fail("\n".join(error.lines), USAGE)
    if not effective.engine:
        fail("no engine: give a COMMAND after --, or an [engine.NAME] in the configuration", USAGE)
    problems = list(preflight(effective))
    if as_json:
        click.echo(json.dumps({"ok": not problems, "problems": problems}))
    else:
        click.echo("\n".join(problems) if problems else "no problems found")
    sys.exit(1 if problems else 0)


def load(path: Path | None, command: tuple[str, ...]) -> Config:
    """The effective configuration. Raises ConfigError."""
    kinds = {name: spec.settings for name, spec in registry.probes().items()}
    return configuration.load(configuration.find(path, os.environ), kinds, command)


def preflight(config: Config) -> Iterator[str]:
    """One line for everything that would keep an engine from starting."""
    floors: Mapping[str, str] = config.probes["driver"].settings.floors
    for name, engine in config.engine.items():
        try:
            said = describe(engine.command, engine.env, os.environ)
        except CommandError as error:
            yield f"{name}: {error}"
            continue
        lines = (*_problems(engine, said), *_driver(engine, floors))
        yield from (f"{name}: {line}" for line in lines)


def _problems(engine: EngineConfig, said: EngineCommand) -> Iterator[str]:
    program = engine.command[0]
    path = engine.env.get("PATH", os.environ.get("PATH"))
    if shutil.which(program, path=path) is None:
        yield f"cannot find the program {program!r}"
    if said.model.startswith(("/", "./", "../")) and not Path(said.model).is_dir():
        yield f"cannot find the model directory {said.model}"
    if not said.endpoint.uds:
        yield from _port(said)


def _driver(engine: EngineConfig, floors: Mapping[str, str]) -> Iterator[str]:
    found = obstacle(engine.command, {**os.environ, **engine.env}, floors=floors)
    if found is not None:
        yield f"cannot run on this driver: {found[1]}"


def _port(said: EngineCommand) -> Iterator[str]:
    port = said.endpoint.port
    family = socket.AF_INET6 if ":" in said.endpoint.host else socket.AF_INET
    with socket.socket(family) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((said.endpoint.host, port))
        except OSError as error:
            owner = procfs.listening_owner(port)
            who = f" by process {owner[0]} ({owner[1]})" if owner else ""
            yield f"cannot bind port {port}: {error.strerror}{who}"
