"""Why an engine ended: from its exit status, its tree and the last lines of its log.

What betrays a cause is data: ``signatures.toml``.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from watchdog.core.model import Cause, Seconds
from watchdog.supervisor.exits import ExitStatus, signal_name
from watchdog.supervisor.rotation import KEPT, part
from watchdog.supervisor.signatures import signatures

TAIL_BYTES = 64 << 10
_SHELL_SIGNAL = 128
_MAX_SIGNAL = 64
_PLAIN = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_COLOR = re.compile(rb"\x1b\[[\d;]{0,12}m")
_CALM = re.compile(
    rb"(?m)^(?:(?:\([^)\n]{1,60}\) )?(?:INFO|WARNING|DEBUG)[: ]"
    rb'|\{[^\n]{0,80}"level(?:name)?": ?"(?:INFO|WARNING|DEBUG)")[^\n]*'
)
"""Lines of vLLM and its HTTP server that report no error, plain or JSON. They may quote anything,
prompts too."""

_ON_KILL = (
    "look for an OOM kill with dmesg or journalctl -k and in memory.events of the cgroup (docker "
    "inspect has OOMKilled, kubectl describe pod too), then ask who or what else sends SIGKILL"
)
_ON_OOM = (
    "give the engine more memory or let it take less: fewer cached inputs, a smaller "
    "--swap-space, --cpu-offload-gb or KV cache in host memory, fewer neighbours on this host"
)
_ON_SIGNAL = "find out who or what sent it: an operator, a container runtime, another supervisor"
_ON_LOST = "look for its last words in the engine's log, and for an OOM kill or an Xid in dmesg"
_ON_CRASH = "read the last lines of the engine's log: nothing in them is known to the watchdog"


@dataclass(frozen=True, slots=True)
class Classified:
    """The cause of an exit, a sentence that explains it, and one for the person on call.

    ``signature`` is the row of the table, empty when the log had no part in it.
    """

    cause: Cause
    explanation: str
    advice: str = ""
    signature: str = ""


MAIMED = frozenset({Cause.ENGINE_CORE_DIED, Cause.WORKER_DIED, Cause.CRASH})
"""Stopped for one of these it had lost a part: whoever took that is the cause."""

_LOST = (
    ("VLLM::EngineCor", Cause.ENGINE_CORE_DIED, "the engine core process died before the server"),
    ("VLLM::Worker", Cause.WORKER_DIED, "a worker process died before the server"),
)


def classify(
    status: ExitStatus, tail: bytes, lost: Iterable[str] = (), *, oom: str | None = None
) -> Classified:
    """The cause of an exit that nobody asked for: never ``clean``.

    ``tail`` is the end of what this generation logged, ``lost`` the comms of members that went
    before the leader did, ``oom`` the sentence of somebody who knows of an OOM kill.
    """
    if oom:
        return Classified(Cause.OOM_KILLED, oom, _ON_OOM)
    number = _signal(status)
    if number in _PLAIN:
        return _by_signal(number)
    known = _by_table(status, number, tail)
    if known is not None:
        return known
    if number is not None:
        return _by_signal(number)
    names = tuple(lost)
    for name, cause, text in _LOST:
        if any(one.startswith(name) for one in names):
            return Classified(cause, f"{text}; the engine {status}", _ON_LOST)
    explanation = f"the engine {status} although nobody asked for it"
    return Classified(Cause.CRASH, explanation, _ON_CRASH)


def _by_signal(number: int) -> Classified:
    text = f"the engine was ended by {signal_name(number)}"
    if number != signal.SIGKILL:
        return Classified(Cause.SIGNAL, text, _ON_SIGNAL)
    text = f"{text}; if that was the kernel's OOM killer, it leaves no word in the engine's log"
    return Classified(Cause.SIGNAL, text, _ON_KILL)


def _by_table(status: ExitStatus, number: int | None, tail: bytes) -> Classified | None:
    tail = b"\n" + _COLOR.sub(b"", tail)  # patterns can ask for the beginning of a line
    loud = _CALM.sub(b"", tail)
    for row in signatures():
        text = row.explained(status.exit_code, number, tail if row.quiet else loud)
        if text is not None:
            return Classified(row.cause, f"{text}; the engine {status}", row.advice, row.name)
    return None


def _signal(status: ExitStatus) -> int | None:
    """The signal, also where a shell in between turned it into 128 + n."""
    code = status.exit_code
    if code is not None and _SHELL_SIGNAL < code <= _SHELL_SIGNAL + _MAX_SIGNAL:
        return code - _SHELL_SIGNAL
    return status.signal


# --- the end of the log ---------------------------------------------------------------------------


def log_tail(path: Path, offset: int, since: Seconds | None = None) -> bytes:
    """The last bytes (at most TAIL_BYTES) written behind ``offset``; empty when unreadable.

    The log may have been rotated meanwhile into ``PATH.1`` and older. ``since``, in seconds since
    the epoch, is when the log had ``offset`` bytes: the parts that are younger belong to it.
    Without it, a log that is shorter than ``offset`` was rotated once. A line whose beginning is
    cut away is left out.
    """
    sizes = [_size(path)]
    sizes += [_size(part(path, number)) for number in range(1, _rotations(path, since) + 1)]
    if len(sizes) == 1 and offset > sizes[0]:
        sizes.append(_size(part(path, 1)))
    total = sum(sizes)
    begin = offset if offset <= total else 0  # somebody truncated it
    wanted = min(total - begin, TAIL_BYTES)
    tail = b""
    for number in range(len(sizes)):
        if len(tail) < wanted:
            tail = _end(part(path, number) if number else path, wanted - len(tail)) + tail
    return _whole_lines(tail) if total - begin > TAIL_BYTES else tail


def _rotations(path: Path, since: Seconds | None) -> int:
    """How many rotations there were after ``since``."""
    if since is None:
        return 0
    for number in range(1, KEPT + 1):
        try:
            if part(path, number).stat().st_mtime <= since:
                return number - 1
        except OSError:
            return number - 1
    return KEPT


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _end(path: Path, count: int) -> bytes:
    """The last ``count`` bytes of a file; empty when unreadable."""
    try:
        with path.open("rb") as log:
            log.seek(max(log.seek(0, 2) - count, 0))
            return log.read(count)
    except OSError:
        return b""


def _whole_lines(tail: bytes) -> bytes:
    _, newline, rest = tail.partition(b"\n")
    return rest if newline else tail
