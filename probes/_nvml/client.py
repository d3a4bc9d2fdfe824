"""Starts the worker, asks it, and walks away from it when it hangs.

A process that hangs in the driver cannot be killed, only left: at most one is abandoned at a time,
and while it lives and its successor hangs as well, no third is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from watchdog.core.model import Seconds

_RETRY: Seconds = 60.0
"""After "no driver" nothing is started for this long: it costs CPU, and drivers do not appear."""
_ANSWER_LIMIT = 1 << 20
_CHUNK = 1 << 16


class NvmlUnavailableError(Exception):
    """NVML cannot be read at all. One line."""


class NvmlHungError(NvmlUnavailableError):
    """The driver did not answer in time."""


class NvmlClient:
    """Used by one thread. ``pids`` may be read by any."""

    def __init__(
        self, argv: tuple[str, ...] = (sys.executable, "-m", "probes._nvml.worker")
    ) -> None:
        self._argv = argv
        self._worker: subprocess.Popen[bytes] | None = None
        self._abandoned: subprocess.Popen[bytes] | None = None
        self._retry_at: Seconds = 0.0
        self._trouble = ""

    def sweep(self, deadline: Seconds) -> dict[str, Any]:
        """One sweep of all cards, before ``deadline`` (CLOCK_MONOTONIC).

        Raises NvmlHungError or NvmlUnavailableError.
        """
        if time.monotonic() < self._retry_at:
            raise NvmlUnavailableError(self._trouble)
        worker = self._running()
        answer = self._ask(worker, deadline)
        if "error" in answer:
            self._rest(f"cannot use NVML: {answer['error']}")
        return answer

    @property
    def pids(self) -> tuple[int, ...]:
        """The worker and the abandoned one, as far as they live."""
        both = (self._worker, self._abandoned)
        return tuple(child.pid for child in both if child is not None and child.poll() is None)

    def close(self) -> None:
        """Let the worker end; waits for nothing."""
        if self._worker is not None:
            _end(self._worker)
            self._worker = None

    def _rest(self, text: str) -> None:
        """Without a driver the worker ends, and nothing is tried for a while."""
        self.close()
        self._trouble = text
        self._retry_at = time.monotonic() + _RETRY
        raise NvmlUnavailableError(text)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._abandoned is not None and self._abandoned.poll() is not None:
            self._abandoned = None
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        try:
            self._worker = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            raise NvmlUnavailableError(f"cannot start the NVML worker: {error.strerror}") from error
        return self._worker

    def _ask(self, worker: subprocess.Popen[bytes], deadline: Seconds) -> dict[str, Any]:
        try:
            _pipe(worker.stdin).write(b"sweep\n")
            answer = json.loads(self._line(worker, deadline))
        except (OSError, ValueError) as error:
            self.close()
            raise NvmlUnavailableError("cannot read NVML: its worker died") from error
        if not isinstance(answer, dict):
            raise NvmlUnavailableError("cannot read NVML: its worker answers nonsense")
        return answer

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

    def _abandon(self, worker: subprocess.Popen[bytes]) -> None:
        """Leave a worker that hangs. While an earlier one hangs, too, the driver is gone."""
        _end(worker)
        if self._abandoned is not None and self._abandoned.poll() is None:
            self._retry_at = time.monotonic() + _RETRY
            self._trouble = "cannot use NVML: the driver does not respond"
        self._abandoned, self._worker = worker, None
        raise NvmlHungError("cannot use NVML: the driver does not respond")


def _pipe(pipe: Any) -> Any:  # noqa: ANN401 - Popen types its pipes as optional
    if pipe is None:
        raise OSError("no pipe")
    return pipe


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Close its pipes and send SIGKILL, which a process inside the driver takes when it can."""
    for pipe in (worker.stdin, worker.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    with contextlib.suppress(OSError):
        worker.send_signal(signal.SIGKILL)
    worker.poll()
