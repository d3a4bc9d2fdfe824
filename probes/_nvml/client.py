"""Starts the worker, asks it, and walks away from it when it hangs.

A process that hangs in the driver (state D) is left alone, without a signal: SIGKILL in the middle
of a call has frozen cards. It ends by itself when the driver lets go, because its pipes are closed.
While two of them live, no third is started: every one may hold a lock in the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from watchdog import procfs
from watchdog.core.model import Seconds

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("worker.py")))
"""The command line of the worker: a file, and no import from wherever the daemon was started."""

_RETRY: Seconds = 60.0
"""After "no driver" nothing is started for this long: it costs CPU, and drivers do not appear."""
_MOST_HUNG = 2
_GRACE: Seconds = 0.5
"""How long a worker outside the driver may take to die of SIGKILL; it takes a millisecond."""
_NO_TIME = "cannot read any GPU: there is no time left"
_ANSWER_LIMIT = 1 << 20
_CHUNK = 1 << 16


class NvmlUnavailableError(Exception):
    """NVML cannot be read at all. One line."""


class NvmlHungError(NvmlUnavailableError):
    """The driver did not answer in time."""


class NvmlClient:
    """Used by one thread; ``pids`` and ``close`` by any.

    ``env`` None hands on the environment as it is. ``retry`` is the rest after "no driver".
    """

    def __init__(
        self,
        argv: tuple[str, ...] = WORKER,
        env: Mapping[str, str] | None = None,
        retry: Seconds = _RETRY,
    ) -> None:
        self._argv, self._env, self._retry = argv, env, retry
        self._worker: subprocess.Popen[bytes] | None = None
        self._proven = False
        self._left: tuple[subprocess.Popen[bytes], ...] = ()
        self._retry_at: Seconds = 0.0
        self._trouble = ""
        self._closed = False
        self._asking = threading.Lock()

    def sweep(self, deadline: Seconds) -> dict[str, Any]:
        """One sweep of all cards, before ``deadline`` (CLOCK_MONOTONIC).

        Raises NvmlHungError or NvmlUnavailableError.
        """
        with self._asking:
            return self._sweep(deadline)

    def _sweep(self, deadline: Seconds) -> dict[str, Any]:
        now = time.monotonic()
        if now < self._retry_at:
            raise NvmlUnavailableError(self._trouble)
        if self._closed or now >= deadline:
            raise NvmlUnavailableError(_NO_TIME)
        answer = self._ask(self._running(), deadline)
        if "error" in answer:
            self._rest(str(answer["error"]))
        return answer

    @property
    def pids(self) -> tuple[int, ...]:
        """The worker and those that were left behind, as far as they live."""
        worker = self._worker
        known = self._left if worker is None else (worker, *self._left)
        return tuple(child.pid for child in known if child.poll() is None)

    def close(self) -> None:
        """End the worker, for good. Takes a second at most, while it hangs."""
        self._closed = True
        worker = self._worker
        if worker is not None:
            _kill(worker)
        if self._asking.acquire(timeout=_GRACE):  # its pipes belong to the thread that reads them
            self._discard()
            self._asking.release()

    def _discard(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        _end(worker)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(_GRACE)
        self._remember(worker)

    def _remember(self, *more: subprocess.Popen[bytes]) -> None:
        """Keep those that live, so that they are reaped one day."""
        self._left = tuple(child for child in (*self._left, *more) if child.poll() is None)

    def _rest(self, why: str) -> NoReturn:
        """Without a driver the worker ends, and nothing is tried for a while."""
        self._discard()
        self._trouble = f"cannot read any GPU: {why}"
        self._retry_at = time.monotonic() + self._retry
        raise NvmlUnavailableError(self._trouble)

    def _running(self) -> subprocess.Popen[bytes]:
        for child in self._left:
            _kill(child)  # the driver may have let go of it since, and something else not
        self._remember()
        if len(self._left) >= _MOST_HUNG:
            raise NvmlHungError("cannot read any GPU: the driver does not respond")
        if self._worker is not None and self._worker.poll() is not None:
            self._discard()
        if self._worker is None:
            self._worker, self._proven = self._started(), False
        if self._closed:  # meanwhile: ``close`` may not have seen the one just started
            self._discard()
            raise NvmlUnavailableError(_NO_TIME)
        return self._worker

    def _started(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=self._env,
            )
        except OSError as error:
            raise NvmlUnavailableError(f"cannot start the NVML worker: {error.strerror}") from error

    def _ask(self, worker: subprocess.Popen[bytes], deadline: Seconds) -> dict[str, Any]:
        try:
            _pipe(worker.stdin).write(b"sweep\n")
            answer = json.loads(self._line(worker, deadline))
        except (OSError, ValueError):
            self._died()
        if not isinstance(answer, dict):
            self._died()
        self._proven = True
        return answer

    def _died(self) -> NoReturn:
        """Start another at the next sweep, unless this one never got as far as an answer."""
        if not self._proven:
            self._rest("the NVML worker dies at once")
        self._discard()
        raise NvmlUnavailableError("cannot read any GPU: the NVML worker died")

    def _line(self, worker: subprocess.Popen[bytes], deadline: Seconds) -> bytes:
        source = _pipe(worker.stdout).fileno()
        poll = select.poll()
        poll.register(source, select.POLLIN)
        data = b""
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                self._abandon(worker)
            chunk = os.read(source, _CHUNK)
            data += chunk
            if not chunk or len(data) > _ANSWER_LIMIT:
                raise ValueError("no whole answer")
        return data

    def _abandon(self, worker: subprocess.Popen[bytes]) -> NoReturn:
        """Leave a worker that hangs, and wait for nothing."""
        self._worker = None
        _end(worker)
        self._remember(worker)
        silent = len(self._left) >= _MOST_HUNG
        why = "the driver does not respond" if silent else "no answer in time"
        raise NvmlHungError(f"cannot read any GPU: {why}")


def _pipe(pipe: Any) -> Any:  # noqa: ANN401 - Popen types its pipes as optional
    if pipe is None:
        raise OSError("no pipe")
    return pipe


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Close its pipes, which ends it as soon as it reads or answers, and kill it if that may be."""
    for pipe in (worker.stdin, worker.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    _kill(worker)


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """SIGKILL, unless it sits in the kernel. No pidfd is needed: only its Popen ever reaps it."""
    found = procfs.stat(worker.pid)
    if found is not None and found.state != "D":
        with contextlib.suppress(OSError):
            worker.send_signal(signal.SIGKILL)
