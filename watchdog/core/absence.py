"""Subjects of which nobody tells anything any more: they are forgotten, or memory would not end.

A card that was pulled is never told of again, and a broken probe may name another one at each look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from watchdog.core.model import HOST, Seconds, Subject
from watchdog.core.state import State

FORGOTTEN: Seconds = 3600.0
"""After this long without a word; findings that nobody can tell of end by then, too."""
MOST = 64
"""Absent subjects that are remembered; no box has so many cards."""


def noticed(state: State, told: Iterable[Subject], at: Seconds) -> tuple[State, frozenset[Subject]]:
    """``state`` that knows who is absent after a reading about ``told``, and whom to forget."""
    absent = dict(state.absent)
    for subject in told:
        if _may_go(state, subject) and not any(state.views.get(subject, {}).values()):
            absent.setdefault(subject, at)
        else:
            absent.pop(subject, None)
    if not absent and not state.absent:
        return state, frozenset()
    latest = sorted(absent, key=lambda one: absent[one])[-MOST:]
    kept = {one: absent[one] for one in latest if at - absent[one] <= FORGOTTEN}
    return replace(state, absent=kept), frozenset(absent.keys() - kept.keys())


def _may_go(state: State, subject: Subject) -> bool:
    """Not the host, and no engine of the configuration."""
    engine = state.engines.get(subject.name)
    return subject != HOST and (engine is None or engine.subject != subject)
