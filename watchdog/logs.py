"""The journal: one JSON object a line, or readable text on a terminal. structlog's only door.

Writing happens in a thread of its own behind a bounded queue. A destination that blocks or fails
costs lines, which are counted; it never costs the caller more than putting a value in a queue.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from watchdog.core.model import Record


@contextlib.contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Let an import of ``name`` fail, unless that was made before."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # what an import takes for a failure
    try:
        yield
    finally:
        del sys.modules[name]


# Its tracebacks in colour take 50 ms of each start, in which no engine is watched.
with _hidden("rich"):
    import structlog

_CAPACITY = 10_000
"""Lines that wait: minutes of a busy incident, a few MB at most."""

_DEPTH = 8
"""Values inside values that are still taken apart."""

_Line = tuple[float, str, str, Mapping[str, object]]
_Render = Callable[[Any, str, dict[str, Any]], str | bytes]


class _Moved:
    """In the queue: the file was renamed, what follows belongs into a new one."""


class Journal:
    """Takes lines from any thread without ever blocking it. ``lost`` counts what was dropped.

    ``path`` is the file behind ``descriptor``, None for stderr.
    """

    def __init__(self, descriptor: int, render: _Render, path: Path | None = None) -> None:
        self._descriptor = descriptor
        self._path = path
        self._render = render
        self._lines: queue.Queue[_Line | threading.Event | _Moved] = queue.Queue(_CAPACITY)
        self._counting = threading.Lock()
        self._lost = 0
        self._told = 0
        self._torn = False
        threading.Thread(target=self._write_all, name="journal", daemon=True).start()

    @property
    def lost(self) -> int:
        """Lines dropped since the beginning: the queue was full, or writing failed."""
        return self._lost

    def write(self, record: Record) -> None:
        """One line of the core's journal."""
        self._enqueue((time.time(), record.level, record.event, dict(record.keys)))

    def log(self, level: str, event: str, /, **keys: object) -> None:
        """One line. ``event`` is a constant dotted name; data goes into ``keys``."""
        self._enqueue((time.time(), level, event, keys))

    def reopen(self) -> None:
        """Go on in a new file of the same name: somebody rotated it. Nothing for stderr."""
        if self._path is not None:
            with contextlib.suppress(queue.Full):
                self._lines.put_nowait(_Moved())

    def flush(self, timeout: float) -> bool:
        """Wait until what was logged so far is written; False when it was not in ``timeout`` s."""
        by = time.monotonic() + timeout
        done = threading.Event()
        try:
            self._lines.put(done, timeout=timeout)
        except queue.Full:
            return False
        return done.wait(max(by - time.monotonic(), 0.0))

    def _enqueue(self, line: _Line) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lose()

    def _lose(self) -> None:
        with self._counting:
            self._lost += 1

    def _write_all(self) -> None:
        while True:
            item = self._lines.get()
            if isinstance(item, threading.Event):
                self._tell_losses()
                item.set()
            elif isinstance(item, _Moved):
                self._reopen()
            elif self._written(item):
                self._tell_losses()
            else:
                self._lose()

    def _reopen(self) -> None:
        """Where that cannot be done, the old file is better than none."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            before, self._descriptor = self._descriptor, _opened(self._path)
            self._torn = False
            os.close(before)

    def _tell_losses(self) -> None:
        """Once the queue is drained: a flood is told once, not a line for each line."""
        lost = self._lost
        if lost != self._told and self._lines.empty():
            told = {"lines": lost - self._told, "total": lost}
            if self._written((time.time(), "warning", "log.lost", told)):
                self._told = lost

    def _written(self, line: _Line) -> bool:
        at, level, event, keys = line
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"
        first = {"timestamp": stamp, "level": level, "event": event}
        try:
            safe = {str(key): _safe(value) for key, value in keys.items()}
            text = self._render(None, level, {**first, **safe, **first})
            data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
            self._put(data + b"\n")
        except Exception:  # noqa: BLE001 - a value whose __str__ fails must not end the journal
            return False
        return True

    def _put(self, data: bytes) -> None:
        if self._torn:  # an earlier line broke off in the middle: what follows is a line of its own
            data = b"\n" + data
        whole = len(data)
        try:
            while data:
                data = data[self._some(data) :]
        finally:
            self._torn = self._torn if len(data) == whole else bool(data)

    def _some(self, data: bytes) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # whoever shares our stderr made it non-blocking
            ready = select.poll()
            ready.register(self._descriptor, select.POLLOUT)
            ready.poll()
            return 0


def open_journal(destination: str) -> Journal:
    """The journal on stderr (``-``) or appended to a file. Raises OSError when it cannot be opened.

    Readable, and coloured unless ``NO_COLOR`` is set, when stderr is a terminal.
    """
    if destination != "-":
        path = Path(destination)
        return Journal(_opened(path), _json(), path)
    if sys.stderr is None:  # closed by whoever started us: the number may be another file's by now
        return Journal(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), _json())
    descriptor = sys.stderr.fileno()
    if os.isatty(descriptor):
        colors = not os.environ.get("NO_COLOR")
        return Journal(descriptor, _readable(structlog.dev.ConsoleRenderer(colors=colors)))
    return Journal(descriptor, _json())


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _json() -> _Render:
    return structlog.processors.JSONRenderer(allow_nan=False)


def _readable(render: _Render) -> _Render:
    """``render`` with control characters shown: a name must not move a person's cursor."""

    def shown(logger: object, name: str, values: dict[str, Any]) -> str | bytes:
        return render(logger, name, {_printable(k): _printable(v) for k, v in values.items()})

    return shown


def _printable(value: Any) -> Any:  # noqa: ANN401 - all but text passes as it came
    if not isinstance(value, str) or value.isprintable():
        return value
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)


def _safe(value: object, depth: int = 0) -> object:
    """What JSON can say of ``value``: numbers that it lacks, and all unknown things, as text."""
    match value:
        case str() | None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case Mapping() if depth < _DEPTH:
            return {str(key): _safe(item, depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset() if depth < _DEPTH:
            return [_safe(item, depth + 1) for item in value]
        case _:
            return str(value)
