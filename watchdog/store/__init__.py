"""What survives the watchdog: generations, policy state, pauses, incidents. SQLite's only door."""

from watchdog.store.anchor import Anchor, boot_id, now_anchor, rebase
from watchdog.store.records import EndedGeneration, Saved, Store, StoredIncident

__all__ = [
    "Anchor",
    "EndedGeneration",
    "Saved",
    "Store",
    "StoredIncident",
    "boot_id",
    "now_anchor",
    "rebase",
]
