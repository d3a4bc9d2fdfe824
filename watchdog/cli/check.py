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
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from watchdog import config as configuration
from watchdog import procfs, registry
from watchdog.cli import attachment, fit
from watchdog.cli.client import fail
from watchdog.cli.oddities import oddities
from watchdog.cli.root import common, examples
from watchdog.cli.words import shown
from watchdog.command_line import CommandError, EngineCommand
from watchdog.config import Config, ConfigError, EngineConfig
from watchdog.config.reading import suggestion
from watchdog.core.rules import Rule
from watchdog.core.state import Attach
from watchdog.nvidia import obstacle
from watchdog.nvidia.engine_cuda import wish
from watchdog.preflight import Figure, Report, memory_of
from watchdog.rules import RuleError, build_rules

USAGE = 2
_RUNS = "{name}: runs already, process {pid}: its own port and GPU memory are free for its restart"
_WHOLE = 2 * fit.PATIENCE
"""Seconds for the configuration: a file that an engine's command names takes its own part."""


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
@click.option("--attach", type=click.Choice(["report", "signal"]), help="COMMAND runs already.")
@common
def check(  # noqa: PLR0913, PLR0917 - one parameter an option, all given by name
    command: tuple[str, ...],
    memory: tuple[int, ...],
    attach: str | None,
    config: Path | None,
    state_dir: Path | None,
    as_json: bool,  # noqa: FBT001 - click calls by name
) -> None:
    """Validate configuration and rules; tell whether engines, or COMMAND, would start and fit.

    What is accepted but odd is a warning on stderr.
    Exit code 0, 1 for problems, 2 for a configuration or usage error.
    """
    if attach and not command:
        raise click.UsageError("--attach needs the COMMAND of the engine that somebody else starts")
    with refusing():
        effective = load(config, command, None if attach is None else Attach(attach))
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


def load(path: Path | None, command: tuple[str, ...], attach: Attach | None = None) -> Config:
    """The effective configuration. Raises ConfigError, also when a file of it does not answer."""
    plug_ins = registry.plug_ins()

    def loaded() -> Config:
        return configuration.load(configuration.find(path, os.environ), plug_ins, command, attach)

    found = fit.attempt(loaded, _WHOLE)
    if isinstance(found, Exception):
        raise found
    if found is None:
        raise ConfigError([f"the configuration cannot be looked at{fit.failure(None, _WHOLE)}"])
    return found


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
    attached: Sequence[attachment.Attached] = ()
    runs: dict[str, int] = field(default_factory=dict)
    figures: Sequence[Figure] = ()

    def body(self, oddities: Sequence[str]) -> dict[str, object]:
        """For ``--json``."""
        return {
            "ok": not self.problems,
            "problems": self.problems,
            "warnings": [*oddities, *self.warnings],
            "engines": [fit.body(name, report) for name, report in self.reports.items()],
            "running": self.runs,
            "attached": [asdict(one) for one in self.attached],
            "box": [asdict(figure) for figure in self.figures],
        }

    def text(self) -> str:
        """For people: what is wrong first, then the numbers."""
        lines = [shown(line) for line in self.problems or ["no problems found"]]
        lines += [shown(f"warning: {line}") for line in self.warnings]
        lines += [shown(f"{one.name}: {one.words}") for one in self.attached if not one.odd]
        lines += [shown(_RUNS.format(name=name, pid=pid)) for name, pid in self.runs.items()]
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
    attached, ours = attachment.attached_of(config), attachment.own(config)
    watched = running(state_dir)
    box = fit.box_of(ours, rules, {**attachment.pids_of(attached), **watched})
    found = _Found(attached=attached, figures=box.figures)
    found.warnings = [f"{one.name}: {one.words}" for one in attached if one.odd]
    found.warnings += [f"this box: {line}" for line in box.warnings]
    known: dict[str, tuple[EngineConfig, EngineCommand]] = {}
    for name, engine in ours.engine.items():
        try:
            said = fit.said_of(engine)
        except CommandError as error:
            found.problems.append(f"{name}: {error}")
            continue
        lines = [*_place(found, name, said, watched.get(name, ()))]
        program = fit.attempt(partial(_program, engine, floors))
        if isinstance(program, list):
            lines += program
            known[name] = (engine, said)
            report = fit.report_of(engine, said, box, memory, floors, runs=name in found.runs)
            lines += _fits(found, name, report)
        else:
            lines.append(f"the program {engine.command[0]!r} {_unseen(program)}")
        found.problems += [f"{name}: {line}" for line in lines]
    crowded = () if memory else fit.crowded(known, box)
    found.warnings += [f"this box: {line}" for line in crowded]
    # Where nobody is started by us, nothing keeps an engine of ours from starting.
    (found.problems if ours.engine else found.warnings).extend(
        f"this box: {line}" for line in box.problems
    )
    return found


def _unseen(program: Exception | None) -> str:
    mount = ": does the mount that it is on answer?" if program is None else ""
    return f"cannot be looked at{fit.failure(program)}{mount}"


def _fits(found: _Found, name: str, report: Report | None) -> Sequence[str]:
    """Note what was found of the engine's model; its problems."""
    if report is None:
        return ()
    found.reports[name] = report
    found.warnings += [f"{name}: {line}" for line in report.warnings]
    return report.problems


def _program(engine: EngineConfig, floors: Mapping[str, str]) -> list[str]:
    """What is wrong with the program, or with the driver for it. Hangs with the mount of either."""
    around = {**os.environ, **engine.env}
    found = []
    if shutil.which(engine.command[0], path=around.get("PATH")) is None:
        found.append(f"cannot find the program {engine.command[0]!r}")
    wish(engine.command, around)  # what comes after this reads the same files
    driver = obstacle(engine.command, around, floors=floors)
    if driver is not None:
        found.append(f"cannot run on this driver: {driver[1]}")
    return found


def _place(found: _Found, name: str, said: EngineCommand, watched: Sequence[int]) -> Iterator[str]:
    """Why it could not listen; its own processes, of which a daemon tells, are not in its way."""
    if said.endpoint.uds:
        return
    owner = procfs.listening_owner(said.endpoint.port)
    if owner is not None and owner[0] in watched:
        found.runs[name] = owner[0]
    else:
        yield from _port(said, owner)


def _port(said: EngineCommand, owner: tuple[int, str] | None) -> Iterator[str]:
    port = said.endpoint.port
    family = socket.AF_INET6 if ":" in said.endpoint.host else socket.AF_INET
    with socket.socket(family) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((said.endpoint.host, port))
        except OSError as error:
            who = f" by process {owner[0]} ({owner[1]})" if owner else ""
            yield f"cannot bind port {port}: {error.strerror}{who}"
