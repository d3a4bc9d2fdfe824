"""What makes the default rules about disks fire and clear."""

from __future__ import annotations

from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Sampled, Seconds, Value

_USUAL: dict[str, Value] = {
    "percent": 40.0,
    "mount": "/",
    "free_bytes": 1 << 40,
    "outlook": "",
    "inodes_percent": 4.0,
    "inodes_mount": "/",
    "hung": "",
    "read_only": "",
}


def _read(at: Seconds, changes: dict[str, Value]) -> Reading:
    """What ``disk`` reads of a good disk, but for the changes."""
    values = (_USUAL | changes).items()
    return Reading("disk", at, 0.0, tuple(Sampled(HOST, *pair) for pair in values))


def _tale(rule: str, hold: Seconds, clear: Seconds, key: str, *values: Value) -> Tale:
    """``key`` has the first value for ``hold`` seconds, and for ``clear`` the other, or is well."""
    value, *well = values
    fixed: dict[str, Value] = {key: well[0]} if well else {}
    return Tale(
        rule,
        fires=tuple(_read(at, {key: value}) for at in times(30.0, 30.0 + hold, 30.0)),
        clears=tuple(_read(at, fixed) for at in times(600.0, 600.0 + clear, 30.0)),
        blind=((f"disk.{key}",),),
    )


def _sure(rule: str, hold: Seconds, clear: Seconds, key: str, value: Value) -> Tale:
    """As ``_tale``, of a sample that is there only while there is something to tell."""
    return Tale(
        rule,
        fires=tuple(_read(at, {key: value}) for at in times(30.0, 30.0 + hold, 30.0)),
        clears=tuple(_read(at, {}) for at in times(600.0, 600.0 + clear, 30.0)),
        blind=(("disk.percent",),),
        silent=((f"disk.{key}",),),
    )


DISK_TALES = (
    _tale("disk-filling", 60, 120, "percent", 95.0, 89.0),
    _tale("disk-full", 0, 60, "percent", 98.0, 96.0),
    _tale("disk-inodes-full", 0, 60, "inodes_percent", 99.0, 90.0),
    _sure("disk-soon-full", 300, 300, "full_in_seconds", 7200.0),
    _tale("disk-read-only", 30, 30, "read_only", "/var/lib/x (state) is read-only"),
    _sure("disk-slow", 60, 120, "latency_seconds", 0.9),
    _tale("mount-hung", 30, 30, "hung", "/mnt/models"),
)
"""Of the rules about them."""
