"""How many files may be open: more for ourselves, and for what we start as many as ever."""

from __future__ import annotations

import contextlib
import resource

_INHERITED = resource.getrlimit(resource.RLIMIT_NOFILE)
"""What we were started with, and what our children would have had of us: (soft, hard)."""
_WANTED = 8191
"""Far more than we use, and a number that no program asks for, so that it is known as ours."""


def allow_more() -> int:
    """Raise our own limit where we may; how many files this process may have open then.

    Never to a hard limit of a million: programs that close all that might be open do not return.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _WANTED if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def as_inherited(pid: int) -> None:
    """Give a child that has just begun the limits that it would have had without ours.

    A limit that it has already changed itself is left alone, and so is a child that is gone.
    """
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)
    if ours == _INHERITED:
        return
    with contextlib.suppress(OSError):
        if resource.prlimit(pid, resource.RLIMIT_NOFILE) == ours:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _INHERITED)


__all__ = ["allow_more", "as_inherited"]
