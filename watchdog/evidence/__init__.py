"""Evidence: what is to be seen before an engine is ended, kept for the person on call."""

from watchdog.evidence.bundles import DIRECTORY, Bundle, kept
from watchdog.evidence.collector import Collector
from watchdog.evidence.sight import Sources

__all__ = ["DIRECTORY", "Bundle", "Collector", "Sources", "kept"]
