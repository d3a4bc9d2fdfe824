"""``run``: the daemon in the foreground."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import click

from watchdog.cli.root import common, examples
from watchdog.options import RunOptions


@click.command(
    short_help="Run the watchdog, in the foreground.",
    epilog=examples(
        "run -- vllm serve Qwen/Qwen3-0.6B --port 8000",
        "run --config watchdog.toml --mode observe",
        "run --simulate",
        "run --attach report -- vllm serve --port 8000",
    ),
)
@click.option("--listen", metavar="HOST:PORT", help="Metrics and health (127.0.0.1:9909).")
@click.option("--mode", type=click.Choice(["observe", "act"]), help="observe touches nothing.")
@click.option("--simulate", is_flag=True, help="Supervise the embedded simulated engine.")
@click.option("--attach", type=click.Choice(["report", "signal"]), help="COMMAND runs already.")
@click.option("--no-engine", is_flag=True, help="Watch the box alone: GPUs and host.")
@click.option("--on-exit", type=click.Choice(["stop", "leave"]), default="stop", show_default=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@common
def run(  # noqa: PLR0913, PLR0917 - one parameter an option, all given by name
    listen: str | None,
    mode: str | None,
    simulate: bool,  # noqa: FBT001 - click calls by name
    attach: str | None,
    no_engine: bool,  # noqa: FBT001 - as above
    on_exit: str,
    command: tuple[str, ...],
    config: Path | None,
    state_dir: Path | None,
    as_json: bool,  # noqa: FBT001, ARG001 - as above; the log is JSON in any case
) -> None:
    """Run the watchdog in front of COMMAND, or of the engines of the configuration."""
    gc.disable()  # nothing of what a start makes is garbage; the daemon goes on with it
    from watchdog import daemon

    if simulate and command:
        raise click.UsageError("--simulate and a COMMAND exclude each other")
    if no_engine and (simulate or command):
        raise click.UsageError("--no-engine excludes a COMMAND and --simulate")
    if attach and not command:
        raise click.UsageError("--attach needs the COMMAND of the engine that somebody else starts")
    options = RunOptions(
        config=config,
        state_dir=state_dir,
        listen=listen,
        mode=mode,
        command=command,
        simulate=simulate,
        leave_on_exit=on_exit == "leave",
        attach=attach,
        no_engine=no_engine,
    )
    sys.exit(daemon.run(options))
