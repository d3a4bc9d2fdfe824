"""What is sent: alerts for an Alertmanager, or one object for a webhook."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit, urlunsplit

from watchdog.config.settings import NotifyKind
from watchdog.core.model import Labels, Seconds
from watchdog.notify.notices import Happening, Notice

_ALERTS = "/api/v2/alerts"
_AT_ONCE = 64
"""Alerts in one request: some 100 kB at most."""
LIFE: Seconds = 300.0
"""An alert that is not repeated for so long ends by itself: longer than our own restart takes."""
REPEAT: Seconds = 60.0
"""So four requests may fail until an open alert ends by mistake."""


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """Its API v2. An alert is its labels: what is told of it later takes the place of before."""

    at_once: int = _AT_ONCE
    repeat: Seconds | None = REPEAT

    def target(self, url: str) -> str:
        """Where alerts are posted to, below the address that the configuration gives."""
        parts = urlsplit(url)
        path = parts.path.rstrip("/")
        path = path if path.endswith(_ALERTS) else path + _ALERTS
        return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))

    def key(self, notice: Notice) -> object:
        """Of two notices with the same key only the later one needs to be sent."""
        return notice.incident

    def body(self, notices: Sequence[Notice], wall: Seconds) -> bytes:
        """All of them as of ``wall``, seconds since the epoch. Open ones end in ``LIFE``."""
        alerts: list[object] = []
        for one in notices:
            if one.before is not None:
                alerts.append(_alert(one, one.before, wall))
            ends = one.resolved if one.resolved is not None else wall + LIFE
            alerts.append(_alert(one, one.labels, ends))
        return _encoded(alerts)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Anybody who takes JSON: each event by itself, in their order."""

    at_once: int = 1
    repeat: Seconds | None = None

    def target(self, url: str) -> str:
        """The address as it is."""
        return url.partition("#")[0]

    def key(self, notice: Notice) -> object:
        """Every event counts."""
        return notice.incident, notice.what, notice.at

    def body(self, notices: Sequence[Notice], wall: Seconds) -> bytes:
        """The one event, sent at ``wall``."""
        (one,) = notices
        return _encoded(
            {
                "event": f"incident.{one.what.value}",
                "incident": one.incident,
                **{name: value for name, value in one.labels if name != "alertname"},
                **dict(one.texts),
                "actions": list(one.actions),
                "opened": _stamp(one.opened),
                "resolved": None if one.resolved is None else _stamp(one.resolved),
                "sent": _stamp(wall),
            }
        )


Kind = Alertmanager | Webhook
KINDS: dict[NotifyKind, Kind] = {
    NotifyKind.ALERTMANAGER: Alertmanager(),
    NotifyKind.WEBHOOK: Webhook(),
}


def is_news(kind: Kind, notice: Notice) -> bool:
    """Whether it is to be sent now, and not only kept for the next repetition."""
    return notice.what is not Happening.CHANGED and not (notice.again and kind.repeat is None)


def _alert(notice: Notice, labels: Labels, ends: Seconds) -> dict[str, object]:
    texts = {name: text for name, text in notice.texts if text}
    done = {"actions": ", ".join(notice.actions)} if notice.actions else {}
    return {
        "labels": {name: value for name, value in labels if value},
        "annotations": {**texts, **done, "incident": notice.incident},
        "startsAt": _stamp(min(notice.opened, ends)),
        "endsAt": _stamp(ends),
    }


def _stamp(wall: Seconds) -> str:
    """RFC 3339, in UTC. A clock that nobody has set yet is no reason to be silent."""
    moment = datetime.fromtimestamp(max(wall, 0.0), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encoded(value: object) -> bytes:
    """ASCII: whatever bytes a name has, this can be sent."""
    return json.dumps(value).encode("ascii")
