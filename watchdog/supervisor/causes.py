"""Why an engine ended: from its exit status, its tree and the last lines of its log.

The table is data. Root causes stand before their consequences: the first row that matches wins.
Every pattern starts with a literal, so that the search runs at the speed of memory.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from watchdog.core.model import Cause
from watchdog.supervisor.exits import ExitStatus, signal_name

TAIL_BYTES = 64 << 10
_SHELL_SIGNAL = 128
_MAX_SIGNAL = 64
_PLAIN = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


@dataclass(frozen=True, slots=True)
class Signature:
    """A pattern in the log, the cause it betrays, and the sentence for the on-call engineer."""

    pattern: re.Pattern[bytes]
    cause: Cause
    explanation: str


@dataclass(frozen=True, slots=True)
class Classified:
    """The cause of an exit and one sentence that explains it."""

    cause: Cause
    explanation: str


def _row(pattern: bytes, cause: Cause, explanation: str) -> Signature:
    return Signature(re.compile(pattern), cause, explanation)


SIGNATURES = (
    _row(rb"\[Errno 98\]", Cause.PORT_IN_USE, "another process listens on the engine's port"),
    _row(rb"[Aa]ddress already in use", Cause.PORT_IN_USE, "a port of the engine is taken"),
    _row(
        rb"error: (?:unrecognized arguments|argument |the following arguments are required)",
        Cause.BAD_ARGUMENTS,
        "vLLM does not accept its command line",
    ),
    _row(
        rb"is not a valid model identifier",
        Cause.MODEL_MISSING,
        "the model is neither a local folder nor known to the model hub",
    ),
    _row(rb"RepositoryNotFoundError", Cause.MODEL_MISSING, "the model hub does not know the model"),
    _row(
        rb"Can't load the configuration of",
        Cause.MODEL_MISSING,
        "the model's configuration cannot be loaded",
    ),
    _row(
        rb"Error 803\b",
        Cause.DRIVER_MISMATCH,
        "CUDA error 803: the CUDA libraries do not fit the kernel driver",
    ),
    _row(
        rb"Driver/library version mismatch",
        Cause.DRIVER_MISMATCH,
        "the NVIDIA library and the kernel driver have different versions: a reboot is needed",
    ),
    _row(
        rb"Error 804\b",
        Cause.CUDA_COMPAT_UNSUPPORTED,
        "CUDA error 804: this GPU does not support the forward compatibility libraries",
    ),
    _row(
        rb"driver on your system is too old",
        Cause.DRIVER_TOO_OLD,
        "the NVIDIA driver is older than this build of CUDA needs",
    ),
    _row(
        rb"CUDA driver version is insufficient",
        Cause.DRIVER_TOO_OLD,
        "the NVIDIA driver is older than this build of CUDA needs",
    ),
    _row(
        rb"Free memory on device [^\n]{0,80} on startup is less than desired",
        Cause.GPU_MEMORY_SHORT,
        "less GPU memory is free than the engine wants to claim",
    ),
    _row(
        rb"No available memory for the cache blocks",
        Cause.GPU_MEMORY_SHORT,
        "no GPU memory is left for the KV cache after the weights",
    ),
    _row(rb"CUDA out of memory", Cause.CUDA_OOM, "a GPU ran out of memory"),
    _row(rb"CUDA error: out of memory", Cause.CUDA_OOM, "a GPU ran out of memory"),
    _row(rb"NCCL error", Cause.NCCL_FAILURE, "NCCL failed between the GPUs"),
    _row(rb"ncclSystemError", Cause.NCCL_FAILURE, "NCCL failed between the GPUs"),
    _row(rb"ncclUnhandledCudaError", Cause.NCCL_FAILURE, "NCCL failed between the GPUs"),
    _row(
        rb"CUDA error: (?:uncorrectable ECC|unspecified launch failure|device-side|an illegal)",
        Cause.GPU_FAULT,
        "a GPU reported an error while it computed",
    ),
    _row(rb"Worker proc [^\n]{1,80} died", Cause.WORKER_DIED, "a worker process died"),
    _row(rb"Engine core proc", Cause.ENGINE_CORE_DIED, "the engine core process died"),
    _row(rb"EngineCore encountered a fatal", Cause.ENGINE_CORE_DIED, "the engine core failed"),
    _row(rb"EngineDeadError", Cause.ENGINE_CORE_DIED, "the engine core died below its server"),
    _row(
        rb"Engine core initialization failed",
        Cause.CRASH,
        "the engine core could not be initialized, the log says why",
    ),
)

_LOST = (
    ("VLLM::EngineCor", Cause.ENGINE_CORE_DIED, "the engine core process died before the server"),
    ("VLLM::Worker", Cause.WORKER_DIED, "a worker process died before the server"),
)


def classify(status: ExitStatus, tail: bytes, lost: Iterable[str] = ()) -> Classified:
    """The cause of an exit that nobody asked for: never ``clean``.

    ``tail`` is the end of what this generation logged, ``lost`` the comms of members that went
    before the leader did.
    """
    number = _signal(status)
    if number in _PLAIN:
        return Classified(Cause.SIGNAL, f"the engine was ended by {signal_name(number)}")
    row = next((row for row in SIGNATURES if row.pattern.search(tail)), None)
    if row is not None:
        return Classified(row.cause, f"{row.explanation}; the engine {status}")
    if number is not None:
        return Classified(Cause.SIGNAL, f"the engine was ended by {signal_name(number)}")
    names = tuple(lost)
    for name, cause, text in _LOST:
        if any(one.startswith(name) for one in names):
            return Classified(cause, f"{text}; the engine {status}")
    return Classified(Cause.CRASH, f"the engine {status} although nobody asked for it")


def _signal(status: ExitStatus) -> int | None:
    """The signal, also where a shell in between turned it into 128 + n."""
    code = status.exit_code
    if code is not None and _SHELL_SIGNAL < code <= _SHELL_SIGNAL + _MAX_SIGNAL:
        return code - _SHELL_SIGNAL
    return status.signal


def log_tail(path: Path, offset: int) -> bytes:
    """The last bytes (at most TAIL_BYTES) written behind ``offset``; empty when unreadable."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, 2)
            start = offset if offset <= end else 0  # somebody truncated it
            log.seek(max(start, end - TAIL_BYTES))
            return log.read(TAIL_BYTES)
    except OSError:
        return b""
