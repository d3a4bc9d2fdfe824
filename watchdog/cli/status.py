"""``status``: engines, GPUs, findings, budgets, last incidents."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from watchdog.cli.client import request
from watchdog.cli.root import common, examples
from watchdog.cli.words import gpu_line, shown

_WATCH_PERIOD = 2.0
_SHOWN = 5


@click.command(epilog=examples("status", "status --watch", "status --json | jq .engines"))
@click.option("--watch", is_flag=True, help="Again every two seconds.")
@common
def status(watch: bool, config: Path | None, state_dir: Path | None, as_json: bool) -> None:  # noqa: ARG001, FBT001
    """Show what the daemon sees. Exit code 3 when there is no daemon."""
    while True:
        found = request(state_dir, "GET", "/api/v1/status")
        if watch:
            click.clear()
        click.echo(json.dumps(found) if as_json else render(found))
        if not watch:
            return
        time.sleep(_WATCH_PERIOD)


def render(found: dict[str, Any]) -> str:
    """The status as text. Control characters of hostile names are shown, not obeyed."""
    lines = [f"vllm-watchdog {found['version']}, mode {found['mode']}"]
    if found["paused"]:
        lines.append(f"paused by {found['paused']['owner']}: {found['paused']['reason']}")
    lines += ["", "ENGINE      STATE       VERDICT     PID      STARTS  BUDGET  WHY"]
    for engine in found["engines"]:
        lines.append(
            f"{engine['name']:<11} {engine['state']:<11} {engine['verdict']:<11} "
            f"{engine['pid'] or '-':<8} {engine['starts']:<7} {engine['budget_remaining']:<7} "
            f"{_why(engine)}"
        )
    for gpu in found["gpus"]:
        lines.append(gpu_line(gpu))
    lines += ["", "FINDINGS" if found["findings"] else "no findings"]
    for finding in found["findings"]:
        lines.append(f"  {finding['severity']:<9} {finding['rule']} on {finding['subject']}")
        lines += [f"            fix: {finding['fix']}"] if finding.get("fix") else []
    for incident in found["incidents"][:_SHOWN]:
        end = incident["outcome"] or "open"
        lines.append(f"{incident['id']}  {incident['opened']}  {incident['rule']}  {end}")
    return "\n".join(shown(line) for line in lines)


def _why(engine: Mapping[str, Any]) -> str:
    """Why it is as it is, and what its start waits for."""
    waits = (f"waits for {engine['waiting']}",) if engine.get("waiting") else ()
    breaker = " BREAKER OPEN" if engine["breaker_open"] else ""
    return "; ".join((*engine["reasons"], *waits)) + breaker
