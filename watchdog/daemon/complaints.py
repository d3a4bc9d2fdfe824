"""What goes wrong inside the daemon, said in the journal and nowhere else."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

from watchdog.core.model import Event
from watchdog.logs import Journal


@dataclass(frozen=True, slots=True)
class Complaints:
    """Safe from any thread, as the journal is."""

    journal: Journal

    def warn(self, text: str) -> None:
        """Something works worse than it should."""
        self.journal.log("warning", "watchdog.degraded", reason=text)

    def gate(self, engine: str, text: str) -> None:
        """What a start of the engine met with on its way."""
        self.journal.log("warning", "engine.gate", engine=engine, text=text)

    def job(self, name: str, error: str) -> None:
        """A job of the schedule raised."""
        self.journal.log("error", "watchdog.bug", job=name, error=error)

    def exit_watch(self, error: Exception) -> None:
        """The watch on exits raised."""
        self.job("exit-watch", f"{type(error).__name__}: {error}")

    def loop(self, event: Event, error: Exception) -> None:
        """A step raised: the event, and where."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.journal.log(
            "error",
            "watchdog.bug",
            step=type(event).__name__,
            error=f"{type(error).__name__}: {error}",
            where=f"{Path(where.filename).name}:{where.lineno}",
        )
