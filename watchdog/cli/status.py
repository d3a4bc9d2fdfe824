"""``status``: engines, GPUs, findings, budgets, last incidents."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from watchdog.cli.client import request
from watchdog.cli.root import common, examples

_WATCH_PERIOD = 2.0
_SHOWN = 5
_COLUMNS = "ENGINE      STATE       VERDICT     PID      STARTS  BUDGET  WHY"
_SERVING = frozenset({"ready", "busy"})


@click.command(epilog=examples("status", "status --watch", "status --json | jq .engines"))
@click.option("--watch", is_flag=True, help="Again every two seconds.")
@common
def status(watch: bool, config: Path | None, state_dir: Path | None, as_json: bool) -> None:  # noqa: ARG001, FBT001
    """Show what the daemon sees. Exit code 3 when there is no daemon."""
    while True:
        found = request(state_dir, "GET", "/api/v1/status")
        if watch:
            click.clear()
        if not as_json and sys.stdout.isatty():
            _paint(found)
        else:
            click.echo(json.dumps(found) if as_json else render(found))
        if not watch:
            return
        time.sleep(_WATCH_PERIOD)


def render(found: dict[str, Any]) -> str:
    """The status as text. Control characters of hostile names are shown, not obeyed."""
    lines = [f"vllm-watchdog {found['version']}, mode {found['mode']}"]
    if found["paused"]:
        lines.append(f"paused by {found['paused']['owner']}: {found['paused']['reason']}")
    lines += ["", _COLUMNS]
    for engine in found["engines"]:
        why = "; ".join(engine["reasons"]) + (" BREAKER OPEN" if engine["breaker_open"] else "")
        lines.append(
            f"{engine['name']:<11} {engine['state']:<11} {engine['verdict']:<11} "
            f"{engine['pid'] or '-':<8} {engine['starts']:<7} {engine['budget_remaining']:<7} {why}"
        )
    for gpu in found["gpus"]:
        lines.append(f"gpu {gpu['index']}: {gpu.get('utilization_percent', '?')} % {gpu['uuid']}")
    lines += ["", "FINDINGS" if found["findings"] else "no findings"]
    for finding in found["findings"]:
        lines.append(f"  {finding['severity']:<9} {finding['rule']} on {finding['subject']}")
    for incident in found["incidents"][:_SHOWN]:
        end = incident["outcome"] or "open"
        lines.append(f"{incident['id']}  {incident['opened']}  {incident['rule']}  {end}")
    return "\n".join(_shown(line) for line in lines)


def _paint(found: dict[str, Any]) -> None:
    """The status for a terminal; rich honours ``NO_COLOR``."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = ("name", "state", "verdict", "pid", "starts", "budget_remaining", "reasons")
    table = Table(*(column.replace("_", " ") for column in columns), box=None)
    for engine in found["engines"]:
        row = {**engine, "reasons": "; ".join(engine["reasons"])}
        style = "green" if engine["verdict"] in _SERVING else "red"
        cells = (_shown(str("-" if row[c] is None else row[c])) for c in columns)
        table.add_row(*(Text(cell) for cell in cells), style=style)
    above, _, below = render({**found, "engines": []}).partition(_COLUMNS)
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(above.rstrip() + "\n", table, below, sep="\n")


def _shown(line: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
