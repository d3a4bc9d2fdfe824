"""What is told of an incident: at its opening, when it gets graver, and at its end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from watchdog.core import cards
from watchdog.core.model import Incident, Labels, Seconds, Severity
from watchdog.core.state import State
from watchdog.names import blotted

ALERT = "VllmWatchdogIncident"
"""``alertname`` of all that is pushed: one story a subject, whatever its rule."""
_LONGEST = 1000
"""Characters of a text: what a page and a telephone show, and no one's whole log."""
_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


class Happening(StrEnum):
    """What has happened to an incident. ``CHANGED`` is no news: only the texts are others."""

    OPENED = "opened"
    ESCALATED = "escalated"
    RESOLVED = "resolved"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell. ``opened`` and ``resolved`` are seconds since the epoch.

    ``labels`` say which alert it is and stay those of the opening, but for the severity; ``before``
    are those that it had until now, when they were others. ``at`` is CLOCK_MONOTONIC of the news.
    ``again`` marks what was told before and is only kept alive.
    """

    what: Happening
    incident: str
    severity: Severity
    labels: Labels
    texts: tuple[tuple[str, str], ...]
    actions: tuple[str, ...]
    opened: Seconds
    at: Seconds
    resolved: Seconds | None = None
    before: Labels | None = None
    again: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the incident was open at that moment."""
        return self.resolved is None

    def repeated(self) -> Notice:
        """The same, told once more."""
        return replace(self, what=Happening.OPENED, again=True, before=None)


def is_below(one: Severity, other: Severity) -> bool:
    """Whether ``one`` is less loud than ``other``."""
    return _RANKS[one] < _RANKS[other]


def first(state: State, incident: Incident, instance: str, now: Seconds, wall: Seconds) -> Notice:
    """The opening of ``incident``. ``now`` and ``wall`` are one moment on both clocks."""
    engine = ",".join(cards.concerned(state, incident.subject))
    labels = (
        ("alertname", ALERT),
        ("rule", incident.rule),
        ("severity", incident.severity.value),
        ("engine", engine),
        ("subject", str(incident.subject)),
        ("instance", instance),
    )
    return Notice(
        what=Happening.OPENED,
        incident=incident.id,
        severity=incident.severity,
        labels=tuple((name, _short(value)) for name, value in labels),
        texts=_texts(incident, _runbook(state, incident)),
        actions=incident.actions,
        opened=wall - (now - incident.opened_at),
        at=now,
    )


def following(before: Notice, incident: Incident, now: Seconds, wall: Seconds) -> Notice:
    """What has become of the incident that ``before`` told of."""
    news = replace(
        before,
        what=Happening.CHANGED,
        severity=incident.severity,
        labels=_graver(before.labels, incident.severity),
        texts=_texts(incident, dict(before.texts)["runbook"]),
        actions=incident.actions,
        at=now,
        before=None,
    )
    if incident.resolved_at is not None:
        resolved = wall - (now - incident.resolved_at)
        news = replace(news, what=Happening.RESOLVED, resolved=max(resolved, before.opened))
    elif is_below(before.severity, incident.severity):
        news = replace(news, what=Happening.ESCALATED)
    return news if news.labels == before.labels else replace(news, before=before.labels)


def _graver(labels: Labels, severity: Severity) -> Labels:
    return tuple((k, severity.value if k == "severity" else v) for k, v in labels)


def _runbook(state: State, incident: Incident) -> str:
    """That of the finding that the incident began with."""
    watch = state.watches.get((incident.rule, incident.subject))
    finding = None if watch is None else watch.firing
    return incident.rule if finding is None else finding.runbook or incident.rule


def _texts(incident: Incident, runbook: str) -> tuple[tuple[str, str], ...]:
    texts = {
        "summary": incident.summary,
        "explanation": incident.explanation,
        "cause": incident.cause.value,
        "fix": incident.fix,
        "runbook": runbook,
        "outcome": incident.outcome,
    }
    return tuple((name, _short(blotted(text))) for name, text in texts.items())


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
