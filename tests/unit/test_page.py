"""The status page at the level of WSGI: what it shows, what it never lets through, its size."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.support.core import restarting
from tests.support.pages import crowded
from tests.support.windows import FakeWindow, broken_window, serving_window, snapshot
from watchdog.core.model import HoldReason, Incident, Severity, engine_subject
from watchdog.core.state import State
from watchdog.web import runbooks
from watchdog.web.app import App

LIMIT = 100_000
HOSTILE = "<img src=x onerror=alert(1)>\"'`&</script><script>alert(2)</script>\x1b[31m\u202e\n{0}%s"
TAGS = frozenset(
    (
        *("html", "head", "main", "meta", "title", "link", "script", "noscript", "body", "section"),
        *("div", "h1", "h2", "h3", "p", "b", "span", "ol", "ul", "li", "time", "code", "a"),
        *("table", "tr", "th", "td", "figure", "figcaption", "svg", "path", "details", "summary"),
    )
)


def ask(window: FakeWindow, path: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a GET."""
    told: list[tuple[str, dict[str, str]]] = []
    bare, _, query = path.partition("?")
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": bare, "QUERY_STRING": query}
    chunks = App(window)(environ, lambda status, headers: told.append((status, dict(headers))))
    return int(told[0][0].split()[0]), told[0][1], b"".join(chunks)


def page(window: FakeWindow, path: str = "/") -> str:
    """A page that is there."""
    status, _, body = ask(window, path)
    assert status == 200
    return body.decode()


def poll(window: FakeWindow, have: str = "") -> dict[str, Any]:
    """What the page asks for every two seconds."""
    return dict(json.loads(ask(window, f"/page.json?have={have}")[2]))


