"""What makes the default rules about tracked connections fire and clear."""

from __future__ import annotations

from tests.support.core import NAME
from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Sampled, Seconds, Value, engine_subject


def _table(at: Seconds, **changes: Value) -> Reading:
    """What ``conntrack`` reads of a table that is nearly empty, but for ``changes``."""
    usual: dict[str, Value] = {
        "loaded": True,
        "count": 300,
        "limit": 262_144,
        "suggested_limit": 524_288,
        "used_percent": 0.1,
        "drops": 0,
        "early_drops": 0,
    }
    pairs = (usual | changes).items()
    return Reading("conntrack", at, 0.0, tuple(Sampled(HOST, name, v) for name, v in pairs))


def _engine(at: Seconds, **changes: Value) -> Reading:
    """What it reads of an engine in a network namespace of its own."""
    usual: dict[str, Value] = {"engine_count": 300, "engine_used_percent": 0.1, "engine_drops": 0}
    about, labels = engine_subject(NAME), (("engine", NAME),)
    pairs = (usual | changes).items()
    samples = tuple(Sampled(about, name, value, labels) for name, value in pairs)
    return Reading("conntrack", at, 0.0, samples)


CONNTRACK_TALES = (
    Tale(
        "conntrack-filling",
        fires=tuple(_table(at, used_percent=80.0) for at in times(1, 121)),
        clears=tuple(_table(at) for at in times(126, 246)),
        blind=(("conntrack.used_percent",),),
    ),
    Tale(
        "conntrack-full",
        fires=tuple(_table(at, used_percent=95.0) for at in times(1, 6)),
        clears=tuple(_table(at, used_percent=80.0) for at in times(11, 71)),
        blind=(("conntrack.used_percent",),),
    ),
    Tale(
        "conntrack-dropping",
        fires=(_table(1.0), _table(6.0, drops=1)),
        clears=tuple(_table(at, drops=1) for at in times(11, 131)),
        blind=(("conntrack.drops",),),
        drains=True,
    ),
    Tale(
        "conntrack-evicting",
        fires=(_table(1.0), _table(6.0, early_drops=1)),
        clears=tuple(_table(at, early_drops=1) for at in times(11, 131)),
        blind=(("conntrack.early_drops",),),
        drains=True,
    ),
    Tale(
        "engine-conntrack-full",
        fires=tuple(_engine(at, engine_used_percent=96.0) for at in times(1, 6)),
        clears=tuple(_engine(at) for at in times(11, 131)),
        blind=(("conntrack.engine_used_percent", "conntrack.engine_drops"),),
        silent=(("conntrack.engine_used_percent",),),
        drains=True,
    ),
    Tale(
        "engine-conntrack-full",
        fires=(_engine(1.0), _engine(6.0, engine_drops=1), _engine(11.0, engine_drops=1)),
        clears=tuple(_engine(at, engine_drops=1) for at in times(16, 136)),
        blind=(("conntrack.engine_used_percent", "conntrack.engine_drops"),),
        silent=(("conntrack.engine_drops",),),
        drains=True,
    ),
)
"""Of the rules about the table of tracked connections."""
