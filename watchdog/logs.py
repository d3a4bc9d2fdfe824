"""The journal: one JSON object a line, or readable text on a terminal. structlog's only door.

Writing happens in a thread of its own behind a bounded queue. A destination that blocks or fails
costs lines, which are counted; it never costs the caller more than putting a value in a queue.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from watchdog.core.model import Record

_CAPACITY = 10_000
"""Lines that wait: minutes of a busy incident, a few MB at most."""

_Line = tuple[float, str, str, Mapping[str, object]]
_Render = Callable[[Any, str, dict[str, Any]], str | bytes]


class Journal:
    """Takes lines from any thread without ever blocking it. ``lost`` counts what was dropped."""

    def __init__(self, descriptor: int, render: _Render) -> None:
        self.lost = 0
        self._descriptor = descriptor
        self._render = render
        self._lines: queue.Queue[_Line | threading.Event] = queue.Queue(_CAPACITY)
        self._told = 0
        threading.Thread(target=self._write_all, name="journal", daemon=True).start()

    def write(self, record: Record) -> None:
        """One line of the core's journal."""
        self.log(record.level, record.event, **dict(record.keys))

    def log(self, level: str, event: str, **keys: object) -> None:
        """One line. ``event`` is a constant dotted name; data goes into ``keys``."""
        try:
            self._lines.put_nowait((time.time(), level, event, keys))
        except queue.Full:
            self.lost += 1

    def flush(self, timeout: float) -> bool:
        """Wait until what was logged so far is written; False when it was not in time."""
        done = threading.Event()
        try:
            self._lines.put(done, timeout=timeout)
        except queue.Full:
            return False
        return done.wait(timeout)

    def _write_all(self) -> None:
        while True:
            item = self._lines.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            self._write_line(item)
            if self.lost != self._told and self._lines.empty():
                self._told = self.lost
                self._write_line((time.time(), "warning", "log.lost", {"lines": self._told}))

    def _write_line(self, line: _Line) -> None:
        at, level, event, keys = line
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"
        values = {"timestamp": stamp, "level": level, "event": event, **keys}
        try:
            text = self._render(None, level, values)
            data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
            self._put(data + b"\n")
        except (OSError, TypeError, ValueError):
            self.lost += 1

    def _put(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


def open_journal(destination: str) -> Journal:
    """The journal on stderr (``-``) or appended to a file. Raises OSError when it cannot be opened.

    Readable, and coloured unless ``NO_COLOR`` is set, when stderr is a terminal.
    """
    if destination != "-":
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return Journal(os.open(Path(destination), flags, 0o640), _json())
    descriptor = sys.stderr.fileno()
    if os.isatty(descriptor):
        colors = not os.environ.get("NO_COLOR")
        return Journal(descriptor, structlog.dev.ConsoleRenderer(colors=colors))
    return Journal(descriptor, _json())


def _json() -> _Render:
    return structlog.processors.JSONRenderer(default=str)
