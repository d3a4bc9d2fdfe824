"""The WSGI applications: read-only for TCP, and the same plus commands for the Unix socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
    413: "Content Too Large",
    503: "Service Unavailable",
}
_JSON = "application/json"
_HTML = "text/html; charset=utf-8"
_BODY_LIMIT = 64 * 1024


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

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """See PEP 3333."""
        answer = self._answer(environ)
        if isinstance(answer.body, bytes):
            data = answer.body
        else:
            data = json.dumps(answer.body).encode() + b"\n"
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
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
            case "/":
                return Answer(200, page.render(self._window.snapshot()), _HTML)
            case _:
                return self._verdict(path) or self._api(path) or _NOT_FOUND

    def _verdict(self, path: str) -> Answer | None:
        match path:
            case "/readyz":
                return _verdict(*bodies.ready(self._window.snapshot()))
            case "/livez":
                return _verdict(*bodies.live(self._window.snapshot(), self._window.loop_age()))
            case _:
                return None

    def _api(self, path: str) -> Answer | None:
        snapshot = self._window.snapshot()
        match path.removeprefix("/api/v1/").split("/"):
            case ["status"]:
                return Answer(200, bodies.status(snapshot))
            case ["incidents"]:
                found = [bodies.brief(snapshot, i) for i in reversed(snapshot.state.incidents)]
                return Answer(200, {"incidents": found})
            case ["incidents", name]:
                one = bodies.incident(snapshot, name)
                return None if one is None else Answer(200, one)
            case _:
                return None

    def _health(self, environ: Environ) -> Answer:
        names = parse_qs(environ.get("QUERY_STRING", "")).get("engine")
        found = bodies.health(self._window.snapshot(), names[0] if names else None)
        if found is None:
            return Answer(404, {"error": "unknown engine"})
        return _verdict(*found)

    def _command(self, environ: Environ, method: str, verb: str) -> Answer:
        if method != "POST":
            return Answer(405, {"error": "only POST"}, allow="POST")
        try:
            asked = json.loads(environ["wsgi.input"].read(_BODY_LIMIT) or b"{}")
            seconds = asked.get("seconds")
            result = self._window.command(
                verb,
                str(asked.get("engine", "")),
                str(asked.get("reason", "")),
                str(asked.get("owner", "")),
                None if seconds is None else float(seconds),
            )
        except (ValueError, AttributeError, TypeError):
            return Answer(400, {"error": "expected a JSON object"})
        body = {"ok": result.ok, "message": result.message, "exit_code": result.exit_code}
        return Answer(200 if result.ok else 409, body)


def _verdict(ok: bool, body: bodies.Body) -> Answer:  # noqa: FBT001 - the pair that bodies return
    return Answer(200 if ok else 503, body)
