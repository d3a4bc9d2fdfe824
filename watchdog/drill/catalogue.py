"""The drills, by their rows of the fault table (docs/faults.md), and what each row promises."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from watchdog.drill import alone, disruptions, restraints
from watchdog.drill.results import Drill, Stage, Where

_BUDGET = """
[policy]
backoff = { initial = "50ms", max = "100ms" }
restart_budget = { count = 100, window = "1h" }
"""
"""A day of drills is no crash loop."""
_LOOP = """
[policy]
backoff = { initial = "50ms", max = "100ms" }
"""
"""The budgets are the default ones: they are what is drilled."""
_NO_SWEEP = """
[[rule]]
name = "tmpfs-inodes-full"
actions = []
"""
"""Finding out is what is drilled; a sweep would look at all of the box."""

_ONE = Stage(config=_BUDGET)

_ROWS = (
    Drill(
        "D1",
        "SIGKILL to the leader; EngineCore and workers live on",
        "every orphan killed and proven gone, then one start",
        1.0,
        Where.ANY,
        disruptions.kill_leader,
        1,
        _ONE,
    ),
    Drill(
        "D2",
        "SIGKILL to EngineCore; the leader leaves with code 0",
        "a crash with cause engine_core_died, one start",
        15.0,
        Where.ANY,
        disruptions.kill_core,
        1,
        _ONE,
    ),
    Drill(
        "D3",
        "SIGKILL to a worker",
        "a crash, the whole set ended, one start",
        15.0,
        Where.ANY,
        disruptions.kill_worker,
        1,
        _ONE,
    ),
    Drill(
        "D8",
        "the engine dies at every start",
        "four starts, then the breaker opens and stays open, also for the next watchdog",
        60.0,
        Where.OWN,
        alone.crash_loop,
        0,
        Stage(("--startup-time", "60", "--fault", "crash_after=0.3"), _LOOP, ready=False),
    ),
    Drill(
        "H1",
        "SIGSTOP to EngineCore while idle; /health answers 200",
        "stalled by a completion that does not come, one restart",
        10.0,
        Where.ANY,
        disruptions.stop_core,
        1,
        _ONE,
    ),
    Drill(
        "H2",
        "SIGSTOP to a worker with a request in flight",
        "stalled, one restart",
        10.0,
        Where.ANY,
        disruptions.stop_worker,
        1,
        _ONE,
    ),
    Drill(
        "H3",
        "saturation: /health and completions time out, tokens flow",
        "nothing: a busy engine is never restarted",
        60.0,
        Where.ANY,
        restraints.saturate,
        0,
        _ONE,
    ),
    Drill(
        "H4",
        "the next request compiles for 70 s",
        "nothing: busy, never restarted",
        75.0,
        Where.SIMULATOR,
        restraints.compile_first,
        0,
        _ONE,
    ),
    Drill(
        "H8",
        "/health answers 503 while EngineCore lives",
        "degraded, and nothing is done; ready when it is over",
        10.0,
        Where.SIMULATOR,
        restraints.unhealthy,
        0,
        _ONE,
    ),
    Drill(
        "H14",
        "`stop` during a start that swallows SIGTERM",
        "the second rung ends it: nobody alive",
        15.0,
        Where.OWN,
        alone.deaf_start,
        0,
        Stage(("--startup-time", "120", "--fault", "ignore_term"), "", ready=False),
    ),
    Drill(
        "S3",
        "no inode left on the engine's tmpfs, with bytes free",
        "a finding that names the directory; no restart, nothing of others removed",
        30.0,
        Where.OWN,
        alone.full_tmpfs,
        0,
        Stage((), _NO_SWEEP, small_tmpfs=True),
    ),
    Drill(
        "W1",
        "SIGKILL to the watchdog, then its next start",
        "the engine serves on and is adopted: no restart, no process ended",
        30.0,
        Where.OWN,
        alone.kill_watchdog,
        0,
        _ONE,
    ),
)

DRILLS: Mapping[str, Drill] = MappingProxyType({drill.id: drill for drill in _ROWS})
"""By id, in the order of the fault table."""
