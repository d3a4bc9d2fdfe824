"""The status page in a real Chromium: of a real daemon, and of one with hostile words."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.support import fake_nvml
from tests.support.chromium import Page, chromium
from tests.support.daemon import Daemon, running, simulated_command
from tests.support.pages import crowded
from tests.support.simulated import free_port, until
from tests.support.windows import FakeWindow, serving_window
from watchdog.web.app import App
from watchdog.web.server import serve_tcp

pytestmark = pytest.mark.xdist_group("chromium")

READY = 120.0
WIDTHS = (320, 390, 768, 1280)
HOSTILE = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>\"&\x1b[31m"


@pytest.fixture(scope="module", name="browser")
def fixture_browser() -> Iterator[Page]:
    """One browser for all tests of this file."""
    with chromium() as page:
        yield page


@dataclass(frozen=True)
class Watched:
    """A daemon with a ready engine and two cards, and where its page is."""

    daemon: Daemon
    url: str


@pytest.fixture(scope="module", name="watched")
def fixture_watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """The simulator, and two H200 under load as they were recorded."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "nvml").mkdir()
    nvml = fake_nvml.build(folder / "nvml")
    nvml.cards = 2
    nvml.write()
    port = free_port()
    command = simulated_command(port)
    with running(folder / "state", command, port, environment=nvml.environment) as daemon:
        daemon.wait_ready(READY)
        until(lambda: len(daemon.status()["gpus"]) == 2, READY)
        yield Watched(daemon, f"http://{daemon.listen}/")


@contextlib.contextmanager
def shown(window: FakeWindow) -> Iterator[str]:
    """The address of a page that shows ``window``."""
    server = serve_tcp(App(window), "127.0.0.1", 0)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def fixture_quiet(browser: Page) -> Iterator[None]:
    """Nothing of the test before is left in the browser."""
    browser.look(1280, 800)
    browser.told.clear()
    yield
    browser.open("about:blank")


def test_it_follows_a_crash_and_the_recovery(browser: Page, watched: Watched) -> None:
    """FACT: without being loaded anew it tells the crash, what was done, and that it is over."""
    browser.open(watched.url)
    browser.script("window.mark = 1")
    assert "yes: main is ready" in browser.text("#answers")
    mine = f"inc-{len(watched.daemon.status()['incidents']) + 1:06d}"
    os.kill(watched.daemon.engine()["pid"], signal.SIGKILL)
    until(lambda: mine in browser.text("#incidents"), READY)
    until(lambda: f"{mine}: restart, recovered " in browser.text("#answers"), READY)
    assert "yes: main is ready" in browser.text("#answers")
    assert browser.script("window.mark") == 1
    assert browser.script("document.title") == "serving · vllm-watchdog"
    assert browser.told == []


def test_every_card_has_its_four_plots(browser: Page, watched: Watched) -> None:
    """FACT: utilisation, memory, temperature and throttling are drawn, with words for the blind."""
    browser.open(watched.url)
    until(lambda: browser.script("document.querySelectorAll('#gpus svg path').length") == 8)
    drawn = browser.script(
        "[...document.querySelectorAll('#gpus svg path')].every(p => p.getTotalLength() > 0)"
    )
    labels = browser.script(
        "[...document.querySelectorAll('#gpus svg')].map(s => s.getAttribute('aria-label')).join()"
    )
    assert drawn
    assert "utilisation 99 %" in labels
    assert "throttling: sw_power_cap" in labels
    assert browser.told == []


