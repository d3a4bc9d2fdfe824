"""The flight recorder: what the core was told and what it decided, kept within bounds, and read."""

from watchdog.recorder.reading import RecordingError, Start, Told, read, recorded
from watchdog.recorder.recorder import Recorder

__all__ = ["Recorder", "RecordingError", "Start", "Told", "read", "recorded"]
