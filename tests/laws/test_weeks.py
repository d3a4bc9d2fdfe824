"""W10: weeks of virtual time with random faults; every law is checked on every step."""

from __future__ import annotations

import pytest

from tests.laws.weeks import lived

SEEDS = (0,)
"""As many as fit into half a minute of one core; ``python -m tests.laws.weeks 50`` lives fifty."""


@pytest.mark.parametrize("seed", SEEDS)
def test_w10_a_week_breaks_no_law(seed: int) -> None:
    """Faults of engines, cards and driver, people, sleeps, and restarts of the watchdog itself."""
    week = lived(seed)
    assert week.steps > 50_000
    assert {"rung 0", "rung 1", "paused", "budget", "incident recovered"} <= set(
        week.auditor.reached
    )
    assert len(week.state.incidents) < 60
    assert len(week.state.series) < 100
