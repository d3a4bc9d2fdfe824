"""Process titles as setproctitle sets them in vLLM's children.

setproctitle writes the title over argv and the environment block behind it: afterwards
``/proc/PID/cmdline`` is only the title and ``/proc/PID/environ`` is gone (measured on vLLM 0.32).
"""

import os
from pathlib import Path

_PR_SET_NAME = 15
_COMM_LENGTH = 15
_ARG_START = 45  # field 48 of /proc/PID/stat, counted behind the name
_ENV_END = 48


def set_title(title: str) -> None:
    """Give this process the title in comm (cut to 15 characters) and cmdline."""
    import ctypes

    _copy_environment()
    text = title.encode()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, text[:_COMM_LENGTH], 0, 0, 0)
    start, size = _argument_area()
    if size > 1:
        ctypes.memset(start, 0, size)
        ctypes.memmove(start, text, min(len(text), size - 1))


def _copy_environment() -> None:
    """Make libc hold copies of its own, because the originals are about to be overwritten."""
    for name, value in os.environ.items():
        os.environ[name] = value


def _argument_area() -> tuple[int, int]:
    """Address and size of argv and the environment block; size 0 where the kernel hides them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ENV_END])
    return start, (end - start if start and end > start else 0)
