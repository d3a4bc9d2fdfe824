"""The JSON bodies, made from a snapshot. Nothing here knows of HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog.core.engine import firing
from watchdog.core.model import SERVING, Incident, ProcessState, Sampled
from watchdog.core.state import EngineState
from watchdog.snapshot import Snapshot

Body = dict[str, object]

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
        "reasons": list(one.reasons),
        "pid": one.leader,
        "generation": one.generation,
        "pids": list(snapshot.pids.get(one.name, ())),
        "port": snapshot.ports.get(one.name),
        "waiting": snapshot.waiting.get(one.name),
        "starts": one.history.starts,
        "budget_remaining": snapshot.budget.get(one.name),
        "breaker_open": one.history.breaker_open,
        "since": snapshot.stamp(one.since),
        "wanted": one.history.wanted,
        "ready_seconds": one.ready_seconds,
        "retry_at": snapshot.stamp(one.retry_at),
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
    """What fires, loudest first."""
    return [
        {
            "rule": finding.rule,
            "subject": str(finding.subject),
            "phase": "firing",
            "severity": finding.severity.value,
            "summary": finding.summary,
            "evidence": dict(finding.evidence),
            "runbook": finding.runbook,
            "since": snapshot.stamp(finding.since),
        }
        for _, finding in firing(snapshot.state)
    ]


def brief(snapshot: Snapshot, incident: Incident) -> Body:
    """An incident in the list."""
    return {
        "id": incident.id,
        "rule": incident.rule,
        "subject": str(incident.subject),
        "severity": incident.severity.value,
        "cause": incident.cause.value,
        "opened": snapshot.stamp(incident.opened_at),
        "resolved": snapshot.stamp(incident.resolved_at),
        "outcome": incident.outcome,
    }


def incidents(snapshot: Snapshot) -> Body:
    """``/api/v1/incidents``, the newest first."""
    return {"incidents": [brief(snapshot, one) for one in reversed(snapshot.state.incidents)]}


def incident(snapshot: Snapshot, name: str) -> Body | None:
    """One incident, whole; None when there is none of that id."""
    for one in snapshot.state.incidents:
        if one.id == name:
            return {
                **brief(snapshot, one),
                "summary": one.summary,
                "explanation": one.explanation,
                "began": snapshot.stamp(one.began_at),
                "decided": snapshot.stamp(one.decided_at),
                "actions": list(one.actions),
            }
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
    """``/readyz``: whether at least one engine serves."""
    serving = [e.name for e in snapshot.state.engines.values() if e.verdict in SERVING]
    return bool(serving), {"ok": bool(serving), "serving": serving}


def live(snapshot: Snapshot, loop_age: float) -> tuple[bool, Body]:
    """``/livez``: whether the loop turns and the watchdog can still help."""
    reasons = []
    if loop_age > _LOOP_LIMIT:
        reasons.append(f"the main loop has not turned for {loop_age:.0f} s")
    for one in snapshot.state.engines.values():
        if one.history.breaker_open:
            reasons.append(f"{one.name}: the breaker is open")
        elif one.process in {ProcessState.GIVEN_UP, ProcessState.UNKILLABLE}:
            reasons.append(f"{one.name}: {one.process.value}: {'; '.join(one.reasons)}")
    return not reasons, {"ok": not reasons, "reasons": reasons}
