"""A stranger that looks like a process of an engine: nobody may touch it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Protocol

_TITLE = "VLLM::EngineCore"
_WAIT = "import sys; sys.stdin.read()"
"""It ends with who started it, however that one ends."""


class Bystander(Protocol):
    """Whether it is untouched."""

    def poll(self) -> int | None:
        """None while it lives."""


@contextlib.contextmanager
def bystander() -> Iterator[Bystander]:
    """It lives as long as the block."""
    command = [_TITLE, "-I", "-S", "-c", _WAIT]
    with subprocess.Popen(
        command, executable=sys.executable, stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
