"""The WSGI applications: read-only for TCP, and the same plus commands for the Unix socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any
from urllib.parse import parse_qs

from watchdog.web import bodies, page
from watchdog.web.window import Window

Environ = dict[str, Any]
StartResponse = Callable[..., object]

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_JSON = "application/json"
_HTML = "text/html; charset=utf-8"
_BODY_LIMIT = 64 * 1024
_LONGEST = 10 * 365 * 86400.0
_COMMANDS = 6
"""Commands that wait at the same time; below the server's threads, so that looking goes on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One response; the body is bytes, or a value that becomes JSON."""

    status: int
    body: object
    content_type: str = _JSON
    allow: str = ""


_NOT_FOUND = Answer(404, {"error": "not found"})


class App:
    """Answers GET and HEAD. With ``control`` it takes ``POST /control/VERB``, too."""

    def __init__(self, window: Window, *, control: bool = False) -> None:
        self._window = window
        self._control = control
        self._room = threading.BoundedSemaphore(_COMMANDS)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """See PEP 3333."""
        try:
            answer = self._answer(environ)
        except Exception as error:  # noqa: BLE001 - a bug is told to who asked, in one line
            answer = Answer(500, {"error": f"internal error: {type(error).__name__}: {error}"})
        data = _encoded(answer.body)
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", page.POLICY),
            ("Referrer-Policy", "no-referrer"),
        ]
        if answer.allow:
            headers.append(("Allow", answer.allow))
        start_response(f"{answer.status} {_REASONS[answer.status]}", headers)
        return [b""] if environ["REQUEST_METHOD"] == "HEAD" else [data]

    def _answer(self, environ: Environ) -> Answer:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/")
        if self._control and path.startswith("/control/"):
            return self._command(environ, method, path.removeprefix("/control/"))
        if method not in {"GET", "HEAD"}:
            return Answer(405, {"error": "only GET and HEAD"}, allow="GET, HEAD")
        return self._get(environ, path)

    def _get(self, environ: Environ, path: str) -> Answer:
        match path:
            case "/metrics":
                data, kind = self._window.metrics(environ.get("HTTP_ACCEPT", ""))
                return Answer(200, data, kind)
            case "/healthz":
                return self._health(environ)
            case "/readyz":
                return _verdict(*bodies.ready(self._window.snapshot()))
            case "/livez":
                return _verdict(*bodies.live(self._window.snapshot(), self._window.loop_age()))
            case "/" | "/page.json":
                return self._status_page(environ, path)
            case _:
                return self._pages(path)

    def _status_page(self, environ: Environ, path: str) -> Answer:
        snapshot, age = self._window.snapshot(), self._window.loop_age()
        if path == "/":
            return Answer(200, page.render(snapshot, age), _HTML)
        have = parse_qs(environ.get("QUERY_STRING", "")).get("have", [""])[0]
        return Answer(200, page.changes(snapshot, have, age))

    def _pages(self, path: str) -> Answer:
        match path.split("/"):
            case ["", "incidents", name]:
                found = page.incident(self._window.snapshot(), name)
            case ["", "runbooks", name]:
                found = page.runbook(name)
            case ["", name] if (file := page.asset(name)) is not None:
                return Answer(200, *file)
            case _:
                return self._api(path)
        return _NOT_FOUND if found is None else Answer(200, found, _HTML)

    def _api(self, path: str) -> Answer:
        match path.split("/"):
            case ["", "api", "v1", "status"]:
                return Answer(200, bodies.status(self._window.snapshot()))
            case ["", "api", "v1", "incidents"]:
                return Answer(200, bodies.incidents(self._window.snapshot()))
            case ["", "api", "v1", "incidents", name]:
                one = bodies.incident(self._window.snapshot(), name)
                return _NOT_FOUND if one is None else Answer(200, one)
            case _:
                return _NOT_FOUND

    def _health(self, environ: Environ) -> Answer:
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        names = query.get("engine")
        found = bodies.health(self._window.snapshot(), names[0] if names else None)
        if found is None:
            return Answer(404, {"error": "unknown engine"})
        return _verdict(*found)

    def _command(self, environ: Environ, method: str, verb: str) -> Answer:
        if method != "POST":
            return Answer(405, {"error": "only POST"}, allow="POST")
        try:
            asked = json.loads(environ["wsgi.input"].read(_BODY_LIMIT) or b"{}")
            engine, reason, owner = (_text(asked, key) for key in ("engine", "reason", "owner"))
            seconds = _duration(asked)
        except (ValueError, AttributeError, RecursionError) as error:
            return Answer(400, {"error": f"expected a JSON object with text and seconds: {error}"})
        if not self._room.acquire(blocking=False):
            return Answer(503, {"ok": False, "message": "too many commands wait", "exit_code": 1})
        try:
            result = self._window.command(verb, engine, reason, owner, seconds)
        finally:
            self._room.release()
        body = {"ok": result.ok, "message": result.message, "exit_code": result.exit_code}
        return Answer(200 if result.ok else 409, {**result.details, **body})


def _encoded(body: object) -> bytes:
    """Bytes as they are, else JSON in ASCII. What is no number there, as infinity, is null."""
    if isinstance(body, bytes):
        return body
    try:
        return json.dumps(body, allow_nan=False).encode() + b"\n"
    except ValueError:
        return json.dumps(_finite(body)).encode() + b"\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _text(asked: dict[str, object], key: str) -> str:
    value = asked.get(key)
    if not isinstance(value, str | None):
        raise ValueError(f"{key} is no text")  # noqa: TRY004 - the client's mistake, not a type's
    return value or ""


def _duration(asked: dict[str, object]) -> float | None:
    value = asked.get("seconds")
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < float(str(value)) <= _LONGEST:
        raise ValueError(f"seconds is not between 0 and {_LONGEST:.0f}")
    return float(str(value))


def _verdict(ok: bool, body: bodies.Body) -> Answer:  # noqa: FBT001 - the pair that bodies return
    return Answer(200 if ok else 503, body)
