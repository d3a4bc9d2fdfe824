"""Whether a model fits on the cards before it is started: pure arithmetic on what files say."""

from watchdog.preflight.cards import Card, memory_of
from watchdog.preflight.fit import preflight
from watchdog.preflight.report import Figure, Report, Verdict

__all__ = ["Card", "Figure", "Report", "Verdict", "memory_of", "preflight"]