class Markup(HTMLParser):
    """Every element and attribute, and the text in between."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_data(self, data: str) -> None:
        """Note it."""
        self.words.append(data)


def test_it_shows_the_whole_state_without_a_script() -> None:
    """FACT: engine with reason and wait, card, finding with fix, incident with story are markup."""
    html = page(crowded("Word", paused=False))
    for told in (
        "Is it serving?",
        "no: Word0 is dead: Word",
        "What must I do?",
        "<th>waiting</th><td>Word</td>",
        "3 restarts left",
        "97 %, 60 of 80 GiB, 71 °C, 640 W",
        '<span class="word bad">critical</span>',
        "<th>fix</th><td><code>Word</code></td>",
        "decision.hold Word",
        "… 7 more …",
        "<th>bundle</th><td><p>/Word</p>",
    ):
        assert told in html, told
    assert html.count("<svg") == 4
    assert '<noscript><meta http-equiv="refresh"' in html


def test_no_text_from_outside_becomes_markup() -> None:
    """FACT: in every place that shows one, tags, quotes and control characters are only text."""
    window = crowded(HOSTILE)
    for path in ("/", "/incidents/inc-000000"):
        html = page(window, path)
        found = Markup(html)
        assert found.tags <= TAGS, path
        assert html.count("<script") == (path == "/")
        assert not [name for name in found.attributes if name.startswith("on") or name == "style"]
        assert found.attributes["href"] <= {"data:,", "page.css", "../page.css", "../"} | {
            href for href in found.attributes["href"] if href.startswith("incidents/inc-")
        }
        assert "<img src=x onerror=alert(1)>" in "".join(found.words)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", html), path


def test_the_poll_escapes_as_the_page_does() -> None:
    """FACT: the parts of the poll are those of the page, byte for byte."""
    window = crowded(HOSTILE)
    html = page(window)
    for name, part in poll(window)["parts"].items():
        assert f'<section id="{name}" data-tag="{part["tag"]}">{part["html"]}</section>' in html


@pytest.mark.parametrize("word", ["x" * 5000, '"' * 5000, "\x00" * 5000, "\U0001f525" * 5000])
def test_it_is_below_100_kb_whatever_happens(word: str) -> None:
    """FACT: 64 engines, 64 cards, 99 findings, 50 incidents with long texts are cut and counted."""
    window = crowded(word, engines=64, cards=64, findings=99, incidents=50, entries=100)
    html = ask(window, "/")[2]
    assert len(html) < LIMIT
    assert re.search(rb"and \d+ more", html)
    for part in (b"inc-000049", b">critical<", b"GPU 0", b"restarts left"):
        assert part in html, part
    assert re.search(rb"\d+ before: vllm-watchdog incidents", html)


def test_eight_cards_are_shown_whole() -> None:
    """FACT: a box with eight cards has all 32 plots, whatever they show."""
    html = page(crowded("x", cards=8))
    assert html.count("<svg") == 32
    assert len(html.encode()) < LIMIT


def test_the_poll_brings_what_changed_and_nothing_else() -> None:
    """FACT: a page that has everything gets no part; when an engine changes it gets that part."""
    window = serving_window()
    have = ",".join(
        f"{name}.{tag}" for name, tag in re.findall(r'id="(\w+)" data-tag="(\w+)"', page(window))
    )
    assert poll(window, have)["parts"] == {}
    window.shown = replace(window.shown, budget={"main": 1})
    assert set(poll(window, have)["parts"]) == {"engines"}


@pytest.mark.parametrize("have", ["%00", "a.b,c.d" * 500, "engines", "engines.%27%22%3C"])
def test_a_poll_with_nonsense_gets_everything(have: str) -> None:
    """FACT: what a page claims to have is compared and nothing else."""
    assert len(poll(serving_window(), have)["parts"]) == 5


def test_nothing_but_our_own_files_may_run() -> None:
    """FACT: the policy allows no inline script or style, and the page has none."""
    status, headers, body = ask(serving_window(), "/")
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.findall(rb"<script[^>]*>", body) == [b'<script src="page.js" defer>']
    assert b"<style" not in body


@pytest.mark.parametrize(
    ("name", "kind"), [("page.css", "text/css"), ("page.js", "text/javascript")]
)
def test_the_files_of_the_page_are_served(name: str, kind: str) -> None:
    """FACT: with the type that browsers insist on; they name no other place."""
    status, headers, body = ask(serving_window(), f"/{name}")
    assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
    assert b"://" not in body
    assert b"url(" not in body


@pytest.mark.parametrize(
    "path",
    [
        "/incidents/",
        "/incidents/none",
        "/runbooks/",
        "/runbooks/none",
        "/runbooks/..",
        "/runbooks/../README",
        "/runbooks/%2e%2e",
        "/page.py",
        "/../page.css",
        "/runbooks/engine-dead.md",
    ],
)
def test_other_pages_are_not_found(path: str) -> None:
    """FACT: only incidents and pages that are there, by their plain names."""
    assert ask(serving_window(), path)[0] == 404


def test_an_incident_has_a_page_with_all_of_its_story() -> None:
    """FACT: the status page shows the ends of a long story, its own page all that is kept."""
    window = crowded("Word", entries=100)
    assert page(window).count("decision.hold") == 9
    assert page(window, "/incidents/inc-000000").count("decision.hold") == 100


def test_an_open_story_is_unfolded() -> None:
    """FACT: what goes on is told without a click, what is over is folded."""
    window = broken_window()
    assert " open><summary>" in page(window)
    (going_on,) = window.shown.state.incidents
    over = replace(window.shown.state, incidents=(replace(going_on, resolved_at=90.0),))
    window.shown = replace(window.shown, state=over)
    assert "<summary>" in page(window)
    assert " open><summary>" not in page(window)


def test_a_finding_links_to_its_runbook() -> None:
    """FACT: the link of a default rule leads to a page that we serve ourselves."""
    html = page(broken_window())
    assert '<a href="runbooks/engine-dead">engine-dead</a>' in html
    served = page(broken_window(), "/runbooks/engine-dead")
    assert "<h1>engine-dead</h1>" in served
    assert "<td><code>bad_arguments</code>, <code>model_missing</code></td>" in served


_HELD = {HoldReason.INHIBITED: "something else comes first", HoldReason.PAUSED: "paused"}


@pytest.mark.parametrize("held", [HoldReason.INHIBITED, HoldReason.PAUSED, None])
def test_a_finding_that_is_held_says_so(held: HoldReason | None) -> None:
    """FACT: what another finding outranks is told apart from what fires; a hold has its reason."""
    window = crowded("Word")
    (key, watch), *_ = window.shown.state.watches.items()
    assert watch.firing is not None
    acts = replace(watch, firing=replace(watch.firing, actions=("sweep_leftovers",)), held=held)
    window.shown = replace(window.shown, state=replace(window.shown.state, watches={key: acts}))
    html = page(window)
    told = '<span class="word dim">critical</span> <span class="word dim">inhibited</span>'
    assert (told in html) is (held is HoldReason.INHIBITED)
    assert ("<th>held</th>" in html) is (held is not None)
    assert held is None or f"<th>held</th><td>sweep_leftovers: {_HELD[held]}</td>" in html


def test_a_task_that_is_the_watchdogs_own_is_not_shown() -> None:
    """FACT: while it repairs, neither finding nor incident says what a person should do."""
    html = page(broken_window())
    assert "<th>fix</th>" not in html
    assert "<th>to do</th><td>nothing yet: the watchdog is at it</td>" in html


def test_what_is_over_has_no_task() -> None:
    """FACT: the fix of an incident that ended is for the next time."""
    window = broken_window()
    (one,) = window.shown.state.incidents
    over = replace(window.shown.state, watches={}, incidents=(replace(one, resolved_at=90.0),))
    window.shown = replace(window.shown, state=over)
    html = page(window)
    assert "<th>next time</th>" not in html  # to restart it is nothing for what serves again
    assert "<th>fix</th>" not in html
    advised = replace(one, resolved_at=90.0, fix="give it memory; then vllm-watchdog start main")
    window.shown = replace(window.shown, state=replace(over, incidents=(advised,)))
    assert "<th>next time</th><td>give it memory</td>" in page(window)


def test_the_budget_says_of_how_many() -> None:
    """FACT: a number that means the same in every state, also with an open breaker."""
    window = crowded("Word", paused=False)
    window.shown = replace(window.shown, budgets={"Word0": 5})
    assert "<td>3 of 5 restarts left</td>" in page(window)


def test_an_outranked_finding_names_what_outranks_it() -> None:
    """FACT: it is dim, marked, without a fix, and says by what."""
    window = crowded("Word", paused=False)
    (key, watch), *_ = window.shown.state.watches.items()
    assert watch.firing is not None
    above = replace(watch.firing, rule="louder")
    window.shown = replace(window.shown, outranked={key: above})
    html = page(window)
    assert '<span class="word dim">inhibited</span>' in html
    assert "<th>outranked by</th><td>louder on host/Word</td>" in html


@pytest.mark.parametrize("where", ["javascript:alert(1)", "data:text/html,x", "//evil", "../x"])
def test_a_runbook_that_is_no_address_is_no_link(where: str) -> None:
    """FACT: a rule may name a page of its own; only http and https are followed."""
    assert not runbooks.link(where)
    assert runbooks.link("https://wiki/x") == "https://wiki/x"


def test_a_loop_that_is_stuck_is_told_first() -> None:
    """FACT: a page that still answers says that what it shows is old."""
    window = serving_window()
    assert "is stuck" not in page(window)
    window.age = 42.0
    assert "The watchdog is stuck for 42 s" in page(window)


def test_the_whole_incident_in_json() -> None:
    """FACT: times, evidence, fix and story are there, and what is not over has no recovery time."""
    state = restarting().state
    window = FakeWindow(snapshot(state))
    body = json.loads(ask(window, "/api/v1/incidents/inc-000001")[2])
    assert body["detected_after_s"] == 0.0
    assert body["recovered_after_s"] is None
    assert body["evidence"]["engine.verdict"] == "dead"
    assert [entry["event"] for entry in body["timeline"]][:3] == [
        "engine.exited",
        "finding.firing",
        "decision.act",
    ]
    assert body["timeline"][0]["at"].endswith("Z")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_number_that_json_lacks_is_null(value: float) -> None:
    """FACT: one value without a limit does not cost a machine all of the status."""

    def refuse(word: str) -> float:
        raise AssertionError(word)

    window = crowded("Word")
    (key, watch), *_ = window.shown.state.watches.items()
    assert watch.firing is not None
    odd = replace(watch, firing=replace(watch.firing, evidence=(("left_s", value), ("n", 1.5))))
    window.shown = replace(window.shown, state=replace(window.shown.state, watches={key: odd}))
    body = json.loads(ask(window, "/api/v1/status")[2], parse_constant=refuse)
    assert body["findings"][0]["evidence"] == {"left_s": None, "n": 1.5}


def test_an_incident_of_an_older_version_is_shown() -> None:
    """FACT: one that was kept without story, evidence and fix has a page all the same."""
    old = Incident("inc-000009", "r", engine_subject("main"), Severity.WARNING, "was so", 1.0, 1.0)
    window = FakeWindow(snapshot(State(incidents=(old,))))
    assert "was so" in page(window)
    assert "was so" in page(window, "/incidents/inc-000009")
