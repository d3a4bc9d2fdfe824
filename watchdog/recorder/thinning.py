"""What is written of quiet times: enough to judge them, not all of them.

A moment is quiet when no decision hangs on time: no rule is pending, what fires has long been as it
is, and every engine serves or rests. Readings of quiet times wait for a minute, then one in ten
seconds is written; when trouble comes first, all that waits is written before it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from watchdog.core.model import (
    SERVING,
    Decision,
    Event,
    ProcessState,
    Reading,
    ReadingTaken,
    Seconds,
    Subject,
    Tick,
)
from watchdog.core.state import EngineState, State, Step, Track, Watch

THIN: Seconds = 10.0
"""Between two readings of one probe and subject. The core calls an engine's readings stale after
15 s, so that one probe period more is still no gap."""
LEAD: Seconds = 60.0
"""How much of what went before trouble is written in full."""
SETTLED: Seconds = 600.0
"""What has been wrong for this long, and does not change, will not be made clearer by more."""
_MOST_SAMPLES = 200_000
"""Samples that wait at most; a hundred bytes each."""
_RESTING = frozenset(
    {
        ProcessState.STOPPED,
        ProcessState.BACKOFF,
        ProcessState.GIVEN_UP,
        ProcessState.UNKILLABLE,
    }
)

_Watches = Mapping[tuple[str, Subject], Watch]
_Tracks = Mapping[tuple[str, Subject], Track]


class Calm:
    """Tells quiet states from others. Remembers what it saw of watches, which seldom change."""

    def __init__(self) -> None:
        self._seen: _Watches | None = None
        self._tracks: _Tracks | None = None
        self._until: Seconds | None = None

    def quiet(self, state: State, at: Seconds) -> bool:
        """Whether no decision hangs on time at ``at``."""
        if state.watches is not self._seen or state.tracks is not self._tracks:
            self._seen, self._tracks = state.watches, state.tracks
            self._until = _settled_at(state.watches, state.tracks)
        if self._until is None or at < self._until or state.shutting_down:
            return False
        return all(_rests(engine, at) for engine in state.engines.values())


def _settled_at(watches: _Watches, tracks: _Tracks) -> Seconds | None:
    """From when on these watches are quiet if they stay as they are; None: not before they change.

    A firing finding with a rung to take is quiet too: what lets it act is an event of its own. Not
    so soon after the rung before: the next one waits for a look.
    """
    acts = (
        max(track.acted_at, track.ended_at or -math.inf)
        for key, track in tracks.items()
        if key in watches
    )
    since = max((at + SETTLED for at in acts), default=-math.inf)
    for seen in watches.values():
        if seen.firing is not None:
            if seen.clear_since is not None:
                return None
            since = max(since, seen.firing.since + SETTLED)
        elif seen.pending_since is not None:
            return None
    return since


def _rests(engine: EngineState, at: Seconds) -> bool:
    if engine.in_flight or engine.aside or engine.pending is not None:
        return False
    if engine.process in _RESTING:
        unwanted = engine.process is ProcessState.STOPPED and not engine.history.wanted
        return unwanted or at - engine.since >= SETTLED
    return engine.verdict in SERVING and engine.vitals.failing_since is None


@dataclass(frozen=True, slots=True)
class Moment:
    """One event with what was decided, and the values of the state after it that are kept.

    ``loud`` is whether it belongs to trouble. ``gap_since`` is when somebody had looked last, if
    that was too long ago.
    """

    event: Event
    decisions: tuple[Decision, ...]
    after: State
    loud: bool
    gap_since: Seconds | None = None

    @property
    def size(self) -> int:
        """How much memory it holds, in samples."""
        return 1 + (len(self.event.reading.samples) if isinstance(self.event, ReadingTaken) else 0)


def kept(state: State) -> State:
    """``state`` without what a checkpoint leaves out, so that what waits holds little memory."""
    return State(
        engines=state.engines,
        mode=state.mode,
        pause=state.pause,
        shutting_down=state.shutting_down,
        cards=state.cards,
        tracks=state.tracks,
    )


class Listener:
    """Makes moments of steps. For the loop's thread."""

    def __init__(self) -> None:
        self._calm = Calm()
        self._quiet = False
        self._before = State()

    @property
    def quiet(self) -> bool:
        """Whether the last state was."""
        return self._quiet

    @property
    def before(self) -> State:
        """The last state."""
        return self._before

    def begin(self, state: State) -> None:
        """The next step is one from ``state``."""
        self._before, self._quiet = state, False

    def moment(self, event: Event, step: Step) -> Moment | None:
        """What is to be recorded of a step, if anything."""
        before, state = self._before, step.state
        was_quiet = self._quiet
        self._before, self._quiet = state, self._calm.quiet(state, event.at)
        gap = state.gap_at is not None and state.gap_at != before.gap_at
        told = bool(step.decisions or step.findings) or gap
        if isinstance(event, Tick) and not told and state.watches is before.watches:
            return None
        by_itself = told or not isinstance(event, ReadingTaken)
        loud = by_itself or not (self._quiet and was_quiet)
        gap_since = before.at if gap else None
        return Moment(event, step.decisions, kept(state), loud, gap_since)


class Thinner:
    """Takes moments in their order and gives back, in their order, those that are to be written.

    What it gives for a moment that is thinned out is its state only: ``(moment, False)``.
    """

    def __init__(self) -> None:
        self._waiting: deque[Moment] = deque()
        self._samples = 0
        self._written: dict[tuple[str, Subject | None], dict[object, Seconds]] = {}

    def take(self, one: Moment) -> Iterator[tuple[Moment, bool]]:
        """The moments that are settled now, each with whether it is written."""
        if one.loud:
            yield from self._all()
            self._note(one)
            yield one, True
            return
        self._waiting.append(one)
        self._samples += one.size
        while self._waiting and (
            one.event.at - self._waiting[0].event.at > LEAD or self._samples > _MOST_SAMPLES
        ):
            yield self._thinned(self._next())

    def end(self) -> Iterator[tuple[Moment, bool]]:
        """The rest, thinned: nothing happened."""
        while self._waiting:
            yield self._thinned(self._next())

    def _all(self) -> Iterator[tuple[Moment, bool]]:
        while self._waiting:
            one = self._next()
            self._note(one)
            yield one, True

    def _next(self) -> Moment:
        one = self._waiting.popleft()
        self._samples -= one.size
        return one

    def _thinned(self, one: Moment) -> tuple[Moment, bool]:
        wanted = self._is_news(one)
        if wanted:
            self._note(one)
        return one, wanted

    def _is_news(self, one: Moment) -> bool:
        """Old enough, or it tells in words or bools what was not told in the last ten seconds."""
        if not isinstance(one.event, ReadingTaken):
            return True
        reading = one.event.reading
        seen = self._written.get((reading.probe, reading.subject), {})
        told = seen.get(_said(reading))
        return told is None or reading.at - told >= THIN

    def _note(self, one: Moment) -> None:
        if not isinstance(one.event, ReadingTaken):
            return
        reading = one.event.reading
        key = (reading.probe, reading.subject)
        recent = {
            said: at for said, at in self._written.get(key, {}).items() if reading.at - at < THIN
        }
        self._written[key] = {**recent, _said(reading): reading.at}


def _said(reading: Reading) -> object:
    """A reading without its numbers, which flow."""
    words = tuple(
        (one.sample, one.subject.name, one.value)
        if isinstance(one.value, (bool, str))
        else (one.sample, one.subject.name)
        for one in reading.samples
    )
    return words, reading.unread, reading.error, reading.generation
