"""Notices to receivers that are slow, broken or hostile: each gets what it can, nobody waits."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.alerting import hook
from tests.support.core import engine
from tests.support.reloads import READY, File, ready, watched
from tests.support.simulated import free_port, until
from watchdog.config import NotifySettings
from watchdog.config.settings import NotifyKind
from watchdog.core.model import Incident, Severity, Subject, SubjectKind, Tick, engine_subject
from watchdog.core.state import State, Step
from watchdog.notify import Notifier
from watchdog.notify.bodies import KINDS
from watchdog.notify.post import post

SECRET = "sk-not-to-be-seen"  # noqa: S105 - made up, to be looked for
HOSTILE = '\udc80\x00\x1b[31m"</script>\n'
FIRST = Incident(
    id="inc-000001",
    rule="engine-dead",
    subject=engine_subject("main"),
    severity=Severity.WARNING,
    summary="it is dead",
    opened_at=0.0,
    began_at=0.0,
    explanation=f"see http://u:{SECRET}@host/ {HOSTILE}",
    fix="vllm-watchdog restart main",
)


@dataclass
class Told:
    """A notifier's log and counters."""

    lines: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    results: list[tuple[str, str]] = field(default_factory=list)
    dropped: int = 0

    def log(self, _: str, event: str, /, **keys: object) -> None:
        """As ``Journal.log``."""
        self.lines.append((event, keys))

    def notified(self, receiver: str, result: str) -> None:
        """One request."""
        self.results.append((receiver, result))

    def notices_dropped(self, _: str, count: int) -> None:
        """Lost ones."""
        self.dropped += count

    def reasons(self) -> list[object]:
        """Of the lines that tell of a failure."""
        return [keys["reason"] for event, keys in tuple(self.lines) if event == "notify.failed"]


@dataclass
class Case:
    """A notifier under test, and the incidents of the state that it was shown last."""

    told: Told
    notifier: Notifier
    incidents: tuple[Incident, ...] = ()

    def show(self, *incidents: Incident) -> None:
        """One step of the core that led to these."""
        self.incidents = incidents
        step = Step(State(incidents=incidents))
        self.notifier.observe(Tick(0.0), step)


@contextlib.contextmanager
def notifying(url: str, kind: str = "webhook", **keys: Any) -> Iterator[Case]:  # noqa: ANN401
    """A notifier with one receiver."""
    told = Told()
    notifier = Notifier(told.log, told, "box:9909")
    notifier.use({"r": NotifySettings(url=url, kind=NotifyKind(kind), **keys)})
    try:
        yield Case(told, notifier)
    finally:
        notifier.close(0.2)


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server whose every connection is handed to ``answer``."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        over, threads = threading.Event(), []

        def one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                answer(connection)

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = server.accept()
                    threads.append(threading.Thread(target=one, args=(connection,)))
                    threads[-1].start()

        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/x"
        finally:
            over.set()
            accepting.join()
            for thread in threads:
                thread.join()


def hangs(connection: socket.socket) -> None:
    """Take all that comes and say nothing, until the other end has gone."""
    while connection.recv(1 << 16):
        pass


def drips(connection: socket.socket) -> None:
    """Begin an answer, a byte at a time, and never end it."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
    over = threading.Event()
    while not over.wait(0.02):
        connection.sendall(b"x")


def begins_long_headers(connection: socket.socket) -> None:
    """Headers without end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"x: " + b"y" * 1000 + b"\r\n")


def speaks_no_http(connection: socket.socket) -> None:
    """Something else listens there."""
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    hangs(connection)


# --- what is told ---------------------------------------------------------------------------------


def test_a_webhook_gets_one_object_an_event() -> None:
    """FACT: opened, escalated and resolved come in order, with who, what, why and the cure."""
    with hook() as there, notifying(there.url + "/in?a=b") as case:
        case.show(FIRST)
        graver = replace(FIRST, severity=Severity.CRITICAL)
        case.show(replace(graver, actions=("restart_engine",)))
        case.show(replace(graver, resolved_at=5.0, outcome="recovered"))
        until(lambda: len(there.got) == 3)
        opened, escalated, resolved = there.bodies("/in?a=b")
        events = [one["event"] for one in (opened, escalated, resolved)]
        assert events == ["incident.opened", "incident.escalated", "incident.resolved"]
        assert [opened["severity"], escalated["severity"]] == ["warning", "critical"]
        who = {"rule": "engine-dead", "engine": "main", "subject": "engine/main"}
        assert who.items() <= opened.items()
        assert (opened["instance"], opened["incident"]) == ("box:9909", FIRST.id)
        assert (opened["fix"], opened["runbook"]) == (FIRST.fix, "engine-dead")
        assert (escalated["actions"], opened["resolved"]) == (["restart_engine"], None)
        assert (resolved["outcome"], resolved["resolved"] > resolved["opened"]) == (
            "recovered",
            True,
        )
        assert case.told.dropped == 0


