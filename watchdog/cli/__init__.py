"""The command line: one module a command. The only place that imports click and rich."""

from __future__ import annotations

import sys

from watchdog.names import conflict


def main() -> None:
    """The entry point ``vllm-watchdog``."""
    rival = conflict()
    if rival is not None:
        print(rival, file=sys.stderr)  # noqa: T201 - this is the command line
        sys.exit(2)
    if sys.argv[1:2] == ["simulate-engine"]:  # its start-up is its feature: without click
        from watchdog.simulator import cli

        sys.exit(cli.main(sys.argv[2:]))
    from watchdog.cli.root import root

    root(prog_name="vllm-watchdog")
