"""What makes the rules about standbys fire and clear: one engine serves, another stands by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.support.core import NAME, Of, Story, http, metrics, process
from tests.support.rule_stories import Moment, Tale, times
from tests.support.rules import DEFAULT_RULES
from watchdog.core.model import Cause, Reading, Seconds
from watchdog.core.rules import Rule
from watchdog.core.state import EngineSettings, EngineState, RestartHistory, State

FIRST, LIFE = "first", "0000000b"
"""The engine that serves, and the generation of the standby."""
NEEDED, IDLE = 30.0, 900.0


def standing_by(
    *names: str, rules: tuple[Rule, ...] = DEFAULT_RULES, waits: Seconds = 0.0
) -> Story:
    """``first`` serves; ``main``, or those of ``names``, stand by and were never started."""
    kept = RestartHistory(wanted=False)
    standbys = [
        EngineState(EngineSettings(name, standby=True, gpus=()), history=kept)
        for name in names or (NAME,)
    ]
    first = EngineState(EngineSettings(FIRST, gpus=()))
    story = Story(State({one.name: one for one in (first, *standbys)}), rules)
    story.tick(waits)
    if not story.state.engines[FIRST].in_flight:  # rules of a test need not start what is stopped
        engine = replace(story.state.engines[FIRST], in_flight="start_engine")
        story.state = story.state.with_engine(engine)
    story.spawned(waits, cause=Cause.OPERATOR, name=FIRST)
    story.finished(waits, "start_engine", name=FIRST)
    story.serve(waits, name=FIRST)
    story.decisions.clear()
    story.records.clear()
    return story


def helping() -> Story:
    """As ``standing_by``, and the standby was started by its rule and serves."""
    story = standing_by()
    story.read(*load(1.0, NEEDED + 1.0, waiting=20.0))
    joined(story, NEEDED + 2.0)
    story.decisions.clear()
    story.records.clear()
    return story


def joined(story: Story, at: Seconds, name: str = NAME) -> Story:
    """The start in flight ends well, and the engine serves."""
    story.spawned(at, LIFE, Cause.RULE, name=name)
    story.finished(at, "start_engine", name=name)
    return story.serve(at + 1.0, LIFE, name=name)


def load(
    first: Seconds, last: Seconds, *, running: float = 0.0, waiting: float = 0.0
) -> Iterator[Reading]:
    """The serving engine's counters, every five seconds."""
    for at in times(first, last):
        yield metrics(at, at, running=running, waiting=waiting, name=FIRST)


def quiet(first: Seconds, last: Seconds, *, running: float = 2.0) -> Iterator[Reading]:
    """Both work a little; nobody waits. Nothing is in the standby any more at the end."""
    of = Of(generation=LIFE)
    for at in times(first, last - 5.0):
        yield process(at, cpu_seconds=at, **of)
        yield http(at, canary="ok", status=200, **of)
        yield metrics(at, at, running=1.0 if at < last - 5.0 else 0.0, **of)
        yield from load(at, at, running=running)
    yield from load(last, last, running=running)


def _started(story: Story) -> None:
    joined(story, (story.state.at or 0.0) + 1.0)


def _stopped(story: Story) -> None:
    story.finished((story.state.at or 0.0) + 1.0, "stop_engine")


def _ticks(story: Story) -> None:
    story.tick((story.state.at or 0.0) + 1.0)


def _asleep(story: Story) -> None:
    """Nobody serves: it is not known of anybody whether requests wait."""
    story.exited((story.state.at or 0.0) + 1.0, name=FIRST)


_BEGAN = NEEDED + 5.0
_QUEUE: tuple[Moment, ...] = tuple(load(1.0, 1.0 + NEEDED, waiting=5.0))
_QUIET: tuple[Moment, ...] = tuple(quiet(_BEGAN, _BEGAN + IDLE))

STANDBY_TALES = (
    Tale(
        "standby-needed",
        begin=standing_by,
        fires=_QUEUE,
        clears=(_started,),
        silent=(("engine_metrics.waiting",),),
        unseen=(_asleep, *_QUEUE),
        still=(_ticks, *load(40.0, 80.0), _ticks),
    ),
    Tale(
        "standby-idle",
        begin=helping,
        fires=_QUIET,
        clears=(_stopped,),
        silent=(("engine_metrics.waiting",), ("engine_metrics.running",)),
        unseen=(_asleep, *_QUIET),
        still=(_ticks, *load(_BEGAN + IDLE + 5.0, _BEGAN + IDLE + 20.0, waiting=9.0)),
    ),
)
"""Of the rules about standbys."""
