"""The group that all commands hang on, loaded one at a time, and the options that all share."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from watchdog import __version__

COMMANDS = {
    "run": "run",
    "check": "check",
    "doctor": "doctor",
    "status": "status",
    "incidents": "incidents",
    "start": "control",
    "stop": "control",
    "restart": "control",
    "pause": "control",
    "resume": "control",
    "reset-breaker": "control",
    "reload": "control",
    "sweep": "sweep",
    "replay": "replay",
    "drill": "drill",
    "rules": "rules",
    "probes": "probes",
    "schema": "schema",
    "simulate-engine": "simulate_engine",
}


def examples(*lines: str) -> str:
    """The end of a help text; click keeps the lines apart."""
    return "\n".join(("\b", "Examples:", *(f"  vllm-watchdog {line}" for line in lines)))


class Lazy(click.Group):
    """Imports the module of a command when it is asked for, and no other."""

    def list_commands(self, _: click.Context) -> list[str]:
        """In the order of the documentation."""
        return list(COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """The command of that name."""
        module = COMMANDS.get(name)
        if module is None:
            return None
        found = importlib.import_module(f"watchdog.cli.{module}")
        command: click.Command = getattr(found, name.replace("-", "_"))
        return command


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--config``, ``--state-dir`` and ``--json``, before the command or after it.

    What stands after the command wins.
    """

    @functools.wraps(function)
    def merged(*args: Any, **given: Any) -> Any:  # noqa: ANN401 - whatever the command takes
        parent = click.get_current_context().parent
        for name in _COMMON:
            given[name] = given.get(name) or (parent.params.get(name) if parent else None)
        return function(*args, **given)

    return _optioned(merged)


_COMMON = ("config", "state_dir", "as_json")


def _optioned(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print data as JSON."),
        click.option(
            "--state-dir",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="Where state and socket are.",
        ),
        click.option(
            "--config",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="The configuration (TOML).",
        ),
    ):
        function = option(function)
    return function


@click.group(
    cls=Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "run -- vllm serve Qwen/Qwen3-0.6B --port 8000",
        "run --simulate",
        "status",
        'pause --reason "upgrade of the driver" --for 30m',
    ),
)
@_optioned
@click.version_option(__version__, prog_name="vllm-watchdog")
def root(**_: object) -> None:
    """Keep vLLM engines serving tokens: prove it, restart them when they do not, say why."""
