"""The nginx in front, with what the daemon has for it: its children, its engines, its journal."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from watchdog.contracts import Endpoint
from watchdog.core.model import Seconds
from watchdog.daemon.crew import Crew
from watchdog.logs import Journal
from watchdog.supervisor import hooks
from watchdog.supervisor.household import Household
from watchdog.supervisor.spawn import Launch
from watchdog.upstream import Reload, Upstream

_LOG = "nginx-reload.log"
_SHOWN = 300


def upstream(state_dir: Path, crew: Crew, household: Household, journal: Journal) -> Upstream:
    """It writes nothing before it is told of a configuration."""
    return Upstream(state_dir, lambda: endpoints(crew), reloading(state_dir, household), journal)


def endpoints(crew: Crew) -> Mapping[str, Endpoint]:
    """Where each configured engine answers. From any thread."""
    leaving = crew.leaving
    return {n: one.target.endpoint for n, one in crew.engines.items() if n not in leaving}


def reloading(state_dir: Path, household: Household) -> Reload:
    """How the command is run: bounded, with nothing left of one that took too long.

    What it prints is kept in a file, of the last time only.
    """
    log = state_dir / _LOG

    def run(command: tuple[str, ...], timeout: Seconds) -> str | None:
        with contextlib.suppress(OSError):
            log.unlink(missing_ok=True)
        launch = Launch("nginx", command, log)
        hook = hooks.Hook(command, timeout)
        wrong = hooks.run((hook,), "nginx.reload", launch, household)
        return None if wrong is None else ": ".join(filter(None, (wrong, _last_line(log))))

    return run


def _last_line(log: Path) -> str:
    """What nginx said last, which is why it refused."""
    try:
        lines = log.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:_SHOWN] for line in reversed(lines) if line.strip()), "")
