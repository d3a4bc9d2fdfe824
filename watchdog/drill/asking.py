"""Asks a daemon over its control socket, and gives it the commands that a drill needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from watchdog.core.model import SERVING, Seconds
from watchdog.drill.results import Decided

_PATIENCE: Seconds = 10.0
_COMMAND_PATIENCE: Seconds = 330.0
"""Longer than a stop ladder with all its rungs."""


class AskError(Exception):
    """The daemon does not answer, or not in its own words. One line."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of the status. ``ready_seconds`` is what its last start took."""

    name: str
    state: str
    verdict: str
    reasons: tuple[str, ...]
    pid: int | None
    generation: str
    pids: tuple[int, ...]
    port: int
    starts: int
    budget: int
    breaker_open: bool
    ready_seconds: Seconds | None

    @property
    def serves(self) -> bool:
        """Whether it can generate tokens right now."""
        return self.verdict in SERVING

    @property
    def words(self) -> str:
        """``main is stalled: 2 completions timed out``."""
        why = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return f"{self.name} is {self.verdict}{why}"


@dataclass(slots=True)
class Daemon:
    """The daemon behind ``socket``. Raises AskError when it does not answer."""

    socket: Path
    _client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        transport = httpx.HTTPTransport(uds=str(self.socket))
        self._client = httpx.Client(transport=transport, timeout=_PATIENCE, trust_env=False)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def status(self) -> Mapping[str, Any]:
        """``/api/v1/status``."""
        return self._ask("GET", "/api/v1/status")

    def engine(self, name: str = "") -> Engine:
        """The engine of that name, the first one for ""."""
        with self._understood():
            for one in self.status().get("engines", ()):
                if name in ("", one["name"]):
                    return _engine(one)
        raise AskError(f"the daemon has no engine {name!r}" if name else "the daemon has no engine")

    def incidents(self, engine: str) -> tuple[tuple[str, bool], ...]:
        """Ids of the incidents of an engine, the newest first, and whether each is still open."""
        with self._understood():
            listed = self._ask("GET", "/api/v1/incidents").get("incidents", ())
            ours = (one for one in listed if one["subject"] == f"engine/{engine}")
            return tuple((str(one["id"]), one["resolved"] is None) for one in ours)

    def decided(self, incident: str) -> Decided:
        """What was decided in that incident so far."""
        whole = self._ask("GET", f"/api/v1/incidents/{incident}")
        with self._understood():
            return _decided(incident, whole)

    def command(self, verb: str, engine: str) -> str:
        """Give a control command and wait for its end; what went wrong, "" for nothing."""
        body = {"engine": engine, "reason": "", "owner": "drill", "seconds": None}
        answer = self._ask("POST", f"/control/{verb}", body)
        return "" if answer.get("ok") else str(answer.get("message"))

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        """That of another version may lack what is asked for."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise AskError(
                f"the daemon at {self.socket} answers in words not known here"
            ) from error

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        patience = _PATIENCE if method == "GET" else _COMMAND_PATIENCE
        try:
            answer = self._client.request(
                method, f"http://daemon{path}", json=body, timeout=patience
            )
            found: Any = answer.json()
        except (httpx.HTTPError, ValueError, OSError) as error:
            raise AskError(f"no daemon answers at {self.socket}") from error
        if not isinstance(found, dict) or "error" in found:
            raise AskError(f"the daemon at {self.socket} cannot answer {path}")
        return found


def _decided(incident: str, whole: Mapping[str, Any]) -> Decided:
    decisions = [e for e in whole["timeline"] if str(e["event"]).startswith("decision.")]
    return Decided(
        incident=incident,
        cause=str(whole["cause"]),
        first=_wall(decisions[0]["at"]) if decisions else None,
        acted=bool(whole["actions"]),
        words=str(decisions[-1]["text"]) if decisions else "",
        waits=bool(decisions) and "(backoff)" in str(decisions[-1]["text"]),
    )


def _engine(one: Mapping[str, Any]) -> Engine:
    return Engine(
        name=str(one["name"]),
        state=str(one["state"]),
        verdict=str(one["verdict"]),
        reasons=tuple(map(str, one["reasons"])),
        pid=one["pid"],
        generation=str(one["generation"] or ""),
        pids=tuple(one["pids"]),
        port=int(one["port"] or 0),
        starts=int(one["starts"]),
        budget=int(one["budget_remaining"] or 0),
        breaker_open=bool(one["breaker_open"]),
        ready_seconds=one.get("ready_seconds"),
    )


def _wall(stamp: str) -> Seconds:
    """Seconds since the epoch."""
    return datetime.fromisoformat(stamp).timestamp()
