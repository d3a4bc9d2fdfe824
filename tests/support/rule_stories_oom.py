"""What makes the default rules about the OOM killer fire and clear."""

from __future__ import annotations

from tests.support.core import NAME
from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Sampled, Seconds, engine_subject


def oom(at: Seconds, box: int = 7, cgroup: int = 3, engine: int = 0) -> Reading:
    """What ``oom`` reads: kills of the box, of our cgroup, of the engine."""
    label = (("engine", NAME),)
    return Reading(
        "oom",
        at,
        0.0,
        (
            Sampled(HOST, "kills", box),
            Sampled(HOST, "cgroup_kills", cgroup),
            Sampled(HOST, "source_trouble", ""),
            Sampled(engine_subject(NAME), "engine_kills", engine, label),
        ),
    )


OOM_TALES = (
    Tale(
        "oom-kill",
        fires=(oom(1.0), oom(6.0), oom(11.0, box=8)),
        clears=tuple(oom(at, box=8) for at in times(16.0, 690.0)),
        blind=(("oom.kills", "oom.cgroup_kills"),),
        drains=True,
    ),
    Tale(
        "oom-kill",
        fires=(oom(1.0), oom(6.0, cgroup=4)),
        clears=tuple(oom(at, cgroup=4) for at in times(11.0, 690.0)),
        blind=(("oom.kills", "oom.cgroup_kills"),),
        drains=True,
    ),
    Tale(
        "engine-oom-kill",
        fires=(oom(1.0), oom(6.0, engine=1)),
        clears=tuple(oom(at, engine=1) for at in times(11.0, 690.0)),
        blind=(("oom.engine_kills",),),
        drains=True,
    ),
)
"""Of the rules about the OOM killer."""
