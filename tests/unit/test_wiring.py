"""From configuration to limits."""

from __future__ import annotations

from watchdog.daemon.wiring import outer_limit
from watchdog.supervisor.ladder import StopSettings


def test_a_shutdown_outlasts_the_longest_ladder() -> None:
    """A configured drain of an hour is not cut off by our own limit."""
    patient = StopSettings(drain_timeout=3600.0)
    limit = outer_limit((StopSettings(), patient))
    assert limit > 3600.0 + patient.term_timeout + patient.kill_timeout