def test_whatever_a_name_holds_is_sent_and_no_secret() -> None:
    """FACT: bytes that are no text, escapes and quotes arrive as JSON; a password in a URL not."""
    with hook() as there, notifying(there.url) as case:
        case.show(FIRST)
        (body,) = until(there.bodies)
        assert '\x1b[31m"</script>\n' in body["explanation"]
        assert SECRET not in json.dumps(body)


def test_an_escalation_ends_the_alert_with_the_old_severity() -> None:
    """FACT: severity is a label, so the old alert is ended in the request that brings the new."""
    with hook(answers=[500]) as there, notifying(there.url, "alertmanager") as case:
        case.show(FIRST)
        until(lambda: there.got)
        case.show(replace(FIRST, severity=Severity.CRITICAL))
        until(lambda: len(there.got) > 1)
        old, new = there.bodies("/api/v2/alerts")[-1]
        assert (old["labels"]["severity"], new["labels"]["severity"]) == ("warning", "critical")
        assert old["endsAt"] < new["endsAt"]
        changed = {name for name in new["labels"] if new["labels"][name] != old["labels"][name]}
        assert changed == {"severity"}


def test_an_open_alert_is_repeated_and_lives_longer_than_that() -> None:
    """FACT: between two repetitions there is time for three that fail, and a restart of ours."""
    kind = KINDS[NotifyKind.ALERTMANAGER]
    with hook() as there, notifying(there.url, "alertmanager") as case:
        case.show(FIRST)
        until(lambda: there.got)
        late = Notifier(case.told.log, case.told, "box:9909")
        late.use({"r": NotifySettings(url=there.url, kind=NotifyKind.ALERTMANAGER)})
        late.recall(State(incidents=(FIRST,)))
        until(lambda: len(there.got) == 2)
        late.close(0.2)
        (first,), (again,) = there.bodies()
        assert first["labels"] == again["labels"]
    assert kind.repeat is not None
    assert 4 * kind.repeat < 300


@pytest.mark.parametrize("ends", [False, True])
def test_after_a_restart_the_alert_of_a_card_is_the_same_one(*, ends: bool) -> None:
    """FACT: it is told when it is known again whose card it is; its end is told in any case."""
    card = Subject(SubjectKind.GPU, "GPU-1")
    hot = replace(FIRST, subject=card)
    engines = {"main": engine()}
    seen = State(engines=engines, cards={card: "0"}, incidents=(hot,))
    blind = replace(seen, cards={})
    with hook() as there, notifying(there.url, "alertmanager") as case:
        case.notifier.observe(Tick(0.0), Step(seen))
        until(lambda: there.got)
        with notifying(there.url, "alertmanager") as later:
            later.notifier.recall(blind)
            later.notifier.observe(Tick(0.0), Step(blind))
            over = (replace(hot, resolved_at=9.0, outcome="cleared"),) if ends else (hot,)
            last = replace(blind if ends else seen, incidents=over)
            later.notifier.observe(Tick(0.0), Step(last))
            until(lambda: len(there.got) > 1)
        before, after = there.bodies()[0][-1], there.bodies()[-1][-1]
        assert before["labels"]["engine"] == "main"
        assert ends or after["labels"] == before["labels"]
        assert len(there.got) == 2


def test_who_wants_only_what_is_critical_is_told_no_more() -> None:
    """FACT: a warning is kept from it, and comes when it has become critical."""
    with hook() as there, notifying(there.url, min_severity=Severity.CRITICAL) as case:
        case.show(FIRST)
        case.show(replace(FIRST, severity=Severity.CRITICAL))
        (body,) = until(there.bodies)
        assert body["event"] == "incident.escalated"


def test_headers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """FACT: the value of the variable is sent and never told; without it nothing is sent."""
    headers = {"Authorization": "TEST_NOTIFY_AUTHORIZATION"}
    with hook() as there, notifying(there.url, headers=headers) as case:
        case.show(FIRST)
        until(case.told.reasons)
        assert case.told.reasons() == ["the variable TEST_NOTIFY_AUTHORIZATION is not set"]
        assert not there.got
        monkeypatch.setenv("TEST_NOTIFY_AUTHORIZATION", f"Bearer {SECRET}\n")
        until(lambda: there.got)
        assert there.got[0][1]["authorization"] == f"Bearer {SECRET}"
        until(lambda: case.told.results[-1] == ("r", "ok"))
        assert SECRET not in repr(case.told)


