"""The story of an incident, line by line, from what a step wrote into the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from watchdog.core.model import Entry, HoldReason, Incident, Record, Seconds, SubjectKind
from watchdog.core.state import State

FIRST, _LAST = 20, 80
"""Entries that a story keeps of its beginning and of its end: how it began and how it goes on is
what one asks for; a flapping card fills in the rest."""

_Keys = Mapping[str, object]


def told(state: State, records: Sequence[Record], at: Seconds) -> State:
    """``state`` with ``records`` in the stories that they belong to.

    What a record advises takes the place of what the finding's rule says of every such case.
    """
    going_on = [one for one in state.incidents if one.resolved_at is None or one.resolved_at >= at]
    if not going_on:
        return state
    longer = {one.id: _with(one, records, at) for one in going_on}
    return replace(state, incidents=tuple(longer.get(one.id, one) for one in state.incidents))


def _with(incident: Incident, records: Sequence[Record], at: Seconds) -> Incident:
    own = [
        (record.event, keys)
        for record in records
        if record.event in _WORDS
        and _concerns(keys := dict(record.keys), incident)
        and keys.get("reason") != HoldReason.IN_FLIGHT.value  # the line before has said so
    ]
    if not own:
        return incident
    whole = (*incident.timeline, *(Entry(at, event, _WORDS[event](keys)) for event, keys in own))
    cut = max(0, len(whole) - FIRST - _LAST)
    kept = whole if not cut else (*whole[:FIRST], *whole[FIRST + cut :])
    advice = [str(keys["advice"]) for _, keys in own if keys.get("advice")]
    fix = advice[-1] if advice else incident.fix
    return replace(incident, timeline=kept, omitted=incident.omitted + cut, fix=fix)


def _concerns(keys: _Keys, incident: Incident) -> bool:
    """What names an incident is of that one alone; else it is about the same thing."""
    if keys.get("incident"):
        return keys["incident"] == incident.id
    if "subject" in keys:
        return keys["subject"] == str(incident.subject)
    about_engine = incident.subject.kind is SubjectKind.ENGINE
    return about_engine and keys.get("engine") == incident.subject.name


def _finding(keys: _Keys) -> str:
    return f"{keys['rule']}: {keys['summary']}"


def _act(keys: _Keys) -> str:
    return f"{keys['action']}, by {keys['rule']}: {keys['detail']}"


def _hold(keys: _Keys) -> str:
    return f"{keys['action']} held ({keys['reason']}), by {keys['rule']}: {keys['detail']}"


def _finished(keys: _Keys) -> str:
    words = f": {keys['explanation']}" if keys["explanation"] else ""
    return f"{keys['action']} {keys['result']} after {keys['took_s']} s{words}"


def _exited(keys: _Keys) -> str:
    how = f"signal {keys['signal']}" if keys["signal"] is not None else f"code {keys['exit_code']}"
    known = how if (keys["signal"], keys["exit_code"]) != (None, None) else "not known how"
    words = f": {keys['explanation']}" if keys["explanation"] else ""
    return f"{keys['cause']} ({known}){words}"


_WORDS: Mapping[str, Callable[[_Keys], str]] = MappingProxyType(
    {
        "finding.firing": _finding,
        "finding.resolved": _finding,
        "decision.act": _act,
        "decision.hold": _hold,
        "action.finished": _finished,
        "engine.exited": _exited,
        "engine.explained": lambda keys: f"{keys['cause']}: {keys['explanation']}",
        "engine.started": lambda keys: f"process {keys['pid']}, start {keys['starts']}",
        "engine.adopted": lambda keys: f"process {keys['pid']}",
        "engine.ready": lambda keys: f"after {keys['ready_seconds']} s",
        "breaker.opened": lambda keys: f"after {keys['restarts']} restarts",
        "incident.resolved": lambda keys: str(keys["outcome"]),
    }
)
