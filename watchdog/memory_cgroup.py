"""What a memory cgroup of version 1 or 2 says: its limit, what is used of it, the OOM kills in it.

A folder is the directory of a cgroup. What its files do not tell, or not as the kernel writes it,
is None: a cgroup may go away at any moment.
"""

from __future__ import annotations

import contextlib
import os
import re

from watchdog import procfs

_UNLIMITED = 1 << 62
"""Version 1 writes the largest number of pages that it can count."""
_BYTES = 1 << 14
_HELD = (("anon", "shmem"), ("total_rss", "total_shmem"))
"""What cannot be dropped, as the versions 2 and 1 call it; the rest is page cache."""


def nearest(pid: int, proc: str = procfs.ROOT) -> str | None:
    """The nearest cgroup of the process that counts memory; None when it is out of our sight.

    Each controller has its own mount: on a hybrid machine version 2 is there, without memory.
    """
    folder = procfs.cgroup_folder(pid, "memory", proc)
    if folder is not None:
        return folder
    folder = procfs.cgroup_folder(pid, "", proc)
    places = () if folder is None else upwards(folder)
    return next((one for one in places if os.access(f"{one}/memory.events", os.F_OK)), None)


def upwards(folder: str) -> tuple[str, ...]:
    """The cgroup and what is above it: a limit holds for all below. The last are no cgroups."""
    parts = folder.rstrip("/").split("/")
    return tuple("/".join(parts[:length]) for length in range(len(parts), 1, -1))


def is_there(folder: str) -> bool:
    """Whether it is a cgroup that counts memory, still."""
    return os.access(f"{folder}/memory.stat", os.F_OK)


def limit(folder: str) -> int | None:
    """Bytes beyond which the OOM killer comes; None when there is no limit here."""
    return _limit(folder, "memory.max", "memory.limit_in_bytes")


def throttle(folder: str) -> int | None:
    """Bytes beyond which version 2 slows everybody down to reclaim; None when there are none."""
    return _limit(folder, "memory.high")


def peak(folder: str) -> int | None:
    """The most bytes that were ever used, page cache included."""
    return _number(folder, "memory.peak", "memory.max_usage_in_bytes")


def held(folder: str) -> int | None:
    """Bytes that cannot be given back without swap: anonymous and shared memory, all below too."""
    numbers = counts(f"{folder}/memory.stat")
    for anonymous, shared in _HELD:
        if anonymous in numbers and shared in numbers:
            return numbers[anonymous] + numbers[shared]
    return None


def events(folder: str) -> dict[str, int]:
    """How often what happened, by the kernel's names; version 1 counts ``oom_kill`` alone."""
    found = counts(f"{folder}/memory.events")
    if found:
        return found
    old = counts(f"{folder}/memory.oom_control")
    return {"oom_kill": old["oom_kill"]} if "oom_kill" in old else {}


def kills(folder: str) -> int | None:
    """Processes of this cgroup that any OOM killer ended; of version 2 also those below."""
    return events(folder).get("oom_kill")


def counts(file: str) -> dict[str, int]:
    """Numbers by their names, one pair a line; what is no such line is left out."""
    pairs = (line.split() for line in text(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}  # noqa: PLR2004


def count(file: str, name: str) -> int | None:
    """One of them, of a long file."""
    found = re.search(rf"\n{name} (\d+)\n", f"\n{text(file)}")
    return None if found is None else int(found[1])


def text(file: str) -> str:
    """The file; empty when it cannot be read."""
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(descriptor, _BYTES):  # the kernel gives a page at a time
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
        finally:
            os.close(descriptor)
    return ""


def _limit(folder: str, *files: str) -> int | None:
    number = _number(folder, *files)
    return None if number is None or number >= _UNLIMITED else number


def _number(folder: str, *files: str) -> int | None:
    for name in files:
        with contextlib.suppress(ValueError):  # no such file, and "max"
            return int(text(f"{folder}/{name}"))
    return None
