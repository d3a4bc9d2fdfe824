"""``status --watch``: the whole screen, drawn again in place, and below it what changed."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from watchdog.cli.client import socket_path
from watchdog.cli.status import known, named, render
from watchdog.cli.words import shown
from watchdog.core.model import Seconds

_PERIOD: Seconds = 2.0
_PATIENCE: Seconds = 5.0
_KEPT = 6
_STYLES = {"good": "bold green", "warning": "bold yellow", "bad": "bold red"}

Body = Mapping[str, Any]


def watched(first: Body, state_dir: Path | None, *, as_json: bool) -> None:
    """Show ``first`` and what follows until interrupted.

    On a terminal it is one screen; in a pipe, or where nothing can be drawn again, a text whenever
    it changes, or with ``as_json`` a line each time.
    """
    signal.signal(signal.SIGTERM, _leave)
    try:
        if as_json:
            _lines(first, state_dir)
        elif sys.stdout.isatty():
            _screen(first, state_dir)
        else:
            _stream(first, state_dir)
    except KeyboardInterrupt:
        return


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """The terminal gets its own screen and its cursor back on the way out."""
    sys.exit(128 + number)


def _looks(first: Body, state_dir: Path | None) -> Iterator[Body | None]:
    """The status, again and again; None while no daemon answers: one that restarts comes back."""
    yield first
    while True:
        time.sleep(_PERIOD)
        yield _asked(state_dir)


def _asked(state_dir: Path | None) -> Body | None:
    import httpx

    where = socket_path(state_dir)
    if not where.exists():  # httpx forgets to close a socket that found nobody
        return None
    try:
        transport = httpx.HTTPTransport(uds=str(where))
        with httpx.Client(transport=transport, timeout=_PATIENCE, trust_env=False) as client:
            found: Any = client.get("http://daemon/api/v1/status").json()
    except (httpx.HTTPError, ValueError, OSError):
        return None
    return found if isinstance(found, dict) and known(found) else None


def _lines(first: Body, state_dir: Path | None) -> None:
    for found in _looks(first, state_dir):
        click.echo(json.dumps(found))


def _stream(first: Body, state_dir: Path | None) -> None:
    before = ""
    for found in _looks(first, state_dir):
        text = _SILENT if found is None else render(found, named(state_dir))
        if text != before:
            click.echo(f"{_clock()}\n{text}\n")
        before = text


_SILENT = "no daemon answers, or one of another version"


def _screen(first: Body, state_dir: Path | None) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if console.is_dumb_terminal:
        _stream(first, state_dir)
        return
    changed: deque[str] = deque(maxlen=_KEPT)
    last, heard, where = first, _clock(), named(state_dir)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for found in _looks(first, state_dir):
            if found is not None:
                changed.extendleft(f"{_clock()}  {line}" for line in changes(last, found))
                last, heard = found, _clock()
            silent = f"{_SILENT}: this is how it was at {heard} UTC" if found is None else ""
            told = render(last, where, console.width)
            level = last["answers"]["level"]
            live.update(_picture(told, level, tuple(changed), silent), refresh=True)


def _picture(told: str, level: str, changed: tuple[str, ...], silent: str) -> Any:  # noqa: ANN401 - rich's
    """Rich takes no text of ours as markup: it is ``Text`` with one style a line.

    The answers in ``told`` fit the screen; of what stands below, the ends of lines may be cut.
    """
    from rich.text import Text

    answered, _, rest = told.partition("\n\n")
    serving, _, others = answered.partition("\nBROKE")
    picture = Text(no_wrap=True, overflow="ellipsis")
    if silent:
        picture.append(f"{silent}\n", "bold reverse red")
    picture.append(f"{serving}\n", _STYLES.get(level, ""))
    picture.append(f"BROKE{others}\n\nCHANGED SINCE YOU LOOK (UTC, newest first)\n")
    picture.append("\n".join(f"  {shown(line)}" for line in changed) or "  nothing")
    picture.append(f"\n\n{rest}")
    return picture


def changes(before: Body, after: Body) -> Iterator[str]:
    """What is different, a line each; figures that move all the time are not told."""
    yield from _engines(before, after)
    yield from _findings(before, after)
    yield from _incidents(before, after)
    for key in ("mode", "version"):
        if before[key] != after[key]:
            yield f"{key}: {before[key]} -> {after[key]}"
    if bool(before["paused"]) != bool(after["paused"]):
        yield "paused" if after["paused"] else "resumed"


def _engines(before: Body, after: Body) -> Iterator[str]:
    old = {one["name"]: one for one in before["engines"]}
    for one in after["engines"]:
        was = old.pop(one["name"], None)
        why = f" ({one['reasons'][0]})" if one["reasons"] else ""
        if was is None:
            yield f"{one['name']}: new, {one['verdict']}"
        elif was["verdict"] != one["verdict"]:
            yield f"{one['name']}: {was['verdict']} -> {one['verdict']}{why}"
        elif was["generation"] != one["generation"]:
            yield f"{one['name']}: started anew"
    yield from (f"{name}: gone" for name in old)


def _findings(before: Body, after: Body) -> Iterator[str]:
    old, new = (
        {(one["rule"], one["subject"]): one["severity"] for one in body["findings"]}
        for body in (before, after)
    )
    yield from (f"fires: {k[0]} on {k[1]} ({new[k]})" for k in new if k not in old)
    yield from (f"resolved: {k[0]} on {k[1]}" for k in old if k not in new)


def _incidents(before: Body, after: Body) -> Iterator[str]:
    old = {one["id"]: one["outcome"] for one in before["incidents"]}
    for one in after["incidents"]:
        if one["id"] not in old:
            yield f"{one['id']}: {one['outcome'] or 'opened'}"
        elif old[one["id"]] != one["outcome"]:
            yield f"{one['id']}: {one['outcome']}"


def _clock() -> str:
    return datetime.now(UTC).strftime("%H:%M:%S")
