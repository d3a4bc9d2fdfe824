"""The status page: whole without scripts, and kept fresh by a poll where they run."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from watchdog.core.model import Mode, Seconds
from watchdog.snapshot import Snapshot
from watchdog.web import answers, runbooks, sections
from watchdog.web.answers import Answers, Level
from watchdog.web.markup import text

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Only our own files run or paint; markup that slipped through could neither."""

_ASSETS: Mapping[str, str] = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}
_STUCK: Seconds = 10.0
_WORDS = {Level.GOOD: "serving", Level.WARNING: "attention", Level.BAD: "NOT SERVING"}

_Part = Callable[[Snapshot], str]
_PARTS: Mapping[str, _Part] = {
    "engines": sections.engines,
    "findings": sections.findings,
    "incidents": sections.incidents,
    "gpus": sections.gpus,
}


def render(snapshot: Snapshot, loop_age: Seconds = 0.0) -> bytes:
    """The page as UTF-8, below 100 KB whatever it has to show."""
    found = answers.answered(snapshot)
    parts = _parts(snapshot, found, loop_age)
    body = "".join(
        f'<section id="{name}" data-tag="{_tag(html)}">{html}</section>'
        for name, html in parts.items()
    )
    return _page(
        _title(found),
        f'<p id="alarm" class="alarm" hidden></p><main>{body}</main>',
        more='<noscript><meta http-equiv="refresh" content="5"></noscript>'
        '<script src="page.js" defer></script>',
        version=snapshot.version,
    )


def changes(snapshot: Snapshot, have: str, loop_age: Seconds = 0.0) -> dict[str, object]:
    """For the poll: the parts that differ from those that the page has, ``NAME.TAG,…``."""
    found = answers.answered(snapshot)
    known = {*have.split(",")}
    fresh = {
        name: {"tag": _tag(html), "html": html}
        for name, html in _parts(snapshot, found, loop_age).items()
        if f"{name}.{_tag(html)}" not in known
    }
    return {"version": snapshot.version, "title": _title(found), "parts": fresh}


def incident(snapshot: Snapshot, name: str) -> bytes | None:
    """One incident, whole; None when there is none of that id."""
    for one in snapshot.state.incidents:
        if one.id == name:
            inner = _back() + sections.whole_incident(snapshot, one)
            return _page(f"{one.id} {one.rule}", inner, up="../")
    return None


def runbook(name: str) -> bytes | None:
    """One page for on-call; None when there is none of that name."""
    found = runbooks.render(name)
    return None if found is None else _page(name, _back() + found, up="../")


def asset(name: str) -> tuple[bytes, str] | None:
    """A file of the page with its type; None when it is not one."""
    kind = _ASSETS.get(name)
    return None if kind is None else (_content(name), kind)


@cache
def _content(name: str) -> bytes:
    return (Path(__file__).parent / name).read_bytes()


def _parts(snapshot: Snapshot, found: Answers, loop_age: Seconds) -> Mapping[str, str]:
    return {
        "answers": _header(snapshot, loop_age) + sections.answers(found) + sections.lacks(snapshot),
        **{name: part(snapshot) for name, part in _PARTS.items()},
    }


def _header(snapshot: Snapshot, loop_age: Seconds) -> str:
    state = snapshot.state
    words = [f"vllm-watchdog {snapshot.version}", f"mode {state.mode.value}"]
    words += ["paused"] if state.pause is not None else []
    stuck = (
        f'<p class="alarm">The watchdog is stuck for {loop_age:.0f} s: what is below is old.</p>'
        if loop_age > _STUCK
        else ""
    )
    loud = ' class="alarm"' if state.mode is not Mode.ACT or state.pause is not None else ""
    return f"<h1{loud}>{text(', '.join(words))}</h1>{stuck}"


def _title(found: Answers) -> str:
    todo = ", something to do" if found.todo and found.level is Level.GOOD else ""
    return f"{_WORDS[found.level]}{todo} · vllm-watchdog"


def _tag(html: str) -> str:
    return f"{zlib.crc32(html.encode()):08x}"


def _back() -> str:
    return '<p><a href="../">status</a></p>'


def _page(title: str, inner: str, *, up: str = "", more: str = "", version: str = "") -> bytes:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f'<link rel="stylesheet" href="{up}page.css">{more}<title>{text(title)}</title></head>'
        f'<body data-version="{text(version)}">{inner}</body></html>'
    ).encode("utf-8", errors="replace")
