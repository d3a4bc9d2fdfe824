"""The parts of the status page. Each is bounded, and shows what it leaves out as a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from watchdog.core import timeline
from watchdog.core.engine import firing
from watchdog.core.model import (
    SERVING,
    Entry,
    Finding,
    HoldReason,
    Incident,
    ProcessState,
    Seconds,
    Severity,
    Subject,
    Verdict,
)
from watchdog.core.state import EngineState
from watchdog.snapshot import Snapshot
from watchdog.web import bodies, deeds, markup, runbooks, saying, tasks, troubles
from watchdog.web.answers import Answers
from watchdog.web.markup import pairs, text, within
from watchdog.web.pasted import pasted
from watchdog.web.plots import plots

_ENGINES, _GPUS, _FINDINGS, _INCIDENTS = 10_000, 42_000, 12_000, 16_000
"""Bytes of the parts: with the rest, the page stays below 100 KB."""
_LINE, _ANSWER = 200, 400
"""Characters of a line of a story, and of an answer: what must be done is not cut in the middle."""
_SHOWN, _BEGIN, _END = 8, 3, 6
"""Incidents on the page, and the entries of their stories; each has a page of its own."""
_BUNDLES = 2
_FULL_CARDS = 8
"""More cards than these have coarser plots."""
_GIB = 1 << 30
_CALM = frozenset({Verdict.STOPPED, Verdict.STARTING, Verdict.STOPPING, Verdict.DEGRADED})
_CLASSES = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "bad"}
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def answers(found: Answers) -> str:
    """The four answers, side by side."""
    todo = [
        markup.told(one.text, _ANSWER) + (f" ({_runbook(one.runbook)})" if one.runbook else "")
        for one in found.todo
    ]
    return (
        '<div class="answers">'
        f'<div class="{found.level.value}"><h2>Is it serving?</h2>'
        f'<p class="big">{text(found.serving, _ANSWER)}</p></div>'
        f"<div><h2>What broke?</h2>{_lines(found.broke)}</div>"
        f"<div><h2>What did the watchdog do?</h2>{_lines(found.did)}</div>"
        f"<div{_loud(found)}><h2>What must I do?</h2>"
        f"{''.join(f'<p>{line}</p>' for line in todo) or _lines((found.rest,))}</div></div>"
    )


def lacks(snapshot: Snapshot) -> str:
    """What the daemon cannot see or keep where it runs; nothing where it lacks nothing."""
    told = "; ".join(snapshot.lacks)
    return f'<p class="dim">Cannot see or keep here: {text(told, 3 * _ANSWER)}</p>' if told else ""


def _loud(found: Answers) -> str:
    return ' class="warning"' if found.todo else ""


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"<p>{text(line, _ANSWER)}</p>" for line in lines)


def engines(snapshot: Snapshot) -> str:
    """Every engine: verdict and why, and what it has left."""
    found = [*snapshot.state.engines.values()]
    cards = within(found, lambda one: _engine(snapshot, one), _ENGINES)
    return f'<h2>Engines</h2><div class="grid">{cards}</div>'


def _engine(snapshot: Snapshot, one: EngineState) -> str:
    told = bodies.engine(snapshot, one)
    kind = "good" if one.verdict in SERVING else "warning" if one.verdict in _CALM else "bad"
    pids = snapshot.pids.get(one.name, ())
    budget = saying.left(snapshot, one.name)
    if one.history.breaker_open:
        budget = f"<b>breaker open:</b> {budget}"
    blind = saying.blind(snapshot, one)
    rows = (
        ("why", text("; ".join((*one.reasons, *([blind] if blind else []))))),
        ("waiting", text(told["waiting"]) if told["waiting"] else ""),
        ("state", f"{saying.word(one.process.value)} since {_since(snapshot, one.since)}"),
        ("next try", saying.next_try(snapshot, one)),
        ("process", f"{text(one.leader)} and {max(len(pids) - 1, 0)} more" if one.leader else ""),
        ("port", text(told["port"] or "")),
        ("starts", text(told["starts"])),
        ("first token", _first_token(one)),
        ("budget", "" if one.process is ProcessState.GIVEN_UP else budget),
        ("log", text(told["log"] or "")),
    )
    verdict = "being restarted" if saying.is_restarted(one) else saying.word(one.verdict.value)
    head = f"{text(one.name, 80)} {_word(verdict, kind)}"
    return f'<div class="card {kind}"><h3>{head}</h3>{pairs(rows)}</div>'


def _first_token(one: EngineState) -> str:
    """Of this start, not of the one before it."""
    known = one.ready_at is not None and one.ready_seconds
    return f"{one.ready_seconds:.1f} s after the start" if known else ""


def gpus(snapshot: Snapshot) -> str:
    """Every card, with ten minutes of it."""
    found = bodies.gpus(snapshot)
    together = ceil(len(found) / _FULL_CARDS) or 1
    cards = within(found, lambda one: _gpu(snapshot, one, together), _GPUS)
    return f'<h2>GPUs</h2><div class="grid">{cards or _no_gpu(snapshot)}</div>'


def _no_gpu(snapshot: Snapshot) -> str:
    errors = [r.error for (p, _), r in snapshot.state.readings.items() if p == "gpu" and r.error]
    return f'<p class="dim">none was read{text(": " + errors[0]) if errors else ""}</p>'


def _gpu(snapshot: Snapshot, card: bodies.Body, together: int) -> str:
    state = str(card.get("state", "?"))
    points = snapshot.recent.get(str(card["uuid"]) or f"index-{card['index']}", ())
    kind = "good" if state == "ok" else "bad"
    memory = f"{_figure(card, 'memory_used_bytes', _GIB)} of"
    told = ", ".join(
        (
            f"{_figure(card, 'utilization_percent')} %",
            f"{memory} {_figure(card, 'memory_total_bytes', _GIB)} GiB",
            f"{_figure(card, 'temperature_celsius')} °C",
            f"{_figure(card, 'power_watts')} W",
        )
    )
    head = f"GPU {text(card['index'])} {_word(text(state, 80), kind)}"
    name = text(f"{card.get('name', '')} {card['uuid']}".strip(), 160)
    return (
        f'<div class="card {kind}"><h3>{head}</h3><p>{told}</p><p class="dim">{name}</p>'
        f"{plots(points, snapshot.at, together) if points else ''}</div>"
    )


def _figure(card: bodies.Body, name: str, unit: float = 1.0) -> str:
    value = card.get(name)
    return f"{value / unit:.0f}" if isinstance(value, int | float) else "?"


def findings(snapshot: Snapshot) -> str:
    """What fires, the loudest first, with what cures it, and why nothing is done about it."""
    found = [*firing(snapshot.state)]
    cards = within(found, lambda one: _finding(snapshot, *one), _FINDINGS)
    none = '<p class="dim">none</p>'
    return f'<h2>Findings</h2><div class="grid">{cards or none}</div>'


def _finding(snapshot: Snapshot, key: tuple[str, Subject], one: Finding) -> str:
    held = snapshot.state.watches[key].held
    above = snapshot.outranked.get(key)
    outranked = held is HoldReason.INHIBITED or above is not None
    kind = "dim" if outranked else _CLASSES[one.severity]
    fix = tasks.shown_fix(snapshot, key, one)
    evidence = ", ".join(f"{name} = {value}" for name, value in one.evidence if value != "")
    rows = (
        ("about", text(saying.who(snapshot, one.subject), 160)),
        ("outranked by", text(f"{above.rule} on {above.subject}", 160) if above else ""),
        ("since", _since(snapshot, one.since)),
        ("evidence", text(evidence)),
        ("held", _held(snapshot, one, held) if one.actions else ""),
        ("fix", f"<code>{text(fix)}</code>" if fix else ""),
        ("runbook", _runbook(one.runbook)),
    )
    words = [one.severity.value, *(["inhibited"] if outranked else [])]
    head = " ".join((text(one.rule, 80), *(_word(word, kind) for word in words)))
    return f'<div class="card {kind}"><h3>{head}</h3><p>{text(one.summary)}</p>{pairs(rows)}</div>'


def _held(snapshot: Snapshot, one: Finding, held: HoldReason | None) -> str:
    if held in {None, HoldReason.IN_FLIGHT}:
        return ""
    what = ", ".join(saying.action(name) for name in one.actions)
    engine = troubles.engine_of(snapshot, one.subject)
    return text(f"{what}: {saying.hold(held, engine, snapshot)}")


def incidents(snapshot: Snapshot) -> str:
    """The last incidents, the newest first; the story of what goes on is unfolded."""
    last = [*reversed(snapshot.state.incidents)]
    cards = within(last[:_SHOWN], lambda one: _incident(snapshot, one), _INCIDENTS)
    more = len(last) - _SHOWN
    rest = f'<p class="dim">{more} before: vllm-watchdog incidents</p>' if more > 0 else ""
    none = '<p class="dim">none</p>'
    return f'<h2>Incidents</h2><div class="grid">{cards or none}</div>{rest}'


def _incident(snapshot: Snapshot, one: Incident) -> str:
    entries, left = one.timeline, one.omitted
    if len(entries) > _BEGIN + _END:
        left += len(entries) - _BEGIN - _END
        entries = (*entries[:_BEGIN], *entries[-_END:])
    unfolded = " open" if one.resolved_at is None else ""
    link = f'<a href="incidents/{text(one.id, 40)}">{text(one.id, 40)}</a>'
    return (
        f'<div class="card {_kind(one)}"><h3>{link} {_outcome(one)}</h3>'
        f"<p>{text(one.summary)}</p>{_facts(snapshot, one)}"
        f'<details id="story-{text(one.id, 40)}"{unfolded}><summary>timeline</summary>'
        f"{_story(snapshot, entries, _BEGIN, left)}</details></div>"
    )


def whole_incident(snapshot: Snapshot, one: Incident) -> str:
    """Everything that is kept of it."""
    evidence = "".join(
        f"<li><code>{text(name)} = {text(value)}</code></li>"
        for name, value in one.evidence
        if value != ""
    )
    return (
        f'<div class="card {_kind(one)}"><h3>{text(one.id)} '
        f"{_outcome(one)}</h3><p>{text(one.summary)}</p>"
        f"{_facts(snapshot, one, '../')}</div><h2>Timeline</h2>"
        f"{_story(snapshot, one.timeline, timeline.FIRST, one.omitted)}"
        f"<h2>Evidence</h2><ul>{evidence or '<li>none</li>'}</ul>"
    )


def _outcome(one: Incident) -> str:
    known = deeds.OUTCOMES.get(one.outcome, one.outcome or "open")
    return _word(text(known, 40), _kind(one))


def _kind(one: Incident) -> str:
    return _CLASSES[one.severity] if one.resolved_at is None else "dim"


def _facts(snapshot: Snapshot, one: Incident, up: str = "") -> str:
    told = bodies.whole(snapshot.stamp, one)
    recovered = told["recovered_after_s"]
    word, fix = tasks.fix_of(snapshot, one)
    fix = text(pasted(fix, snapshot.state_dir))
    cause = f"{saying.word(one.cause.value)}: {one.explanation}" if one.explanation else ""
    rows = (
        ("rule", f"{text(one.rule, 80)} on {text(one.subject, 160)}"),
        ("began", _since(snapshot, one.began_at)),
        ("cause", text(cause)),
        ("noticed", f"after {told['detected_after_s']} s"),
        ("actions", text(", ".join(map(saying.action, dict.fromkeys(one.actions))))),
        ("now", text(deeds.held(snapshot, one) if one.resolved_at is None else "")),
        ("over", f"after {recovered} s, {_time(snapshot, one.resolved_at)}" if one.outcome else ""),
        ("bundle", "".join(f"<p>{text(path)}</p>" for path in _bundles(snapshot, one))),
        (word, f"<code>{fix}</code>" if word == "fix" else fix),
        ("runbook", _runbook(one.rule, up)),
    )
    return pairs(rows)


def _bundles(snapshot: Snapshot, one: Incident) -> Sequence[str]:
    """The first has how it began, the last how it is."""
    found = snapshot.bundles.get(one.id, ())
    return found if len(found) <= _BUNDLES else (found[0], found[-1])


def _story(snapshot: Snapshot, entries: Sequence[Entry], gap: int, left: int) -> str:
    items = list(_entries(snapshot, entries))
    if left:
        items.insert(gap, f'<li class="dim">… {left} more …</li>')
    return f'<ol class="story">{"".join(items)}</ol>'


def _entries(snapshot: Snapshot, entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        words = f"{text(entry.event, 40)} {text(entry.text, _LINE)}"
        yield f"<li>{_time(snapshot, entry.at)} {words}</li>"


def _runbook(name: str, up: str = "") -> str:
    where = runbooks.link(name, up)
    return f'<a href="{text(where, 300)}">{text(name, 120)}</a>' if where else text(name, 120)


def _word(word: str, kind: str) -> str:
    return f'<span class="word {kind}">{word}</span>'


def _time(snapshot: Snapshot, at: Seconds | None) -> str:
    stamp = snapshot.stamp(at)
    if stamp is None:
        return ""
    shown = stamp[11:19] if snapshot.at - (at or 0.0) < _DAY / 2 else stamp[:19].replace("T", " ")
    return f'<time datetime="{stamp}">{shown}</time>'


def _since(snapshot: Snapshot, at: Seconds) -> str:
    return f"{_time(snapshot, at)} UTC ({_ago(snapshot.at - at)})"


def _ago(seconds: Seconds) -> str:
    """In a unit that does not change at each look."""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return "less than a minute"
