"""Keeps the group of an nginx in front in step with who serves, in a thread of its own.

Nothing here delays the loop. What is wished while an earlier wish is carried out takes the place of
all that came between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from watchdog.config.settings import NginxSettings
from watchdog.contracts import Endpoint
from watchdog.core.model import Event, Mode, Seconds
from watchdog.core.state import Step
from watchdog.logs import Journal
from watchdog.upstream import block
from watchdog.upstream.file import replace_text
from watchdog.upstream.serving import members

Reload = Callable[[tuple[str, ...], Seconds], str | None]
"""Runs a program with a deadline in seconds: None when it ended well, else one line about it."""

SETTLE: Seconds = 1.0
"""A reload is a signal to nginx: its old workers take requests until the new ones are there. That
was measured at 90 to 122 ms, and takes longer where nginx has many certificates to read."""
RETRY: Seconds = 30.0
"""From one failure to the next attempt: an nginx that starts later reads the file by itself."""


class Upstream:
    """Writes the file and reloads nginx whenever another set of engines serves.

    ``endpoints`` tells where the engines answer, from any thread. With ``use(None)``, as at first,
    nothing is written. ``observe`` is for the loop's thread, the others are for any.
    """

    def __init__(
        self,
        state_dir: Path,
        endpoints: Callable[[], Mapping[str, Endpoint]],
        reload: Reload,
        journal: Journal,
        retry: Seconds = RETRY,
    ) -> None:
        self._state_dir = state_dir
        self._endpoints = endpoints
        self._reload = reload
        self._journal = journal
        self._retry = retry
        self._changed = threading.Condition()
        self._settings: NginxSettings | None = None
        self._seen: tuple[object, ...] | None = None
        self._members: frozenset[str] = frozenset()
        self._withdrawn: frozenset[str] = frozenset()
        self._wish = self._done = 0
        self._closed = False
        self._settled_at: Seconds = 0.0
        self._written: tuple[Path, str] | None = None
        self._loaded: tuple[Path, str] | None = None
        self._in_step = False
        self._trouble = ""
        self._thread = threading.Thread(target=self._work, name="upstream", daemon=True)
        self._thread.start()

    def use(self, settings: NginxSettings | None) -> None:
        """The configuration in force from now on. What another file said stays there."""
        with self._changed:
            self._settings = settings
            self._want()

    def observe(self, _: Event, step: Step) -> None:
        """Take in who serves after a step. While it only observes, nothing is touched."""
        state = step.state
        if state.mode is not Mode.ACT:
            return
        found = members(state, self._members)
        seen = (found, *(state.engines[name].generation for name in sorted(found)))
        if seen == self._seen and not self._withdrawn:
            return
        with self._changed:
            news = seen != self._seen
            self._seen, self._members = seen, found
            self._withdrawn &= found  # who does not serve is out by itself
            if news:
                self._want()

    def withdraw(self, engine: str, timeout: Seconds | None = None) -> bool:
        """Take the engine out before its stop begins, until it serves anew.

        Returns when nginx sends it nothing new, at the latest after ``timeout`` seconds (by default
        what a reload may take); False when that is not known.
        """
        if timeout is None:
            timeout = SETTLE + (self._settings.timeout if self._settings is not None else 0.0)
        deadline = time.monotonic() + timeout
        with self._changed:
            if self._settings is None or self._seen is None or self._closed:
                return True
            self._withdrawn |= {engine}
            self._want()
            mine = self._wish
            self._changed.wait_for(lambda: self._done >= mine, timeout)
            ok = self._done >= mine and self._in_step
            settled_at = self._settled_at
        if ok:
            time.sleep(max(min(settled_at, deadline) - time.monotonic(), 0.0))
        return ok

    def close(self, left: Collection[str] = (), timeout: Seconds = 5.0) -> None:
        """Carry the last wish out, and end. ``left`` were withdrawn, and serve on after us."""
        with self._changed:
            self._members |= set(left)
            self._withdrawn -= set(left)
            if left:
                self._want()
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)

    # --- the thread ---------------------------------------------------------------------------

    def _want(self) -> None:
        """Something is to be written anew; before the first step nobody knows what."""
        if self._seen is not None:
            self._wish += 1
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                wait = self._retry if self._trouble else None
                self._changed.wait_for(lambda: self._closed or self._wish > self._done, wait)
                if self._closed and self._wish == self._done:
                    return
                wish, settings = self._wish, self._settings
                names = self._members - self._withdrawn
            trouble = self._tried(settings, names) if settings is not None else ""
            with self._changed:
                self._tell(trouble)
                self._done = wish
                self._changed.notify_all()

    def _tried(self, settings: NginxSettings, names: Collection[str]) -> str:
        self._in_step = False
        try:
            return self._carried_out(settings, names)
        except Exception as error:  # noqa: BLE001 - whoever waits for this thread needs it alive
            return f"cannot keep {settings.upstream_file}: {type(error).__name__}: {error}"

    def _carried_out(self, settings: NginxSettings, names: Collection[str]) -> str:
        """Write what is new, and have it read; what went wrong in one line, "" for nothing."""
        path = self._state_dir / settings.upstream_file
        known = self._endpoints()
        servers = {name: known[name] for name in names if name in known}
        unfit = "; ".join(block.unfit(servers))
        wanted = path, block.text(settings.upstream, servers)
        try:
            if wanted != self._written:
                replace_text(*wanted)
                self._written = wanted
                told = sorted(servers)
                self._journal.log("info", "upstream.written", engines=told, file=str(path))
        except OSError as error:
            return f"cannot write {path}: {error.strerror or error}"
        if wanted != self._loaded and settings.reload:
            wrong = self._reload(settings.reload, settings.timeout)
            if wrong:
                return wrong
            self._settled_at = time.monotonic() + SETTLE
        self._loaded, self._in_step = wanted, True
        return unfit

    def _tell(self, trouble: str) -> None:
        """One line for each trouble that is another one."""
        if trouble and trouble != self._trouble:
            self._journal.log("warning", "upstream.failed", reason=trouble)
        self._trouble = trouble
