"""The daemon: wires everything together and runs the main loop. It decides nothing."""

from watchdog.daemon.main import run

__all__ = ["run"]
