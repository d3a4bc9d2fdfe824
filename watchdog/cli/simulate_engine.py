"""``simulate-engine``: listed here for the help; ``main`` forwards to it without click."""

from __future__ import annotations

import sys

import click


@click.command(
    short_help="Run the embedded engine on its own.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def simulate_engine(arguments: tuple[str, ...]) -> None:
    """Run the embedded engine on its own (--port, --fault, --startup-time …)."""
    from watchdog.simulator import cli

    sys.exit(cli.main(arguments))
