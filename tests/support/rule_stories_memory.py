"""What makes the default rules about memory fire and clear."""

from __future__ import annotations

from tests.support.core import NAME
from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Sampled, Seconds, Value, engine_subject

GIB = 1 << 30
_WELL: dict[str, Value] = {
    "total_bytes": 256 * GIB,
    "available_bytes": 128 * GIB,
    "available_percent": 50.0,
    "pressure_some_percent": 0.0,
    "pressure_full_percent": 0.0,
    "limit_bytes": 64 * GIB,
    "used_bytes": 32 * GIB,
    "used_percent": 50.0,
    "limited_by": "/sys/fs/cgroup",
}
_STEADY: dict[str, Value] = {
    "engine_bytes": 8 * GIB,
    "engine_growth_bytes_per_hour": 0.0,
    "engine_used_percent": 50.0,
    "engine_limit_bytes": 16 * GIB,
}


def memory(
    at: Seconds, changes: dict[str, Value] | None = None, engine: dict[str, Value] | None = None
) -> Reading:
    """What ``memory`` reads of a box with enough of it, changed by ``changes``."""
    subject, label = engine_subject(NAME), (("engine", NAME),)
    found = [Sampled(HOST, name, value) for name, value in (_WELL | (changes or {})).items()]
    of_engine = _STEADY | (engine or {})
    found += [Sampled(subject, name, value, label) for name, value in of_engine.items()]
    return Reading("memory", at, 0.0, tuple(found))


def _host(rule: str, changes: dict[str, Value], hold: Seconds, clear: Seconds, *keys: str) -> Tale:
    """Memory with ``changes`` for ``hold`` seconds, then enough of it for ``clear``."""
    return Tale(
        rule,
        fires=tuple(memory(at, changes) for at in times(1.0, 1.0 + hold)),
        clears=tuple(memory(at) for at in times(1000.0, 1000.0 + clear)),
        blind=(tuple(f"memory.{key}" for key in keys or changes),),
    )


def _engine(rule: str, changes: dict[str, Value], hold: Seconds, clear: Seconds, key: str) -> Tale:
    """The same of an engine; it is ``key`` that decides."""
    return Tale(
        rule,
        fires=tuple(memory(at, engine=changes) for at in times(1.0, 1.0 + hold, 60.0)),
        clears=tuple(memory(at, engine={}) for at in times(2000.0, 2000.0 + clear, 60.0)),
        blind=((f"memory.{key}",),),
    )


MEMORY_TALES = (
    _host(
        "memory-low",
        {"available_percent": 2.0, "available_bytes": 4 * GIB},
        60.0,
        120.0,
    ),
    _host("memory-pressure", {"pressure_full_percent": 11.0}, 30.0, 60.0),
    _host("memory-pressure-critical", {"pressure_full_percent": 41.0}, 30.0, 60.0),
    _host("memory-limit-near", {"used_percent": 90.0}, 60.0, 120.0),
    _host("memory-soon-full", {"full_in_seconds": 1799.0}, 120.0, 300.0, "available_bytes"),
    _engine(
        "engine-memory-limit-near",
        {"engine_used_percent": 90.0},
        60.0,
        120.0,
        "engine_used_percent",
    ),
    _engine(
        "engine-memory-growing",
        {
            "engine_growth_bytes_per_hour": 1.0 * GIB,
            "engine_full_in_seconds": 86_400.0,
        },
        1800.0,
        3600.0,
        "engine_growth_bytes_per_hour",
    ),
)
"""Of the rules about memory."""
