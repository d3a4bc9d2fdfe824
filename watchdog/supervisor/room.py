"""Room on the disks and in shared memory: what certainly fails without it is not started.

A file system that is nearly full is said and not refused: a model that lies on it already needs no
more of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from watchdog.core.model import Cause, Seconds
from watchdog.places import SHM, Place
from watchdog.supervisor.gate import GateVerdict, Refusal

TIME: Seconds = 1.0
"""A mount that does not answer holds up a start for so long, once."""

COMFORT_BYTES = 256 << 20
"""Below it is said: one compile of a model writes some 100 MB of kernels, a day's log as much."""
COMFORT_INODES = 1000
"""Below it is said: a start takes 8 in TMPDIR, and a compile cache hundreds."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Free:
    """What is left of a file system for us: bytes and inodes; None where there is no limit."""

    device: int
    bytes: int | None
    inodes: int | None

    @property
    def is_full(self) -> bool:
        """Whether nothing can be written, or no file be made."""
        return self.bytes == 0 or self.inodes == 0

    def short_of(self, size: int, inodes: int) -> str:
        """What there is less of than wanted, in words; "" when there is enough."""
        if self.bytes is not None and self.bytes < size:
            return f"{self.bytes // _MIB} MiB free"
        if self.inodes is not None and self.inodes < inodes:
            return f"{self.inodes} inodes free"
        return ""


@dataclass(frozen=True, slots=True)
class Room:
    """What was found: the refusal, or None, and one line for each thing that is nearly used up."""

    refusal: Refusal | None = None
    warnings: tuple[str, ...] = ()


def free_at(path: str) -> Free | None:
    """Of the file system on which ``path`` is, or would be made; None when that is unknown.

    May hang with a mount that hangs: see ``bounded``.
    """
    for folder in (Path(path), *Path(path).parents):
        try:
            info, device = os.statvfs(folder), folder.stat().st_dev
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return None
        root = os.geteuid() == 0  # what is reserved is for root
        size = (info.f_bfree if root else info.f_bavail) * info.f_frsize
        files = info.f_ffree if root else info.f_favail
        # A tmpfs without a limit has no blocks, and btrfs and overlays count no files.
        return Free(device, size if info.f_blocks else None, files if info.f_files else None)
    return None


def on_disk(engine: str, places: Iterable[Place]) -> Room:
    """Look at every file system once, the vital places first."""
    warnings: list[str] = []
    seen: set[int] = set()
    for place in sorted(places, key=lambda one: not one.vital):
        free = free_at(place.path) if place.grows else None
        if free is None or free.device in seen:
            continue
        seen.add(free.device)
        short = free.short_of(COMFORT_BYTES, COMFORT_INODES)
        if not short:
            continue
        text = f"{short} for its {place.purpose} at {place.path}"
        if free.is_full and place.vital:
            text = f"cannot start {engine}: {text}"
            return Room(Refusal(Cause.DISK_FULL, text, GateVerdict.DISK_SHORT), tuple(warnings))
        warnings.append(f"engine {engine} has only {text}")
    return Room(warnings=tuple(warnings))


def in_shared_memory(
    engine: str,
    wanted: int,
    path: str = SHM,
) -> Room:
    """For the workers of one engine, which want so many bytes together, 0 for none."""
    if not wanted:
        return Room()
    free = free_at(path) if Path(path).is_dir() else None
    if free is None:
        return Room()
    short = free.short_of(wanted, COMFORT_INODES)
    if not short:
        return Room()
    text = f"{short} in {path} for its workers"
    if free.is_full:
        text = f"cannot start {engine}: {text}"
        return Room(Refusal(Cause.SHM_SHORT, text, GateVerdict.SHM_SHORT))
    return Room(warnings=(f"engine {engine} has only {text}, {wanted // _MIB} MiB are wanted",))
