"""One receiver: what waits for it, and the thread that brings it there."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from watchdog.config.settings import NotifyKind, NotifySettings
from watchdog.core.model import Seconds
from watchdog.notify.bodies import KINDS, is_news
from watchdog.notify.notices import Notice, is_below

MOST = 100
"""Notices that wait: more than a box has subjects. What is new pushes out what is old."""
TRIES_FOR: Seconds = 900.0
"""News that could not be delivered for so long is none any more."""
_BACKOFF: Seconds = 1.0
_BACKOFF_MAX: Seconds = 60.0
_PASSING = frozenset({408, 425, 429})
"""Refusals that say themselves that they will pass; others, below 500, are for good."""
_SERVER_ERRORS = 500


class Tally(Protocol):
    """Counts what becomes of notices. Called from any thread."""

    def notified(self, receiver: str, result: str) -> None:
        """One request was made: ``ok`` or ``failed``."""
        ...

    def notices_dropped(self, receiver: str, count: int) -> None:
        """So many notices will never be delivered."""
        ...


Post = Callable[[str, Mapping[str, str], bytes, Seconds], int | str]
"""``post.post``: imported by the thread, as httpcore costs a start what only some need."""


class Receiver:
    """``offer`` and ``end`` only leave word; all that takes time happens in a thread of its own.

    ``log`` takes level, event and keys. ``post`` None is the real one.
    """

    def __init__(
        self,
        name: str,
        settings: NotifySettings,
        log: Callable[..., None],
        tally: Tally,
        post: Post | None = None,
    ) -> None:
        self.settings = settings
        self._name = name
        self._kind = KINDS[settings.kind_of(name) or NotifyKind.WEBHOOK]
        self._log = log
        self._tally = tally
        self._post = post
        self._changed = threading.Condition()
        self._pending: OrderedDict[object, Notice] = OrderedDict()
        self._open: dict[str, Notice] = {}
        self._repeat_at: Seconds = 0.0
        self._failures = 0
        self._not_before: Seconds = 0.0
        self._end_by: Seconds | None = None
        self._trouble = ""
        self._lost = 0
        tally.notices_dropped(name, 0)
        self._thread = threading.Thread(target=self._work, name=f"notify-{name}", daemon=True)
        self._thread.start()

    def offer(self, notice: Notice) -> None:
        """Tell of ``notice`` when that can be done. Never waits for the receiver."""
        if is_below(notice.severity, self.settings.min_severity):
            return
        with self._changed:
            if self._kind.repeat is not None:
                self._keep_alive(notice)
            if is_news(self._kind, notice):
                self._enqueue(notice)
            self._changed.notify_all()

    def end(self, by: Seconds) -> None:
        """Deliver what waits until ``by`` (CLOCK_MONOTONIC), trying once more, and end."""
        with self._changed:
            self._end_by = by
            self._changed.notify_all()

    def join(self, by: Seconds) -> None:
        """Wait for that, at the longest until ``by``."""
        self._thread.join(max(by - time.monotonic(), 0.0))

    # --- with the lock held -------------------------------------------------------------------

    def _keep_alive(self, notice: Notice) -> None:
        if not self._open:
            self._repeat_at = time.monotonic() + (self._kind.repeat or 0.0)
        if notice.is_open:
            self._open[notice.incident] = notice
        else:
            self._open.pop(notice.incident, None)

    def _enqueue(self, notice: Notice) -> None:
        key = self._kind.key(notice)
        waits = self._pending.pop(key, None)
        if waits is not None and notice.before is None:
            notice = replace(notice, before=waits.before)
        self._pending[key] = notice
        while len(self._pending) > MOST:
            self._drop([self._pending.popitem(last=False)[1]])

    def _repeat(self, now: Seconds) -> None:
        self._repeat_at = now + (self._kind.repeat or 0.0)
        for one in self._open.values():
            self._pending.setdefault(self._kind.key(one), replace(one, again=True))

    def _drop(self, notices: Sequence[Notice]) -> None:
        count = sum(not one.again for one in notices)
        if not count:
            return
        self._tally.notices_dropped(self._name, count)
        if not self._lost:
            self._log("warning", "notify.lost", receiver=self._name, notices=count)
        self._lost += count

    def _due(self, now: Seconds) -> Seconds | None:
        """Seconds until there is something to do; None when nothing is in sight."""
        times = []
        if self._pending:
            times.append(0.0 if self._end_by is not None else self._not_before - now)
        if self._open and self._end_by is None:
            times.append(self._repeat_at - now)
        return max(min(times), 0.0) if times else None

    # --- the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        while (batch := self._taken()) is not None:
            self._settle(batch, self._posted(batch))

    def _taken(self) -> list[Notice] | None:
        """The next notices to deliver together; None at the end."""
        with self._changed:
            while True:
                now = time.monotonic()
                ends = self._end_by
                if ends is not None and (not self._pending or now >= ends):
                    self._drop(list(self._pending.values()))
                    return None
                if ends is None and self._open and now >= self._repeat_at:
                    self._repeat(now)
                if self._pending and (ends is not None or now >= self._not_before):
                    size = min(self._kind.at_once, len(self._pending))
                    return [self._pending.popitem(last=False)[1] for _ in range(size)]
                self._changed.wait(self._due(now))

    def _posted(self, batch: Sequence[Notice]) -> int | str:
        """The status, or why there is none."""
        headers: dict[str, str] = {}
        for header, variable in self.settings.headers.items():
            if variable not in os.environ:
                return f"the variable {variable} is not set"
            headers[header] = os.environ[variable].strip()
        try:
            if self._post is None:
                from watchdog.notify.post import post

                self._post = post
            body = self._kind.body(batch, time.time())
            return self._post(self._kind.target(self.settings.url), headers, body, self._patience())
        except Exception as error:  # noqa: BLE001 - this thread has to live, and the words are not ours
            return type(error).__name__

    def _patience(self) -> Seconds:
        if self._end_by is None:
            return self.settings.timeout
        return max(min(self.settings.timeout, self._end_by - time.monotonic()), 0.0)

    def _settle(self, batch: list[Notice], reply: int | str) -> None:
        """Take note of how it went, and keep what is worth another attempt."""
        ok = isinstance(reply, int) and 200 <= reply < 300  # noqa: PLR2004 - what HTTP calls success
        self._tally.notified(self._name, "ok" if ok else "failed")
        with self._changed:
            now = time.monotonic()
            if ok:
                self._delivered(batch)
                return
            self._failures += 1
            wait = min(_BACKOFF * 2 ** min(self._failures - 1, 10), _BACKOFF_MAX)
            self._not_before = now + wait
            self._tell(f"answered {reply}" if isinstance(reply, int) else reply)
            if self._end_by is not None:
                self._end_by = now  # one last attempt is enough
            if _is_final(reply):
                self._drop(batch)
            else:
                self._put_back(batch, now)

    def _delivered(self, batch: Sequence[Notice]) -> None:
        self._failures, self._not_before = 0, 0.0
        for one in batch:
            kept = self._open.get(one.incident)
            if kept is not None and kept.labels == one.labels:
                self._open[one.incident] = kept.repeated()
        if self._trouble:
            lost, self._lost = self._lost, 0
            self._log("info", "notify.recovered", receiver=self._name, lost=lost)
        self._trouble = ""

    def _put_back(self, batch: list[Notice], now: Seconds) -> None:
        """In front of what came meanwhile, unless that has made it old."""
        for one in reversed(batch):
            key = self._kind.key(one)
            if key in self._pending:
                newer = self._pending[key]
                self._pending[key] = newer if newer.before else replace(newer, before=one.before)
            elif now - one.at < TRIES_FOR or one.incident in self._open:
                self._pending[key] = one
                self._pending.move_to_end(key, last=False)
            else:
                self._drop([one])
        while len(self._pending) > MOST:
            self._drop([self._pending.popitem(last=False)[1]])

    def _tell(self, trouble: str) -> None:
        """One line for each trouble that is another one."""
        if trouble != self._trouble:
            self._log("warning", "notify.failed", receiver=self._name, reason=trouble)
        self._trouble = trouble


def _is_final(reply: int | str) -> bool:
    """Whether asking again would be answered alike."""
    return isinstance(reply, int) and reply < _SERVER_ERRORS and reply not in _PASSING
