"""The JSON bodies, made from a snapshot. Nothing here knows of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from watchdog.core.engine import firing
from watchdog.core.model import SERVING, Incident, ProcessState, Sampled, Seconds
from watchdog.core.state import EngineState
from watchdog.snapshot import Snapshot
from watchdog.web import answers, deeds, saying, tasks, troubles
from watchdog.web.pasted import pasted

Body = dict[str, object]
Stamp = Callable[[Seconds | None], str | None]
"""A monotonic time as RFC 3339."""

_LOOP_LIMIT = 10.0
"""Seconds without a turn after which the main loop counts as stuck; it turns every second."""


def status(snapshot: Snapshot) -> Body:
    """``/api/v1/status``."""
    state = snapshot.state
    pause = state.pause
    return {
        "version": snapshot.version,
        "mode": state.mode.value,
        "paused": None
        if pause is None
        else {
            "reason": pause.reason,
            "owner": pause.owner,
            "since": snapshot.stamp(pause.since),
            "until": snapshot.stamp(pause.until),
        },
        "lacks": list(snapshot.lacks),
        "answers": answers.body(answers.answered(snapshot)),
        "engines": [engine(snapshot, one) for one in state.engines.values()],
        "gpus": gpus(snapshot),
        "findings": findings(snapshot),
        **incidents(snapshot),
    }


def engine(snapshot: Snapshot, one: EngineState) -> Body:
    """One engine of the status."""
    return {
        "name": one.name,
        "state": one.process.value,
        "verdict": one.verdict.value,
        "action": one.in_flight or one.aside,
        "reasons": list(one.reasons),
        "pid": one.leader,
        "generation": one.generation,
        "pids": list(snapshot.pids.get(one.name, ())),
        "port": snapshot.ports.get(one.name),
        "waiting": snapshot.waiting.get(one.name),
        "starts": one.history.starts,
        "budget_remaining": snapshot.budget.get(one.name),
        "budget_total": snapshot.budgets.get(one.name),
        "blind": saying.blind(snapshot, one),
        "log": snapshot.logs.get(one.name),
        "breaker_open": one.history.breaker_open,
        "since": snapshot.stamp(one.since),
        "wanted": one.history.wanted,
        "ready_seconds": one.ready_seconds,
        "retry_at": snapshot.stamp(snapshot.retries.get(one.name, one.retry_at)),
    }


def gpus(snapshot: Snapshot) -> list[Body]:
    """Every GPU of the last reading, by NVML index; samples with labels of their own as objects."""
    cards: dict[tuple[str, str], Body] = {}
    for (probe, _), reading in snapshot.state.readings.items():
        if probe != "gpu":
            continue
        for sample in reading.samples:
            labels = dict(sample.labels)
            index, uuid = labels.pop("gpu", "-1"), labels.pop("uuid", "")
            card = cards.setdefault((index, uuid), {"index": int(index), "uuid": uuid})
            _put(card, sample, labels)
    return sorted(cards.values(), key=lambda card: int(str(card["index"])))


def _put(card: Body, sample: Sampled, labels: Mapping[str, str]) -> None:
    if not labels:
        card[sample.sample] = sample.value
        return
    inner = card.setdefault(sample.sample, {})
    if isinstance(inner, dict):
        inner["/".join(labels.values())] = sample.value


def findings(snapshot: Snapshot) -> list[Body]:
    """What fires, loudest first. ``task`` is the fix, "" while that is not a person's to do.

    ``inhibited_by`` is the rule that outranks a finding, null for none.
    """
    return [
        {
            "rule": finding.rule,
            "subject": str(finding.subject),
            "phase": "firing",
            "severity": finding.severity.value,
            "summary": finding.summary,
            "evidence": dict(finding.evidence),
            "runbook": finding.runbook,
            "fix": pasted(finding.fix, snapshot.state_dir),
            "task": tasks.shown_fix(snapshot, key, finding),
            "inhibited_by": above.rule if (above := snapshot.outranked.get(key)) else None,
            "since": snapshot.stamp(finding.since),
        }
        for key, finding in firing(snapshot.state)
    ]


def brief(stamp: Stamp, incident: Incident) -> Body:
    """An incident in the list."""
    return {
        "id": incident.id,
        "rule": incident.rule,
        "subject": str(incident.subject),
        "severity": incident.severity.value,
        "cause": incident.cause.value,
        "began": stamp(incident.began_at),
        "opened": stamp(incident.opened_at),
        "resolved": stamp(incident.resolved_at),
        "outcome": incident.outcome,
    }


def whole(
    stamp: Stamp,
    incident: Incident,
    bundles: Sequence[str] = (),
    *,
    repaired: bool = False,
    held: str = "",
) -> Body:
    """All that is kept of an incident. Of one that goes on ``recovered_after_s`` is null.

    ``bundles`` are the directories with what was seen before something was done. ``repaired`` says
    that the watchdog is at it, ``held`` what it holds back and why.
    """
    noticed = incident.decided_at if incident.decided_at is not None else incident.opened_at
    return {
        **brief(stamp, incident),
        "summary": incident.summary,
        "explanation": incident.explanation,
        "fix": incident.fix,
        "evidence": dict(incident.evidence),
        "decided": stamp(incident.decided_at),
        "actions": list(incident.actions),
        "detected_after_s": _span(incident.began_at, noticed),
        "recovered_after_s": _span(noticed, incident.resolved_at),
        "timeline": [
            {"at": stamp(entry.at), "event": entry.event, "text": entry.text}
            for entry in incident.timeline
        ],
        "omitted": incident.omitted,
        "bundles": list(bundles),
        "repaired": repaired,
        "held": held,
    }


def _span(begin: Seconds, end: Seconds | None) -> float | None:
    return None if end is None else round(max(end - begin, 0.0), 3)


def incidents(snapshot: Snapshot) -> Body:
    """``/api/v1/incidents``, the newest first."""
    return {"incidents": [brief(snapshot.stamp, one) for one in reversed(snapshot.state.incidents)]}


def incident(snapshot: Snapshot, name: str) -> Body | None:
    """One incident, whole; None when there is none of that id."""
    for one in snapshot.state.incidents:
        if one.id == name:
            goes_on = one.resolved_at is None
            told = whole(
                snapshot.stamp,
                one,
                snapshot.bundles.get(name, ()),
                repaired=goes_on and troubles.is_repaired(snapshot, one),
                held=deeds.held(snapshot, one) if goes_on else "",
            )
            return {**told, "fix": pasted(one.fix, snapshot.state_dir)}
    return None


def health(snapshot: Snapshot, name: str | None) -> tuple[bool, Body] | None:
    """``/healthz``: whether every engine (or the one named) serves; None for an unknown name."""
    engines = snapshot.state.engines
    if name is not None and name not in engines:
        return None
    chosen = engines if name is None else {name: engines[name]}
    body: Body = {
        key: {"verdict": one.verdict.value, "reasons": list(one.reasons)}
        for key, one in chosen.items()
    }
    serving = bool(chosen) and all(one.verdict in SERVING for one in chosen.values())
    return serving, {"ok": serving, "engines": body}


def ready(snapshot: Snapshot) -> tuple[bool, Body]:
    """``/readyz``: whether at least one engine serves; a watcher of the box alone has none to."""
    engines = snapshot.state.engines
    serving = [e.name for e in engines.values() if e.verdict in SERVING]
    ok = bool(serving) or not engines
    return ok, {"ok": ok, "serving": serving}


def live(snapshot: Snapshot, loop_age: float) -> tuple[bool, Body]:
    """``/livez``: whether the loop turns and the watchdog can still help.

    What became of an engine that somebody else starts is no matter of ours: a new watchdog beside
    it would help nobody.
    """
    reasons = []
    if loop_age > _LOOP_LIMIT:
        reasons.append(f"the main loop has not turned for {loop_age:.0f} s")
    ours = (one for one in snapshot.state.engines.values() if one.settings.attach is None)
    for one in ours:
        if one.history.breaker_open:
            reasons.append(f"{one.name}: the breaker is open")
        elif one.process in {ProcessState.GIVEN_UP, ProcessState.UNKILLABLE}:
            reasons.append(f"{one.name}: {one.process.value}: {'; '.join(one.reasons)}")
    return not reasons, {"ok": not reasons, "reasons": reasons}
