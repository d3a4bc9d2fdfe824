"""``check``: whether the configuration is accepted, and whether its engines would start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

import click

from watchdog import config as configuration
from watchdog import procfs, registry
from watchdog.cli import fit
from watchdog.cli.client import fail
from watchdog.cli.oddities import oddities
from watchdog.cli.root import common, examples
from watchdog.cli.words import shown
from watchdog.command_line import CommandError, EngineCommand, describe
from watchdog.config import Config, ConfigError, EngineConfig
from watchdog.config.reading import suggestion
from watchdog.core.rules import Rule
from watchdog.nvidia import obstacle
from watchdog.preflight import Figure, Report, memory_of
from watchdog.rules import RuleError, build_rules

USAGE = 2


def _sizes(_: click.Context, __: click.Parameter, told: tuple[str, ...]) -> tuple[int, ...]:
    try:
        return tuple(map(memory_of, told))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    short_help="Would the engines start, and fit?",
    epilog=examples(
        "check --config watchdog.toml",
        "check --memory 80GiB -- vllm serve /models/llama",
    ),
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--memory",
    metavar="SIZE",
    multiple=True,
    callback=_sizes,
    help="Count on such GPUs (80GiB); repeatable.",
)
@common
def check(
    command: tuple[str, ...],
    memory: tuple[int, ...],
    config: Path | None,
    state_dir: Path | None,
    as_json: bool,  # noqa: FBT001 - click calls by name
) -> None:
    """Validate configuration and rules; tell whether engines, or COMMAND, would start and fit.

    What is accepted but odd is a warning on stderr.
    Exit code 0, 1 for problems, 2 for a configuration or usage error.
    """
    with refusing():
        effective = load(config, command)
        rules = built(effective)
        warnings = list(oddities(effective, rules, registry.probes()))
    for warning in warnings:
        click.echo(shown(f"warning: {effective.file}: {warning}"), err=True)
    if not effective.engine:
        fail("no engine: give a COMMAND after --, or an [engine.NAME] in the configuration", USAGE)
    found = _checked(effective, rules, state_dir, memory)
    if as_json:
        click.echo(json.dumps(found.body(warnings)))
    else:
        click.echo(found.text())
    sys.exit(1 if found.problems else 0)


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


@dataclass(slots=True)
class _Found:
    """All that was found: one line for everything that would keep an engine from starting."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reports: dict[str, Report] = field(default_factory=dict)
    figures: Sequence[Figure] = ()

    def body(self, oddities: Sequence[str]) -> dict[str, object]:
        """For ``--json``."""
        return {
            "ok": not self.problems,
            "problems": self.problems,
            "warnings": [*oddities, *self.warnings],
            "engines": [fit.body(name, report) for name, report in self.reports.items()],
            "box": [asdict(figure) for figure in self.figures],
        }

    def text(self) -> str:
        """For people: what is wrong first, then the numbers."""
        lines = [shown(line) for line in self.problems or ["no problems found"]]
        lines += [shown(f"warning: {line}") for line in self.warnings]
        for name, report in self.reports.items():
            lines += ["", *fit.render(name, report)]
        if self.reports:
            lines += ["", "this box", *fit.table(self.figures)]
        return "\n".join(lines)


def _checked(
    config: Config, rules: tuple[Rule, ...], state_dir: Path | None, memory: Sequence[int]
) -> _Found:
    from watchdog.cli.doctor import running  # it imports this module

    floors: Mapping[str, str] = config.probes["driver"].settings.floors
    box = fit.box_of(config, rules, running(state_dir))
    lines = [*box.warnings, *(() if memory else fit.crowded(config, box))]
    found = _Found(warnings=[f"this box: {line}" for line in lines], figures=box.figures)
    for name, engine in config.engine.items():
        try:
            said = describe(engine.command, engine.env, os.environ)
        except CommandError as error:
            found.problems.append(f"{name}: {error}")
            continue
        lines = [*_problems(engine, said), *_driver(engine, floors)]
        report = fit.report_of(engine, said, box, memory, floors)
        if report is not None:
            found.reports[name] = report
            lines += report.problems
            found.warnings += [f"{name}: {line}" for line in report.warnings]
        found.problems += [f"{name}: {line}" for line in lines]
    found.problems += [f"this box: {line}" for line in box.problems]
    return found


def _problems(engine: EngineConfig, said: EngineCommand) -> Iterator[str]:
    program = engine.command[0]
    path = engine.env.get("PATH", os.environ.get("PATH"))
    if shutil.which(program, path=path) is None:
        yield f"cannot find the program {program!r}"
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
