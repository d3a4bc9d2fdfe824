"""What makes the default rules about file systems in memory fire and clear."""

from __future__ import annotations

from tests.support.rule_stories import Tale, times
from watchdog.core.model import HOST, Reading, Sampled, Seconds, Value

_USUAL: dict[str, Value] = {
    "inodes_percent": 1.0,
    "inodes_mount": "/dev/shm",
    "inodes_free": 3_000_000,
    "suggested_inodes": 6_000_000,
    "percent": 1.0,
    "mount": "/dev/shm",
    "free_bytes": 1 << 34,
    "outlook": "",
    "shm_bytes": 1 << 34,
    "shm_wanted_bytes": 400 << 20,
}


def _read(at: Seconds, **changes: Value) -> Reading:
    """What ``tmpfs`` reads of a machine with plenty, but for the changes."""
    values = (_USUAL | changes).items()
    return Reading("tmpfs", at, 0.0, tuple(Sampled(HOST, *pair) for pair in values))


def _tale(
    rule: str,
    hold: Seconds,
    clear: Seconds,
    *keys: str,
    less: dict[str, Value] | None = None,
    **changes: Value,
) -> Tale:
    """``changes`` for ``hold`` seconds, then ``less`` of them for ``clear``.

    ``keys`` are the samples that decide.
    """
    return Tale(
        rule,
        fires=tuple(_read(at, **changes) for at in times(10.0, 10.0 + hold, 10.0)),
        clears=tuple(_read(at, **(less or {})) for at in times(100.0, 100.0 + clear, 10.0)),
        blind=tuple((f"tmpfs.{key}",) for key in keys),
    )


TMPFS_TALES = (
    _tale("tmpfs-inodes-filling", 10, 60, "inodes_percent", inodes_percent=85.0),
    _tale("tmpfs-inodes-full", 0, 60, "inodes_percent", inodes_percent=100.0, inodes_free=0),
    Tale(
        "tmpfs-inodes-full",
        fires=(_read(10.0, inodes_percent=81.0, inodes_free=99),),
        clears=tuple(_read(at, inodes_percent=81.0, inodes_free=101) for at in times(20, 80, 10)),
        blind=(("tmpfs.inodes_free",), ("tmpfs.inodes_percent",)),
    ),
    _tale("tmpfs-filling", 10, 60, "percent", percent=85.0),
    _tale("tmpfs-full", 0, 60, "percent", percent=96.0, free_bytes=4096),
    Tale(
        "tmpfs-soon-full",
        fires=tuple(
            _read(at, full_in_seconds=720.0, outlook="/dev/shm: full in 12 minutes")
            for at in times(10.0, 40.0, 10.0)
        ),
        clears=tuple(_read(at) for at in times(100.0, 160.0, 10.0)),
        blind=(("tmpfs.percent",),),
        silent=(("tmpfs.full_in_seconds",),),
    ),
    _tale("shm-small", 0, 10, "shm_bytes", "shm_wanted_bytes", shm_bytes=64 << 20),
)
"""Of the rules about them."""
