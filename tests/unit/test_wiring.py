"""From configuration to limits."""

from __future__ import annotations

from watchdog.daemon.wiring import longest_stop, outer_limit
from watchdog.supervisor.hooks import Hook
from watchdog.supervisor.ladder import StopSettings


def test_a_shutdown_outlasts_the_longest_ladder() -> None:
    """A configured drain of an hour is not cut off by our own limit."""
    patient = StopSettings(drain_timeout=3600.0)
    limit = outer_limit((longest_stop(StopSettings()), longest_stop(patient)))
    assert limit > 3600.0 + patient.term_timeout + patient.kill_timeout


def test_a_shutdown_outlasts_the_hooks_behind_a_stop() -> None:
    """Two hooks that may take ten minutes each are let finish."""
    hooks = (Hook(("true",), 600.0), Hook(("true",), 600.0))
    assert longest_stop(StopSettings(), hooks) > longest_stop(StopSettings()) + 1200.0
