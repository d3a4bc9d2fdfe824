"""A world whose engines a probe of the box tells of, too: what users write rules about.

Its engines may have been started by an earlier watchdog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.laws.auditor import Auditor
from tests.laws.world import SETTINGS, Body, Fate, Look, Moment, World, born
from watchdog.core.facts import took
from watchdog.core.model import (
    Cause,
    EngineSpawned,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    Tick,
    Verb,
    engine_subject,
)


@dataclass(frozen=True, slots=True)
class Said:
    """One look of the probe: at a level, a counter that rises by so much; or that it is broken.

    ``blind`` looks do not bring the level, ``late`` is how long nobody looked at anything before;
    ``look`` is how the engines appear beside it; ``ends`` says that their actions end well then.
    """

    level: float = 0.0
    rises: int = 0
    bad: bool = False
    blind: bool = False
    fails: bool = False
    look: Look = Look.IDLE
    ends: bool = True
    late: Seconds = 1.0


@dataclass
class Boxed(World):
    """``adopted`` engines run already, idle, when the watchdog begins."""

    adopted: bool = False
    counted: float = 0.0

    def __post_init__(self) -> None:
        self.bodies = [Body(name) for name in self.names]
        self.state = born(self.names, self.mode)
        if self.adopted:
            for body in self.bodies:
                self._adopts(body)
        self.take(Tick(self.now))

    def _adopts(self, body: Body) -> None:
        """As the daemon does: before the first decision is made."""
        body.serial, body.generation, body.alive = 1, f"{1:08x}", True
        self.state, _ = took(self.state, self._first(body), SETTINGS)

    def _first(self, body: Body) -> EngineSpawned:
        return EngineSpawned(
            self.now,
            body.name,
            body.generation,
            1,
            Cause.UNKNOWN,
            adopted=True,
            ready=True,
            spawned_at=self.now - 500.0,
            ready_at=self.now - 400.0,
        )

    def auditor(self) -> Auditor:
        """One who knows how it began."""
        auditor = Auditor(self.rules)
        for name in self.names if self.adopted else ():
            auditor.account(name).ready = True
            auditor.books.lives[name] = (f"{1:08x}", 500.0)
        return auditor

    def says(self, said: Said) -> None:
        """The probe looks, and those of the engines before it."""
        self.now += said.late
        self.counted += said.rises
        samples = []
        for name in () if said.fails else self.names:
            told = [("n", self.counted), ("bad", said.bad)]
            told += [] if said.blind else [("x", said.level)]
            samples += [Sampled(engine_subject(name), *one) for one in told]
        error = "cannot read" if said.fails else None
        self.take(Tick(self.now))
        for body in self.bodies:
            if said.ends:
                self._end_all(body, Fate.DONE)
            self._show(body, said.look)
        self.take(ReadingTaken(self.now, Reading("it", self.now, 0.0, tuple(samples), (), error)))

    def waits(self, seconds: Seconds) -> None:
        """The loop turns, and nobody is asked anything."""
        for _ in range(int(seconds // 15.0)):
            self.now += 15.0
            self.take(Tick(self.now))

    def tells(self, story: Sequence[tuple[Moment, tuple[Said, ...]]]) -> World:
        """Each moment of the engines, then what the box says."""
        for moment, said in story:
            self.live([moment])
            for one in said:
                self.says(one)
        return self


def _said(*looks: Look, late: Sequence[Seconds], blind: bool = False) -> st.SearchStrategy[Said]:
    """Trouble, mostly, while the engine looks so."""
    return st.builds(
        Said,
        level=st.sampled_from([9.0, 9.0, 0.0]),
        rises=st.sampled_from([0, 1, 4]),
        bad=st.sampled_from([True, True, False]),
        blind=st.sampled_from([blind, False]),
        fails=st.sampled_from([blind, False, False]),
        look=st.sampled_from(looks),
        ends=st.sampled_from([True, True, False]),
        late=st.sampled_from(late),
    )


def _few(one: st.SearchStrategy[Said], most: int = 5) -> st.SearchStrategy[tuple[Said, ...]]:
    return st.lists(one, min_size=1, max_size=most).map(tuple)


_TROUBLE = Said(level=9.0, bad=True)
_BLINK = Said(level=9.0, blind=True)
_GROUPS = st.one_of(
    _few(_said(Look.IDLE, late=[0.5, 1.0, 5.0, 16.0], blind=True)),
    _few(_said(Look.SILENT, late=[5.0, 10.0, 15.0])),
    _few(_said(Look.SPINNING, Look.TRAFFIC, Look.UNHEALTHY, Look.SLEEPING, late=[0.5, 4.0])),
    st.just((_TROUBLE,) * 64),
    st.just((*(_TROUBLE,) * 40, *(_BLINK,) * 5, *(_TROUBLE,) * 20)),
)
"""Looks at what is idle; at what nobody else looks at; at what works; and a minute of the same,
as a whole and with a hole."""
_MOMENT = st.builds(
    Moment,
    gap=st.sampled_from([1.0, 1.0, 1.0, 16.0, 61.0]),
    looks=st.just((Look.IDLE,)),
    fates=st.tuples(st.sampled_from([Fate.DONE] * 5 + [Fate.RUNS, Fate.CRASHES])),
    times=st.just(1),
    verb=st.sampled_from([None] * 5 + [Verb.PAUSE, Verb.RESUME, Verb.RESTART]),
    lasts=st.sampled_from([None, 5.0, 30.0]),
)
STORIES = st.lists(st.tuples(_MOMENT, _GROUPS), min_size=3, max_size=7)
PROMPT = (0.0, 0.0, 0.0, 5.0)
"""Durations of rules that act in such short stories."""
