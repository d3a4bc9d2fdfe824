"""``check``: whether the configuration is accepted, and whether its engines would start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from watchdog import config as configuration
from watchdog import procfs, registry
from watchdog.cli.client import fail
from watchdog.cli.oddities import oddities
from watchdog.cli.root import common, examples
from watchdog.cli.words import shown
from watchdog.command_line import CommandError, EngineCommand, describe
from watchdog.config import Config, ConfigError, EngineConfig
from watchdog.config.reading import suggestion
from watchdog.core.rules import Rule
from watchdog.nvidia import obstacle
from watchdog.rules import RuleError, build_rules

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
    """Validate configuration and rules, and whether the engines, or COMMAND, would start.

    What is accepted but odd is a warning on stderr.
    Exit code 0, 1 for problems, 2 for a configuration or usage error.
    """
    with refusing():
        effective = load(config, command)
        warnings = list(oddities(effective, built(effective), registry.probes()))
    for warning in warnings:
        click.echo(shown(f"warning: {effective.file}: {warning}"), err=True)
    if not effective.engine:
        fail("no engine: give a COMMAND after --, or an [engine.NAME] in the configuration", USAGE)
    problems = list(preflight(effective))
    if as_json:
        told = {"ok": not problems, "problems": problems, "warnings": warnings}
        click.echo(json.dumps(told))
    else:
        click.echo("\n".join(problems) if problems else "no problems found")
    sys.exit(1 if problems else 0)


def load(path: Path | None, command: tuple[str, ...]) -> Config:
    """The effective configuration. Raises ConfigError."""
    return configuration.load(configuration.find(path, os.environ), registry.plug_ins(), command)


def built(config: Config) -> tuple[Rule, ...]:
    """The effective rules. Raises RuleError."""
    return build_rules(
        config.rule, registry.probes(), registry.actions(), config.file, config.actions
    )


@contextmanager
def refusing() -> Iterator[None]:
    """Whatever is wrong with configuration, rules or plug-ins is told on stderr, with exit 2."""
    try:
        yield
    except (ConfigError, RuleError) as error:
        fail("\n".join(error.lines), USAGE)
    except registry.RegistryError as error:
        fail(str(error), USAGE)


def unknown(what: str, name: str, known: Collection[str]) -> NoReturn:
    """There is no ``what`` of that name, in one line, and the end."""
    hint = suggestion(name, known) or f"; vllm-watchdog {what}s lists all"
    fail(f"no {what} {shown(name)}{hint}", USAGE)


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
