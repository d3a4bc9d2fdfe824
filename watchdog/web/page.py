"""The status page: plain HTML that needs neither scripts nor assets, and shows the same facts."""

from __future__ import annotations

from html import escape

from watchdog.snapshot import Snapshot
from watchdog.web import bodies

_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="5"><title>vllm-watchdog</title>
<style>body{font:15px system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3em .6em;
border-bottom:1px solid #8884;overflow-wrap:anywhere}</style></head><body>"""

_ENGINE = (
    *("name", "state", "verdict", "reasons", "waiting"),
    *("pid", "starts", "budget_remaining", "since"),
)


def render(snapshot: Snapshot) -> bytes:
    """The page as UTF-8; every value is escaped."""
    state = snapshot.state
    paused = " · paused" if state.pause is not None else ""
    parts = [_HEAD, f"<h1>vllm-watchdog</h1><p>mode {escape(state.mode.value)}{paused}</p>"]
    parts.append(
        _table(
            "Engines",
            _ENGINE,
            [bodies.engine(snapshot, one) for one in state.engines.values()],
        )
    )
    columns: tuple[str, ...] = (
        "index",
        "utilization_percent",
        "memory_used_bytes",
        "temperature_celsius",
    )
    parts.append(_table("GPUs", columns, bodies.gpus(snapshot)))
    columns = ("rule", "subject", "severity", "summary", "since")
    parts.append(_table("Findings", columns, bodies.findings(snapshot)))
    incidents = [bodies.brief(snapshot, one) for one in reversed(state.incidents)]
    columns = ("id", "rule", "subject", "cause", "opened", "resolved", "outcome")
    parts.append(_table("Incidents", columns, incidents))
    parts.append("</body></html>")
    return "".join(parts).encode()


def _table(title: str, columns: tuple[str, ...], rows: list[bodies.Body]) -> str:
    if not rows:
        return f"<h2>{title}</h2><p>none</p>"
    head = "".join(f"<th>{column.replace('_', ' ')}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row.get(column))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f"<h2>{title}</h2><table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, list):
        value = "; ".join(str(item) for item in value)
    return "" if value is None else escape(str(value))
