"""The command line: one module a command. The only place that imports click and rich."""

from __future__ import annotations

import os
import sys

from watchdog import stops

_TAKE_A_VALUE = frozenset({"--config", "--state-dir"})


def main() -> None:
    """The entry point ``vllm-watchdog``."""
    words = sys.argv[1:]
    if _command(words) == "run":  # before all that takes time to import: no stop may be lost to it
        stops.keep()
    elif os.getpid() == 1:
        stops.can_be_ended()
    from watchdog.names import conflict

    rival = conflict()
    if rival is not None:
        print(rival, file=sys.stderr)  # noqa: T201 - this is the command line
        sys.exit(2)
    if words[:1] == ["simulate-engine"]:  # its start-up is its feature: without click
        from watchdog.simulator import cli

        sys.exit(cli.main(words[1:]))
    from watchdog.cli.root import root

    root(prog_name="vllm-watchdog")


def _command(words: list[str]) -> str:
    """The command among ``words``, behind the options that may stand in front of it."""
    rest = iter(words)
    for word in rest:
        if word in _TAKE_A_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            return word
    return ""
