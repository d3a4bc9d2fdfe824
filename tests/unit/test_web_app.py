"""What each path answers, at the level of WSGI: no sockets."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.core import engine
from tests.support.simulated import until
from tests.support.windows import (
    FakeWindow,
    broken_window,
    hostile_window,
    serving_window,
    snapshot,
)
from watchdog.core.model import Pause, ProcessState, Verdict
from watchdog.core.state import RestartHistory, State
from watchdog.web.app import App


@dataclass(frozen=True)
class Answer:
    """What an application said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever was said
        """The body, taken apart."""
        return json.loads(self.body)


def ask(app: App, path: str, method: str = "GET", body: bytes = b"", **environ: str) -> Answer:
    """One request; a ``?`` in ``path`` begins the query."""
    told: list[tuple[str, list[tuple[str, str]]]] = []
    bare, _, query = path.partition("?")
    chunks = app(
        {
            "REQUEST_METHOD": method,
            "PATH_INFO": bare,
            "QUERY_STRING": query,
            "wsgi.input": io.BytesIO(body),
            **environ,
        },
        lambda status, headers: told.append((status, headers)),
    )
    ((status, headers),) = told
    return Answer(int(status.split()[0]), dict(headers), b"".join(chunks))


def test_status_says_what_the_interface_promises() -> None:
    """Every promised key is there, times are RFC 3339 in UTC counted from the snapshot."""
    found = ask(App(serving_window()), "/api/v1/status")
    assert found.status == 200
    assert found.headers["Content-Type"] == "application/json"
    body = found.json
    assert (body["version"], body["mode"], body["paused"]) == ("1.2.3", "act", None)
    assert (body["gpus"], body["findings"], body["incidents"]) == ([], [], [])
    (one,) = body["engines"]
    expected = {
        "name": "main",
        "state": "running",
        "verdict": "ready",
        "reasons": [],
        "pid": 1,
        "generation": "0000000a",
        "pids": [1, 2],
        "port": 8000,
        "budget_remaining": 5,
        "breaker_open": False,
        "since": "2025-12-31T23:58:20.000Z",
    }
    assert {key: one[key] for key in expected} == expected
    assert isinstance(one["starts"], int)


def test_a_crash_shows_as_finding_and_incident() -> None:
    """An engine that died has a firing finding and an open incident, also by its id."""
    app = App(broken_window())
    body = ask(app, "/api/v1/status").json
    (finding,) = body["findings"]
    assert (finding["subject"], finding["phase"]) == ("engine/main", "firing")
    listed = ask(app, "/api/v1/incidents").json
    assert listed == {"incidents": body["incidents"]}
    (brief,) = listed["incidents"]
    assert brief["resolved"] is None
    whole = ask(app, f"/api/v1/incidents/{brief['id']}").json
    assert {**whole, **brief} == whole
    assert whole["actions"]


def test_a_pause_shows_who_and_until_when() -> None:
    """A pause with an end shows reason, owner and both times."""
    state = State(pause=Pause("upgrade", "ann", since=40.0, until=160.0))
    assert ask(App(FakeWindow(snapshot(state))), "/api/v1/status").json["paused"] == {
        "reason": "upgrade",
        "owner": "ann",
        "since": "2025-12-31T23:59:00.000Z",
        "until": "2026-01-01T00:01:00.000Z",
    }


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_ready_and_busy_are_healthy(verdict: Verdict) -> None:
    """/healthz and /readyz are 200 for the two verdicts that serve, and 503 for all others."""
    app = App(FakeWindow(snapshot(State(engines={"main": engine(verdict=verdict)}))))
    expected = 200 if verdict in {Verdict.READY, Verdict.BUSY} else 503
    for path in ("/healthz", "/healthz?engine=main", "/readyz"):
        assert ask(app, path).status == expected, path
    assert ask(app, "/healthz").json["engines"]["main"]["verdict"] == verdict.value


def test_one_sick_engine_fails_health_but_not_readiness() -> None:
    """/healthz wants all engines, /readyz one, and ?engine= asks for one by name."""
    engines = {
        "good": engine(name="good", verdict=Verdict.READY),
        "bad": engine(name="bad", verdict=Verdict.DEAD, reasons=("it died",)),
    }
    app = App(FakeWindow(snapshot(State(engines=engines))))
    assert ask(app, "/healthz").status == 503
    assert ask(app, "/healthz").json["engines"]["bad"]["reasons"] == ["it died"]
    assert ask(app, "/healthz?engine=good").status == 200
    assert ask(app, "/readyz").status == 200


def test_who_watches_the_box_alone_is_ready() -> None:
    """/readyz is 200 without an engine: it watches. No engine is healthy, so /healthz is 503."""
    app = App(FakeWindow(snapshot(State())))
    assert (ask(app, "/readyz").status, ask(app, "/healthz").status) == (200, 503)
    assert ask(app, "/readyz").json == {"ok": True, "serving": []}


@pytest.mark.parametrize("query", ["engine=nobody", "engine=", "engine=%00", "engine=%ff"])
def test_an_unknown_engine_is_not_found(query: str) -> None:
    """/healthz?engine=UNKNOWN is 404, whatever the name is made of."""
    assert ask(App(serving_window()), f"/healthz?{query}").status == 404


