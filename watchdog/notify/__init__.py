"""Tells an Alertmanager or a webhook of incidents. Nobody who waits there delays anything here."""

from watchdog.notify.notifier import Notifier
from watchdog.notify.receiver import Tally

__all__ = ["Notifier", "Tally"]
