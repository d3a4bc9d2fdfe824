"""What `run` was asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command line of ``run``; None and empty are "not given"."""

    config: Path | None = None
    state_dir: Path | None = None
    listen: str | None = None
    mode: str | None = None
    command: tuple[str, ...] = ()
    simulate: bool = False
    leave_on_exit: bool = False
    attach: str | None = None
    no_engine: bool = False
