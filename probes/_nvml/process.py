"""One worker process: its pipes, its numbered requests, and its end.

A process that sits in the driver (state D) is left alone, without a signal: SIGKILL in the middle
of a call has frozen cards. It ends by itself when the driver lets go, because its pipes are closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from probes._nvml.answers import proper
from watchdog import procfs
from watchdog.core.model import Seconds

_GRACE: Seconds = 0.5
"""How long a worker outside the driver may take to die of SIGKILL; it takes a millisecond."""
_ANSWER_LIMIT = 4 << 20
"""Bytes of an answer: sixteen cards with 950 processes each, which is the driver's own limit."""
_CHUNK = 1 << 16


class NoAnswerError(Exception):
    """The answer did not come before the deadline. It is still owed."""


class DeadError(Exception):
    """The worker died, or talks nonsense."""


class Worker:
    """A started worker. Its pipes belong to one thread at a time; ``kill`` is for any.

    Raises OSError when it cannot be started. ``env`` None hands on the environment as it is.
    """

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str] | None) -> None:
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=env,
        )
        self._number = 0
        self._data = b""
        self.started_at: Seconds = time.monotonic()
        self.owes = False
        self.proven = False

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def alive(self) -> bool:
        """Whether it still runs; reaps it when it does not."""
        return self._child.poll() is None

    def in_driver(self) -> bool:
        """Whether it sits in the kernel, where no signal may reach it."""
        found = procfs.stat(self.pid)
        return found is not None and found.state == "D"

    def request(self, what: str, deadline: Seconds) -> dict[str, Any]:
        """Ask, and wait for the answer. What an earlier request is owed is awaited and dropped.

        Raises NoAnswerError (the answer may still come) or DeadError.
        """
        try:
            if self.owes:
                self._answer(deadline)
                self.proven = True
            self._number += 1
            _pipe(self._child.stdin).write(f"{self._number} {what}\n".encode())
            self.owes = True
            answer = proper(what, self._answer(deadline))
        except (OSError, ValueError, RecursionError) as error:
            raise DeadError from error
        self.proven = True
        return answer

    def _answer(self, deadline: Seconds) -> dict[str, Any]:
        """The answer to the newest request; older ones are not for anybody any more."""
        answer = json.loads(self._line(deadline))
        if not isinstance(answer, dict) or answer.pop("request", None) != self._number:
            raise ValueError("no answer to this request")
        self.owes = False
        return answer

    def _line(self, deadline: Seconds) -> bytes:
        source = _pipe(self._child.stdout).fileno()
        poll = select.poll()
        poll.register(source, select.POLLIN)
        while not self._data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise NoAnswerError
            chunk = os.read(source, _CHUNK)
            self._data += chunk
            if not chunk or len(self._data) > _ANSWER_LIMIT:
                raise ValueError("no whole answer")
        line, self._data = self._data, b""
        return line

    def kill(self) -> None:
        """SIGKILL, unless it sits in the kernel. Safe: only its Popen ever reaps it."""
        found = procfs.stat(self.pid)
        if found is not None and found.state != "D":
            with contextlib.suppress(OSError):
                self._child.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Close its pipes, which ends it as soon as it reads or answers, and kill if that may be.

        Waits half a second at most; ``alive`` says whether it is gone.
        """
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self.kill()
        if not self.in_driver():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_GRACE)


def _pipe(pipe: Any) -> Any:  # noqa: ANN401 - Popen types its pipes as optional
    if pipe is None:
        raise OSError("no pipe")
    return pipe
