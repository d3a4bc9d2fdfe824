"""``status``: is it serving, what broke, what was done, what to do; then everything in lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from watchdog.cli.client import fail, request
from watchdog.cli.root import common, examples
from watchdog.cli.tables import columns
from watchdog.cli.words import gpu_line, shown

_SHOWN = 5
_ANSWERS = (("BROKE", "broke"), ("DID", "did"))
_HEAD = ("ENGINE", "STATE", "VERDICT", "PID", "STARTS", "BUDGET", "WHY")
_LONGEST = 300
"""Characters of an answer; ``--json`` has it whole."""

Body = Mapping[str, Any]


@click.command(epilog=examples("status", "status --watch", "status --json | jq .engines"))
@click.option("--watch", is_flag=True, help="Stay, and show what changes.")
@common
def status(watch: bool, config: Path | None, state_dir: Path | None, as_json: bool) -> None:  # noqa: ARG001, FBT001
    """Show what the daemon sees. Exit code 3 when there is no daemon.

    First: is it serving, what broke, what did the watchdog do, what must I do.
    """
    found = request(state_dir, "GET", "/api/v1/status")
    if not as_json and not known(found):
        version = shown(str(found.get("version", "unknown")))
        fail(f"the daemon has version {version} and answers in words not known here; try --json", 1)
    if watch:
        from watchdog.cli.watching import watched

        watched(found, state_dir, as_json=as_json)
        return
    click.echo(json.dumps(found) if as_json else render(found))


def known(found: Body) -> bool:
    """Whether it has what we show; that of a daemon before an upgrade may lack some of it."""
    try:
        render(found)
    except (LookupError, TypeError, ValueError, AttributeError):
        return False
    return True


def render(found: Body) -> str:
    """The status as text. Control characters of hostile names are shown, not obeyed."""
    return "\n".join(shown(line) for line in _lines(found))


def _lines(found: Body) -> Iterator[str]:
    yield from answers(found["answers"])
    yield ""
    yield f"vllm-watchdog {found['version']}, mode {found['mode']}"
    if found["paused"]:
        yield f"paused by {found['paused']['owner']}: {found['paused']['reason']}"
    yield ""
    yield from columns(_HEAD, [_engine(one) for one in found["engines"]])
    yield from map(gpu_line, found["gpus"])
    yield from ("", "FINDINGS" if found["findings"] else "no findings")
    for finding in found["findings"]:
        yield f"  {finding['severity']:<9} {finding['rule']} on {finding['subject']}"
        yield from [f"            fix: {finding['fix']}"] if finding.get("fix") else []
    for incident in found["incidents"][:_SHOWN]:
        end = incident["outcome"] or "open"
        yield f"{incident['id']}  {incident['opened']}  {incident['rule']}  {end}"


def answers(told: Body) -> Iterator[str]:
    """The four answers, each with its word in front."""
    todo = [
        one["text"] + (f"  (runbook {one['runbook']})" if one["runbook"] else "")
        for one in told["todo"]
    ]
    lines = (
        ("SERVING", [told["serving"]]),
        *((word, told[key]) for word, key in _ANSWERS),
        ("TO DO", todo or [told["rest"]]),
    )
    for word, texts in lines:
        for number, text in enumerate(texts):
            cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
            yield f"{word if not number else '':<9}{cut}"


def _engine(engine: Body) -> tuple[str, ...]:
    """A row of the table; what the start waits for is part of why it is as it is."""
    waits = (f"waits for {engine['waiting']}",) if engine.get("waiting") else ()
    breaker = ("BREAKER OPEN",) if engine["breaker_open"] else ()
    return (
        engine["name"],
        engine["state"],
        engine["verdict"],
        str(engine["pid"] or "-"),
        str(engine["starts"]),
        str(engine["budget_remaining"]),
        "; ".join((*engine["reasons"], *waits, *breaker)),
    )