def test_liveness_ends_where_the_watchdog_cannot_help() -> None:
    """/livez is 503 for a stuck loop, an open breaker, given up and unkillable, else 200."""
    sick = engine(verdict=Verdict.DEAD)
    assert ask(App(FakeWindow(snapshot(State(engines={"main": sick})))), "/livez").status == 200
    stuck = serving_window()
    stuck.age = 10.5
    assert ask(App(stuck), "/livez").status == 503
    for lost in (
        replace(sick, history=RestartHistory(breaker_open=True)),
        engine(ProcessState.GIVEN_UP),
        engine(ProcessState.UNKILLABLE),
    ):
        found = ask(App(FakeWindow(snapshot(State(engines={"main": lost})))), "/livez")
        assert found.status == 503
        assert "main" in found.json["reasons"][0]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
@pytest.mark.parametrize("path", ["/healthz", "/control/stop", "/nowhere"])
def test_only_get_and_head_on_tcp(method: str, path: str) -> None:
    """Any other method is 405 with Allow, commands included, and nothing is asked for."""
    window = serving_window()
    found = ask(App(window), path, method, b"{}")
    assert (found.status, found.headers["Allow"]) == (405, "GET, HEAD")
    assert window.asked == []


@pytest.mark.parametrize(
    "path", ["/nowhere", "/api/v1/", "/api/v1/incidents/none", "//healthz", "/healthz/", "*"]
)
def test_other_paths_are_not_found(path: str) -> None:
    """A path that is not in the table is 404 in JSON."""
    found = ask(App(serving_window()), path)
    assert (found.status, found.json) == (404, {"error": "not found"})


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/livez", "/api/v1/status", "/"])
def test_head_is_get_without_a_body(path: str) -> None:
    """HEAD has the status and the headers of GET, the length included."""
    app = App(serving_window())
    get, head = ask(app, path), ask(app, path, "HEAD")
    assert (head.status, head.headers, head.body) == (get.status, get.headers, b"")
    assert int(head.headers["Content-Length"]) == len(get.body)


def test_metrics_are_negotiated_by_the_exporter() -> None:
    """What the client accepts reaches the exporter; its page and type are passed on."""
    found = ask(App(serving_window()), "/metrics", HTTP_ACCEPT="application/x")
    assert (found.body, found.headers["Content-Type"]) == (
        b"# EOF\n",
        "text/plain; asked=application/x",
    )


def test_the_page_escapes_what_it_shows() -> None:
    """A name that is markup appears as text on the status page."""
    page = ask(App(hostile_window("<script>alert('x')</script>&\"")), "/").body
    assert b"<script>" not in page
    assert b"&lt;script&gt;" in page


def test_the_page_shows_what_a_start_waits_for() -> None:
    """FACT: as the other facts, escaped."""
    window = serving_window()
    window.shown = replace(window.shown, waiting={"main": "its turn <b>"})
    page = ask(App(window), "/").body
    assert b"<th>waiting</th>" in page
    assert b"its turn &lt;b&gt;" in page


def test_commands_reach_the_daemon_and_its_word_comes_back() -> None:
    """POST /control/VERB hands all its parts on; a failure is 409 with message and exit code."""
    window = serving_window()
    app = App(window, control=True)
    words = {"engine": "main", "reason": "why", "owner": "ann", "seconds": 90}
    done = ask(app, "/control/pause", "POST", json.dumps(words).encode())
    assert (done.status, done.json["ok"], done.json["exit_code"]) == (200, True, 0)
    failed = ask(app, "/control/stop", "POST", b'{"engine": "broken"}')
    assert (failed.status, failed.json["message"]) == (409, "cannot stop it")
    assert window.asked == [("pause", "main", "why", "ann", 90.0), ("stop", "broken", "", "", None)]
    assert ask(app, "/control/stop").headers["Allow"] == "POST"
    assert ask(app, "/healthz").status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"[" * 60_000,
        b'{"engine": 1}',
        b'{"reason": ["x"]}',
        b'{"seconds": "1"}',
        b'{"seconds": true}',
        b'{"seconds": -1}',
        b'{"seconds": NaN}',
        b'{"seconds": 1e999}',
        b'{"seconds": 0}',
    ],
)
def test_junk_is_no_command(body: bytes) -> None:
    """A body that is not an object of text and seconds is 400, and nothing is asked for."""
    window = serving_window()
    assert ask(App(window, control=True), "/control/stop", "POST", body).status == 400
    assert window.asked == []


def test_waiting_commands_leave_room_to_look() -> None:
    """With six commands waiting a seventh is refused at once, and looking still works."""
    window = serving_window()
    window.gate.clear()
    app = App(window, control=True)
    waiting = [
        threading.Thread(target=ask, args=(app, "/control/stop", "POST", b"{}")) for _ in range(6)
    ]
    try:
        for thread in waiting:
            thread.start()
        until(lambda: len(window.asked) == 6)
        assert ask(app, "/control/stop", "POST", b"{}").status == 503
        assert ask(app, "/api/v1/status").status == 200
    finally:
        window.gate.set()
        for thread in waiting:
            thread.join(10)
    assert ask(app, "/control/stop", "POST", b"{}").status == 200


def test_a_bug_is_told_in_one_line() -> None:
    """When the daemon's side raises, the answer is 500 in JSON, without a traceback."""

    class Broken(FakeWindow):
        def metrics(self, accept: str) -> tuple[bytes, str]:
            raise KeyError(accept)

    found = ask(App(Broken(serving_window().shown)), "/metrics")
    assert (found.status, found.json) == (500, {"error": "internal error: KeyError: ''"})
