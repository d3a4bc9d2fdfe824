"""A real Chromium without a window, spoken to over its own protocol on two pipes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.simulated import until

PATIENCE = 30.0
"""Seconds for an answer; a cold start on a busy machine takes ten."""
_FLAGS = (
    "--headless",
    "--no-sandbox",  # it runs as root, and sees only pages of ours
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "about:blank",
)
_WORDS = frozenset({"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"})
_PIPES = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from descriptor 3 and writes to 4."""


class BrowserError(Exception):
    """The browser refused a command, or the page's script failed."""


@dataclass
class Page:
    """One tab. ``told`` is what the page wrote to its console and what the browser refused it."""

    write: int
    read: int
    process: subprocess.Popen[bytes]
    session: str = ""
    told: list[str] = field(default_factory=list)
    _number: int = 0
    _rest: bytes = b""

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command and its result; raises BrowserError."""
        self._number += 1
        asked: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            asked["sessionId"] = self.session
        os.write(self.write, json.dumps(asked).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise BrowserError(answer["error"]["message"])
        return dict(answer["result"])

    def script(self, expression: str) -> Any:  # noqa: ANN401 - whatever the script says
        """The value of an expression in the page; a promise is waited for."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def open(self, url: str, *, scripts: bool = True) -> None:
        """Go to ``url`` and wait until it is loaded."""
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        found = self.send("Page.navigate", url=url)
        if "errorText" in found:
            raise BrowserError(f"{url}: {found['errorText']}")
        # The answer comes when the new page is there. Expressions of ours run also where the
        # scripts of the page do not.
        until(lambda: self.script("document.readyState") == "complete", PATIENCE)

    def text(self, selector: str = "body") -> str:
        """What a person reads there."""
        found = self.script(f"document.querySelector({json.dumps(selector)})?.innerText")
        return str(found or "")

    def look(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """The size of the window in CSS pixels, and the scheme that the person prefers."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def shot(self) -> bytes:
        """A picture of the window, as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self.read], [], [], PATIENCE)[0]:
                raise BrowserError("the browser does not answer")
            more = os.read(self.read, 1 << 16)
            if not more:
                raise BrowserError("the browser has ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") in _WORDS:
            self.told.append(json.dumps(event["params"]))


@contextlib.contextmanager
def chromium() -> Iterator[Page]:
    """A browser with one empty tab; all of its processes are gone afterwards."""
    profile = Path(tempfile.mkdtemp(prefix="chromium-"))
    (theirs, write), (read, answers) = os.pipe(), os.pipe()
    command = ["chromium", *_FLAGS[:-1], f"--user-data-dir={profile}", _FLAGS[-1]]
    process = subprocess.Popen(
        [sys.executable, "-c", _PIPES, str(theirs), str(answers), *command],
        pass_fds=(theirs, answers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(theirs)
    os.close(answers)
    try:
        yield _tab(Page(write, read, process))
    finally:
        os.close(write)
        _end(process)
        os.close(read)
        shutil.rmtree(profile, ignore_errors=True)


def _tab(page: Page) -> Page:
    target = page.send("Target.createTarget", url="about:blank")["targetId"]
    session = page.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    page.session = session
    for domain in ("Page", "Runtime", "Log"):
        page.send(f"{domain}.enable")
    return page


def _end(process: subprocess.Popen[bytes]) -> None:
    """It goes when its pipe is closed; what does not is of its session, and killed."""
    deadline = time.monotonic() + 5.0
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
