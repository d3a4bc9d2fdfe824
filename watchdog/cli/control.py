"""The commands that change something, by way of the Unix socket."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path

import click

from watchdog.cli.client import fail, request
from watchdog.cli.root import common, examples
from watchdog.config import parse_duration

_ENGINE = click.argument("engine", default="", metavar="[ENGINE]")


def _send(  # noqa: PLR0913 - the parts of one command
    verb: str,
    state_dir: Path | None,
    *,
    as_json: bool,
    engine: str = "",
    reason: str = "",
    seconds: float | None = None,
) -> None:
    for name, text in (("ENGINE", engine), ("--reason", reason)):
        if not _is_utf8(text):
            fail(f"{name}: expected a text in UTF-8", 2)
    body = {"engine": engine, "reason": reason, "owner": _user(), "seconds": seconds}
    answer = request(state_dir, "POST", f"/control/{verb}", body)
    if as_json:
        click.echo(json.dumps(answer))
        sys.exit(int(answer.get("exit_code", 1)))
    if not answer.get("ok"):
        fail(str(answer.get("message")), int(answer.get("exit_code", 1)))
    click.echo(answer["message"])


def _user() -> str:
    try:
        return getpass.getuser().encode(errors="backslashreplace").decode()
    except (KeyError, OSError):
        return "unknown"


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


@click.command(
    short_help="Start an engine that is stopped or given up.",
    epilog=examples("start", "start main"),
)
@_ENGINE
@common
def start(engine: str, config: Path | None, state_dir: Path | None, as_json: bool) -> None:  # noqa: ARG001, FBT001
    """Start an engine that is stopped or given up; returns at the spawn."""
    _send("start", state_dir, as_json=as_json, engine=engine)


@click.command(
    short_help="Stop an engine, and keep it stopped.", epilog=examples("stop", "stop main")
)
@_ENGINE
@common
def stop(engine: str, config: Path | None, state_dir: Path | None, as_json: bool) -> None:  # noqa: ARG001, FBT001
    """Stop an engine and keep it stopped; returns when not one process is alive."""
    _send("stop", state_dir, as_json=as_json, engine=engine)


@click.command(
    short_help="Drain, stop and start an engine.", epilog=examples("restart", "restart main")
)
@_ENGINE
@common
def restart(engine: str, config: Path | None, state_dir: Path | None, as_json: bool) -> None:  # noqa: ARG001, FBT001
    """Drain, stop and start an engine."""
    _send("restart", state_dir, as_json=as_json, engine=engine)


@click.command(
    short_help="Look and judge, but do not act.",
    epilog=examples('pause --reason "upgrade of the driver" --for 30m'),
)
@click.option("--reason", required=True, help="Why; shown to everybody who looks.")
@click.option("--for", "duration", metavar="30m", help="How long; default: until `resume`.")
@common
def pause(
    reason: str,
    duration: str | None,
    config: Path | None,  # noqa: ARG001 - every command takes it
    state_dir: Path | None,
    as_json: bool,  # noqa: FBT001 - click calls by name
) -> None:
    """Look and judge, but do not act."""
    try:
        seconds = None if duration is None else parse_duration(duration)
    except ValueError as error:
        fail(f"--for: {error}", 2)
    if not reason.strip():
        fail("--reason: expected some words: everybody who looks is told", 2)
    _send("pause", state_dir, as_json=as_json, reason=reason, seconds=seconds)


@click.command(short_help="End a pause.", epilog=examples("resume"))
@common
def resume(config: Path | None, state_dir: Path | None, as_json: bool) -> None:  # noqa: ARG001, FBT001
    """End a pause. What piled up is not acted upon: it must hold anew."""
    _send("resume", state_dir, as_json=as_json)


@click.command(
    short_help="Close an open breaker.", epilog=examples("reset-breaker", "reset-breaker main")
)
@_ENGINE
@common
def reset_breaker(engine: str, config: Path | None, state_dir: Path | None, as_json: bool) -> None:  # noqa: ARG001, FBT001
    """Close an open breaker, clear the account, and start what should be running."""
    _send("reset-breaker", state_dir, as_json=as_json, engine=engine)


@click.command(
    short_help="Read the configuration again, apply what changed.",
    epilog=examples("reload", "reload --json"),
)
@common
def reload(config: Path | None, state_dir: Path | None, as_json: bool) -> None:  # noqa: ARG001, FBT001
    """Read the configuration again: all of it is applied, or with an error nothing.

    No engine restarts for a change that is not its own. Exit code 2 when the file is refused.
    """
    _send("reload", state_dir, as_json=as_json)
