"""How laws are drawn: the same worlds every day, and no shrinking where only red counts."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

HASTY = "LAWS_HASTY"
"""Set in the environment, a law that is broken is not made small: for planted bugs."""

_SHRINK = () if os.environ.get(HASTY) else (Phase.shrink,)

lawful = settings(
    max_examples=40,
    phases=[Phase.explicit, Phase.generate, *_SHRINK],
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
