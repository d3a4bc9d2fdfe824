"""Game day: break an engine as the fault table says, and see whether what it promises happens.

The daemon is asked over its control socket, as ``status`` does; nothing here knows its insides.
"""

from watchdog.drill.asking import AskError, Daemon, Engine
from watchdog.drill.catalogue import DRILLS
from watchdog.drill.results import Drill, Result, Stage, Times, Verdict, Where
from watchdog.drill.running import Say, on_daemon, on_own
from watchdog.drill.simulated import is_simulated
from watchdog.drill.uninterrupted import taken

__all__ = [
    "DRILLS",
    "AskError",
    "Daemon",
    "Drill",
    "Engine",
    "Result",
    "Say",
    "Stage",
    "Times",
    "Verdict",
    "Where",
    "is_simulated",
    "on_daemon",
    "on_own",
    "taken",
]