def test_without_scripts_it_shows_the_same(browser: Page, watched: Watched) -> None:
    """FACT: the words of a browser that runs no script are those of one that does."""
    browser.open(watched.url, scripts=False)
    words = browser.text("#answers")
    refresh = browser.script("document.querySelector('meta[http-equiv=refresh]')?.content")
    assert "yes: main is ready" in words
    assert "restarts left" in browser.text("#engines")
    assert refresh == "5"
    browser.open(watched.url)
    assert browser.text("#answers") == words


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_every_screen(browser: Page, watched: Watched, width: int) -> None:
    """FACT: nothing is wider than the window, from a small phone on; the first answer is on top."""
    browser.look(width, 640, phone=width < 768)
    browser.open(watched.url)
    assert browser.script("document.documentElement.scrollWidth") <= width
    top = browser.script("document.querySelector('.answers .big').getBoundingClientRect().bottom")
    assert top < 320


def test_it_has_a_dark_side(browser: Page, watched: Watched) -> None:
    """FACT: paper and ink change places with what the person prefers."""
    seen = []
    for dark in (False, True):
        browser.look(1280, 800, dark=dark)
        browser.open(watched.url)
        style = "getComputedStyle(document.body)"
        seen.append(browser.script(f"[{style}.backgroundColor, {style}.color].join(' ')"))
    assert seen == ["rgb(246, 247, 249) rgb(22, 25, 29)", "rgb(14, 17, 22) rgb(230, 233, 238)"]


def test_hostile_words_are_words(browser: Page) -> None:
    """FACT: names, reasons and fixes that are markup are read, and nothing runs."""
    window = crowded(HOSTILE)
    with shown(window) as url:
        browser.open(url)
        assert HOSTILE.partition("\x1b")[0] in browser.text("#engines")
        window.shown = replace(window.shown, budget={})
        until(lambda: "restarts left" not in browser.text("#engines"))
        assert HOSTILE.partition("\x1b")[0] in browser.text("#findings")
        assert browser.script("document.querySelectorAll('img, section script').length") == 0
        assert browser.script("window.pwned === undefined")
        assert browser.told == []


def test_markup_that_slipped_through_could_do_nothing(browser: Page) -> None:
    """FACT: what is not our own file neither runs nor paints, even in the middle of the page."""
    with shown(serving_window()) as url:
        browser.open(url)
        browser.script(
            "document.body.insertAdjacentHTML('beforeend',"
            ' \'<img src="x" onerror="window.pwned=1"><p style="color:red">x</p>\')'
        )
        until(lambda: len(browser.told) >= 2)
        assert browser.script("window.pwned === undefined")
        assert all("Content Security Policy" in line for line in browser.told)


def test_a_story_that_was_folded_stays_so(browser: Page) -> None:
    """FACT: what the person has opened or closed survives an update of that very part."""
    window = crowded("Word")
    with shown(window) as url:
        browser.open(url)
        assert "decision.hold" in browser.text("#incidents")
        browser.script("document.querySelector('details summary').click()")
        (one,) = window.shown.state.incidents
        changed = replace(one, summary="Other")
        window.shown = replace(
            window.shown, state=replace(window.shown.state, incidents=(changed,))
        )
        until(lambda: "Other" in browser.text("#incidents"))
        assert "decision.hold" not in browser.text("#incidents")


def test_the_links_lead_somewhere(browser: Page, watched: Watched) -> None:
    """FACT: every link on the page of a daemon that had an incident is answered with a page."""
    os.kill(watched.daemon.engine()["pid"], signal.SIGKILL)
    until(lambda: watched.daemon.status()["findings"], READY)
    browser.open(watched.url)
    links = browser.script("[...document.querySelectorAll('a')].map(a => a.href)")
    assert any("/runbooks/engine-dead" in link for link in links)
    assert any("/incidents/inc-" in link for link in links)
    for link in links:
        browser.open(link)
        assert "status" in browser.text("a"), link
    watched.daemon.wait_ready(READY)


def test_a_daemon_that_is_gone_is_told(browser: Page) -> None:
    """FACT: an old picture is never taken for the present: the page says since when it is old."""
    with shown(serving_window()) as url:
        browser.open(url)
        assert not browser.text("#alarm")
    until(lambda: "does not answer: this is how it was at" in browser.text("#alarm"))
    browser.open("about:blank")
