"""``replay``: a recording against today's rules: what would have been decided, and when."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from watchdog.cli.check import USAGE, built, load, refusing
from watchdog.cli.client import fail
from watchdog.cli.root import common, examples
from watchdog.cli.tables import columns
from watchdog.cli.words import shown
from watchdog.config import parse_duration
from watchdog.config import state_dir as find_state_dir
from watchdog.core.model import Decision, Mode
from watchdog.recorder import RecordingError, read
from watchdog.replay import Found, Report, Row
from watchdog.replay import replay as replayed

_HEAD = ("TIME", "SUBJECT", "RULE", "NOW", "", "THEN")
_NONE = "-"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command(
    short_help="Judge a recording by today's rules.",
    epilog=examples("replay --since 24h", "replay /backup/recording --config new.toml --mode act"),
)
@click.argument("recording", required=False, type=click.Path(path_type=Path))
@click.option("--since", metavar="24h", help="Only what happened in the last 24 hours.")
@click.option("--findings", is_flag=True, help="Also what fired and was resolved.")
@click.option("--mode", type=click.Choice(["observe", "act"]), help="As if it had run so.")
@common
def replay(  # noqa: PLR0913, PLR0917 - one parameter an option, all given by name
    recording: Path | None,
    since: str | None,
    findings: bool,  # noqa: FBT001 - click calls by name
    mode: str | None,
    config: Path | None,
    state_dir: Path | None,
    as_json: bool,  # noqa: FBT001 - as above
) -> None:
    """Feed RECORDING, by default the one in the state directory, to today's rules and policy.

    Shows each decision of now beside the one of then. What "would" be done did not happen, so what
    follows of it is a guess. Needs no daemon.
    """
    with refusing():
        loaded = load(config, ())
        rules = built(loaded)
    start = None if since is None else time.time() - _seconds(since)
    path = recording if recording is not None else find_state_dir(state_dir, os.environ)
    try:
        report = replayed(
            read(path, _say, start),
            rules,
            loaded.policy.core(),
            since=start,
            mode=None if mode is None else Mode(mode),
        )
    except RecordingError as error:
        fail(shown(str(error)), USAGE)
    if as_json:
        click.echo(json.dumps(body(report, findings=findings)))
    else:
        click.echo("\n".join(rendered(report, findings=findings)))


def rendered(report: Report, *, findings: bool) -> Iterator[str]:
    """The table and the summary. Control characters of hostile names are shown, not obeyed."""
    lines = [(row.wall, _line(row)) for row in report.rows]
    if findings:
        lines += [(found.wall, _found(found)) for found in report.findings]
    lines.sort(key=lambda pair: pair[0])
    if lines:
        yield from columns(_HEAD, [line for _, line in lines])
        yield ""
    yield from _summary(report)


def body(report: Report, *, findings: bool) -> dict[str, Any]:
    """The same for machines."""
    told: dict[str, Any] = {
        "events": report.events,
        "began": _instant(report.began),
        "ended": _instant(report.ended),
        "span_seconds": report.span,
        "runs": report.runs,
        "lost": report.lost,
        "acts_now": report.acts_now,
        "acts_then": report.acts_then,
        "differences": report.differences,
        "left_out": report.left_out,
        "errors": report.bugs,
        "decisions": [_row(row) for row in report.rows],
    }
    if findings:
        told["findings"] = [
            {
                "time": _instant(found.wall),
                "subject": found.subject,
                "rule": found.rule,
                "severity": found.severity,
                "resolved": found.resolved,
            }
            for found in report.findings
        ]
    return told


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        fail(f"--since: {error}", USAGE)


def _say(line: str) -> None:
    click.echo(shown(line), err=True)


def _line(row: Row) -> tuple[str, ...]:
    now = _words(row.now)
    now = f"would {now}" if row.would else now
    sign = "=" if row.same else "!"
    return (_time(row.wall), str(row.subject), row.rule, now, sign, _words(row.then))


def _found(found: Found) -> tuple[str, ...]:
    what = "resolved" if found.resolved else f"fires ({found.severity})"
    return (_time(found.wall), found.subject, found.rule, what, "", "")


def _words(decision: Decision | None) -> str:
    if decision is None:
        return _NONE
    return decision.action if decision.hold is None else f"hold {decision.hold.value}"


def _summary(report: Report) -> Iterator[str]:
    if report.began is None:
        yield "no events"
        return
    span = timedelta(seconds=round(report.span))
    yield (
        f"{report.events} events in {span} from {_time(report.began)}: "
        f"{report.acts_now} acts now, {report.acts_then} then, {report.differences} differences"
    )
    if report.lost:
        yield f"{report.lost} events were lost when it was recorded"
    if report.left_out:
        yield f"{report.left_out} more lines are not shown"
    if report.bugs:
        yield f"{report.bugs} events could not be judged: this is a bug, please report it"


def _row(row: Row) -> dict[str, Any]:
    return {
        "time": _instant(row.wall),
        "subject": str(row.subject),
        "rule": row.rule,
        "now": _decision(row.now),
        "then": _decision(row.then),
        "same": row.same,
        "would": row.would,
    }


def _decision(decision: Decision | None) -> dict[str, Any] | None:
    if decision is None:
        return None
    return {
        "action": decision.action,
        "hold": None if decision.hold is None else decision.hold.value,
        "cause": decision.cause.value,
    }


def _instant(wall: float | None) -> str | None:
    return None if wall is None else _time(wall)


def _time(wall: float) -> str:
    """RFC 3339 in UTC, to the millisecond; a time that no calendar has stays a number."""
    try:
        moment = _EPOCH + timedelta(seconds=wall)
    except (OverflowError, ValueError):
        return f"{wall:g}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
