"""Whether a pid that the driver lists is the number of that process here."""

from __future__ import annotations

from pathlib import Path

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's own: PROC_PID_INIT_INO of linux/proc_ns.h."""
_TRANSLATES = (535, 113)
"""From this driver on its kernel module lists the pids of the caller's namespace (its sources);
older ones list those of the first, and such a number may be another process's here."""


def own_pid_namespace() -> str:
    """As the kernel writes it; "" when it does not tell."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def pids_are_ours(driver: object, namespace: str) -> bool:
    """Whether listed pids can be looked up; False when the driver's version is needed and unknown.

    ``driver`` is the version as NVML tells it, ``580.159.04``.
    """
    return namespace == FIRST_PID_NAMESPACE or _version(driver) >= _TRANSLATES


def _version(driver: object) -> tuple[int, ...]:
    parts = driver.split(".")[:2] if isinstance(driver, str) else []
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)
