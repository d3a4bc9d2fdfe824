"""The command line: one module a command. The only place that imports click and rich."""

from __future__ import annotations

import os
import signal
import sys

from watchdog.names import conflict


def main() -> None:
    """The entry point ``vllm-watchdog``."""
    if os.getpid() == 1:
        _can_be_ended()
    rival = conflict()
    if rival is not None:
        print(rival, file=sys.stderr)  # noqa: T201 - this is the command line
        sys.exit(2)
    if sys.argv[1:2] == ["simulate-engine"]:  # its start-up is its feature: without click
        from watchdog.simulator import cli

        sys.exit(cli.main(sys.argv[2:]))
    from watchdog.cli.root import root

    root(prog_name="vllm-watchdog")


def _can_be_ended() -> None:
    """The kernel drops signals to PID 1 that nobody handles: no stop must be lost to imports.

    Nothing has been started yet. Whoever starts something handles them in another way.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda got, _frame: os._exit(128 + got))
