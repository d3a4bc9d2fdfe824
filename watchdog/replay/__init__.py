"""Yesterday's recording against today's rules: what would have been decided, and when."""

from watchdog.replay.replaying import replay
from watchdog.replay.report import Found, Report, Row

__all__ = ["Found", "Report", "Row", "replay"]
