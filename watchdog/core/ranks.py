"""Data parallel ranks: which of them stands still with requests while another one moves.

What a rank tells of its requests may be old: a rank whose last request was cancelled says
``running`` until its next step, and is idle all the same. So a completion is asked for meanwhile:
it goes to the rank with the fewest requests, an idle one first, and takes the old word back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from watchdog.core.model import Seconds
from watchdog.core.state import FusionSettings, RankLoads, RanksStill, Vitals


class Seen(TypedDict, total=False):
    """The fields of ``Vitals`` that one look at the ranks renews."""

    loads: RankLoads
    still: RanksStill
    asked: int


_NOTHING = Seen(loads=(), still=(), asked=0)


def looked(
    vitals: Vitals,
    at: Seconds,
    progress: Mapping[str, float],
    load: tuple[Mapping[str, float], Mapping[str, float]],
    settings: FusionSettings,
) -> Seen:
    """What a look shows; ``progress`` are the counters, ``load`` is what runs and what waits.

    A rank stands still when it has requests and neither its counters nor what it tells of its
    requests have changed since the look before; after a gap nobody knows. Completions that were
    asked for count no more once a rank moves that had stood for long: it may have taken them. One
    that takes its time for each step is none of those.
    """
    if len(progress) < 2:  # noqa: PLR2004 - one rank is the whole engine: a canary proves it
        return _NOTHING if vitals.loads else Seen()
    running, waiting = load
    loads = tuple(sorted((r, running.get(r, 0.0), waiting.get(r, 0.0)) for r in progress))
    if vitals.metrics_at is None or at - vitals.metrics_at > settings.stale_after:
        return Seen(loads=loads, still=(), asked=0)
    before, since = dict(vitals.progress), dict(vitals.still)
    same = set(vitals.loads)
    still = tuple(
        (one[0], since.get(one[0], vitals.metrics_at))
        for one in loads
        if one[1] > 0 and one in same and progress[one[0]] == before.get(one[0])
    )
    stood = (one for one in vitals.still if at - one[1] > settings.rank_confirm)
    moved = any(one not in still for one in stood)
    return Seen(loads=loads, still=still, asked=0 if moved else vitals.asked)


def is_asked(vitals: Vitals) -> bool:
    """Whether a completion that is asked for now would go to a rank that only seems to work.

    It would not while another one is idle, and tells nothing while none of them moves.
    """
    if not 0 < len(vitals.still) < len(vitals.loads):
        return False
    return all(running > 0 for _, running, _ in vitals.loads)


def proven_at(vitals: Vitals) -> Seconds | None:
    """The last moment at which the whole engine was proven to work; None when it never was.

    The tokens of one rank prove nothing for another one that stands still.
    """
    if vitals.progressed_at is None or not vitals.still:
        return vitals.progressed_at
    return min(vitals.progressed_at, _oldest(vitals)[1])


def hung(vitals: Vitals, least: int) -> tuple[str, Seconds] | None:
    """The rank that has stood still for longest, and since when; None when it may be idle.

    ``least`` completions for each rank must have been asked for, and none made it move.
    """
    if not vitals.still or vitals.asked < least * len(vitals.loads):
        return None
    return _oldest(vitals)


def _oldest(vitals: Vitals) -> tuple[str, Seconds]:
    return min(vitals.still, key=lambda one: one[1])
