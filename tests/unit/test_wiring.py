"""From configuration to limits."""

from __future__ import annotations

from watchdog.config import Config, EngineConfig, StopSettings
from watchdog.daemon.wiring import outer_limit


def test_a_shutdown_outlasts_the_longest_ladder() -> None:
    """A configured drain of an hour is not cut off by our own limit."""
    patient = EngineConfig(command=("x",), stop=StopSettings(drain_timeout=3600.0))
    config = Config(engine={"a": EngineConfig(command=("y",)), "b": patient})
    assert outer_limit(config) > 3600.0 + patient.stop.term_timeout + patient.stop.kill_timeout
