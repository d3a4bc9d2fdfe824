"""An nginx in front of the engines: which of them serve, in a file that it includes."""

from watchdog.upstream.upstream import Reload, Upstream

__all__ = ["Reload", "Upstream"]
