"""``status``: is it serving, what broke, what was done, what to do; then everything in lines."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from watchdog.cli.client import fail, request, socket_path
from watchdog.cli.root import common, examples
from watchdog.cli.tables import columns
from watchdog.cli.words import gpu_line, second, shown
from watchdog.web.deeds import OUTCOMES
from watchdog.web.pasted import pasted, unusual
from watchdog.web.saying import word

_SHOWN = 5
_ANSWERS = (("BROKE", "broke"), ("DID", "did"))
_HEAD = ("ENGINE", "STATE", "VERDICT", "PID", "STARTS", "BUDGET", "WHY")
_LONGEST = 600
"""Characters of an answer; ``--json`` has it whole."""
_INDENT = 9
_DUTY = "TO DO"

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
    click.echo(json.dumps(found) if as_json else render(found, named(state_dir)))


def named(state_dir: Path | None) -> str:
    """The state directory that commands have to be told; "" for the one that they find."""
    return unusual(socket_path(state_dir).parent)


def known(found: Body) -> bool:
    """Whether it has what we show; that of a daemon before an upgrade may lack some of it."""
    try:
        render(found)
    except (LookupError, TypeError, ValueError, AttributeError):
        return False
    return True


def render(found: Body, where: str = "", width: int = 0) -> str:
    """The status as text. Control characters of hostile names are shown, not obeyed.

    ``where`` is the state directory for the commands; ``width`` that of the answers, 0 for any.
    """
    told = (*answers(found["answers"], width, where), "", *_lines(found))
    return "\n".join(pasted(shown(line), where) for line in told)


def _lines(found: Body) -> Iterator[str]:
    yield f"vllm-watchdog {found['version']}, mode {found['mode']}"
    if found["paused"]:
        reason = str(found["paused"]["reason"])
        cut = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
        yield f"paused by {found['paused']['owner']}: {cut}"
    yield ""
    yield from columns(_HEAD, [_engine(one) for one in found["engines"]])
    yield from map(gpu_line, found["gpus"])
    yield from ("", "FINDINGS" if found["findings"] else "no findings")
    for finding in found["findings"]:
        above = finding.get("inhibited_by")
        outranked = f"  (outranked by {above})" if above else ""
        about = str(finding["subject"]).replace("host/host", "this host")
        yield f"  {finding['severity']:<9} {finding['rule']} on {about}{outranked}"
        fix = finding.get("task", finding["fix"])
        yield from [f"            fix: {fix}"] if fix else []
    yield from ("", "INCIDENTS") if found["incidents"] else ()
    for incident in found["incidents"][:_SHOWN]:
        end = OUTCOMES.get(incident["outcome"], incident["outcome"]) or "open"
        began = second(incident.get("began") or incident["opened"])
        yield f"  {incident['id']}  {began}  {incident['rule']}  {end}"
    yield from ("", "CANNOT SEE OR KEEP") if found.get("lacks") else ()
    yield from (f"  {one}" for one in found.get("lacks", ()))


def answers(told: Body, width: int = 0, where: str = "") -> Iterator[str]:
    """The four answers, each with its word in front; too long for ``width`` they go on below."""
    todo = [
        one["text"] + (f"  (runbook {one['runbook']})" if one["runbook"] else "")
        for one in told["todo"]
    ]
    lines = (
        ("SERVING", [told["serving"]]),
        *((head, told[key]) for head, key in _ANSWERS),
        (_DUTY, todo or [told["rest"]]),
    )
    for head, texts in lines:
        for number, text in enumerate(texts):
            whole = pasted(shown(text), where)
            cut = whole if len(whole) <= _LONGEST or head is _DUTY else f"{whole[:_LONGEST]}…"
            yield from _wrapped(f"{head if not number else '':<{_INDENT}}", cut, width)


def _wrapped(head: str, text: str, width: int) -> Iterator[str]:
    """In lines of at most ``width``: a word that is longer than one is broken, nothing is lost."""
    if not width:
        yield f"{head}{text}"
        return
    room = max(width, _INDENT + 1)
    blank = " " * _INDENT
    lines = textwrap.wrap(
        text, room, initial_indent=head, subsequent_indent=blank, break_on_hyphens=False
    )
    yield from lines or [head.rstrip()]


def _engine(engine: Body) -> tuple[str, ...]:
    """A row of the table; what the start waits for is part of why it is as it is."""
    waits = (f"waits for {engine['waiting']}",) if engine.get("waiting") else ()
    blind = (str(engine["blind"]),) if engine.get("blind") else ()
    restarts = (engine["state"], engine.get("action")) == ("stopping", "restart_engine")
    breaker = ("BREAKER OPEN",) if engine["breaker_open"] else ()
    return (
        engine["name"],
        "restarting" if restarts else word(engine["state"]),
        word(engine["verdict"]),
        str(engine["pid"] or "-"),
        str(engine["starts"]),
        _budget(engine),
        "; ".join((*engine["reasons"], *blind, *waits, *breaker)),
    )


def _budget(engine: Body) -> str:
    """Restarts that are left, of how many; a daemon before an upgrade does not tell the latter."""
    if engine["state"] == "given_up":
        return "-"  # nobody starts it of what is left
    total = engine.get("budget_total")
    left = str(engine["budget_remaining"])
    return left if total is None else f"{left} of {total} left"