# --- those who do not take it ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (hangs, "timeout"),
        (drips, "timeout"),
        (begins_long_headers, "error"),
        (speaks_no_http, "timeout"),
    ],
)
def test_a_bad_answer_ends_by_the_deadline(
    answer: Callable[[socket.socket], None], word: str
) -> None:
    """FACT: whatever comes, or does not, the exchange ends, with a word that holds none of it."""
    with answering(answer) as url:
        assert post(url, {"x-key": SECRET}, b"{}" * 100_000, 0.5) == word


def test_an_answer_of_ten_gigabytes_is_not_read() -> None:
    """FACT: the status is taken, the connection closed, and the rest never crosses it."""
    sent = []

    def floods(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n")
        while True:
            sent.append(connection.send(bytes(1 << 16)))

    with answering(floods) as url:
        assert post(url, {}, b"{}", 5.0) == 200
    assert sum(sent) < 50_000_000


def test_what_cannot_be_asked_is_one_word() -> None:
    """FACT: nobody there, a name nobody has, plain text where TLS is due, a header of two lines."""
    nobody = f"127.0.0.1:{free_port()}"
    assert post(f"http://{nobody}/{SECRET}", {}, b"", 5.0) == "refused"
    assert post("http://no-such-host.invalid/", {}, b"", 5.0) == "host not found"
    with hook() as there:
        tls = there.url.replace("http:", "https:")
        assert post(tls, {}, b"{}", 5.0) in {"tls", "error"}
        assert post(there.url, {"x": f"a\r\nb: {SECRET}"}, b"{}", 5.0) == "error"
        assert not there.got


def test_a_redirect_is_not_followed_and_a_refusal_not_repeated() -> None:
    """FACT: each costs the notice, counted, and one line; the next one is sent all the same."""
    with hook(answers=[302, 403]) as there, notifying(there.url) as case:
        case.show(FIRST)
        until(lambda: case.told.dropped == 1)
        case.show(replace(FIRST, severity=Severity.CRITICAL))
        until(lambda: case.told.dropped == 2)
        case.show(replace(FIRST, severity=Severity.CRITICAL, resolved_at=9.0))
        until(lambda: len(there.got) == 3)
        assert {path for path, _, _ in there.got} == {"/"}
        assert case.told.reasons() == ["answered 302", "answered 403"]
        events = [event for event, _ in until(lambda: case.told.lines[3:] and case.told.lines)]
        assert events == ["notify.failed", "notify.lost", "notify.failed", "notify.recovered"]
        assert case.told.lines[-1][1] == {"receiver": "r", "lost": 2}


def test_errors_of_the_receiver_are_retried_in_order() -> None:
    """FACT: 500 and 429 pass; until then what came later waits, and nothing is lost."""
    with hook(answers=[500, 429]) as there, notifying(there.url) as case:
        case.show(FIRST)
        case.show(replace(FIRST, resolved_at=9.0))
        until(lambda: len(there.got) == 4)
        events = [body["event"].partition(".")[2] for body in there.bodies()]
        assert events == ["opened", "opened", "opened", "resolved"]
        assert case.told.dropped == 0


def test_more_than_can_wait_is_dropped_and_counted() -> None:
    """FACT: a thousand notices for one who hangs: a hundred are kept, the rest told in one line."""
    incidents = [replace(FIRST, id=f"inc-{number:06d}") for number in range(1000)]
    with answering(hangs) as url, notifying(url, timeout=30.0) as case:
        case.show(*incidents)
        assert case.told.dropped >= 899
        assert [event for event, _ in case.told.lines] == ["notify.lost"]
        case.notifier.close(0.05)


def test_nobody_waits_for_one_who_hangs(tmp_path: Path) -> None:
    """FACT: with two receivers that never answer, a death is cured and a stop is a stop."""
    file = File(tmp_path / "watchdog.toml")
    file.engine("main", 0, "--startup-time", "0")
    with answering(hangs) as url:
        file.rest = f'[notify.alertmanager]\nurl = "{url}"\ntimeout = "1h"\n'
        file.rest += f'[notify.webhook]\nurl = "{url}"\ntimeout = "1h"\n'
        with watched(file) as daemon:
            before = daemon.engine()
            os.kill(before["pid"], 9)
            until(lambda: daemon.engine()["starts"] == 2 and ready(daemon), READY)
            assert daemon.get("/livez")[0] == 200
            daemon.process.terminate()
            assert daemon.ended(READY) == 0
            assert not daemon.survivors()
