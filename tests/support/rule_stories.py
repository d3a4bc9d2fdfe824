"""What makes the default rules fire and clear: the form of these stories, and those of engines.

Those of the driver and the machine are in ``rule_stories_host``, of cards in ``rule_stories_gpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from tests.support.core import NAME, Story, http, process, reading, restarting, serving
from watchdog.core import views
from watchdog.core.engine import firing
from watchdog.core.model import (
    Cause,
    EngineSpawned,
    Event,
    ProcessState,
    Reading,
    Sampled,
    Seconds,
    Tick,
    Value,
    Verb,
    engine_subject,
)
from watchdog.core.state import Attach, EngineSettings, EngineState, State

Moment = Reading | Event | Callable[[Story], object]
"""Something is read, or happens, at its own time."""

NEXT = "0000000b"


@dataclass(frozen=True, slots=True)
class Tale:
    """One way in which a rule fires and clears.

    The finding is there with the last of ``fires``, not before, and gone with the last of
    ``clears``, not before unless it ``drains``: a window has to empty, and the story is long enough
    for that. Without the samples of any set of ``blind`` it neither fires nor clears, without
    those of ``silent`` it does not fire. What the core itself knows cannot be left out of a
    reading: ``unseen`` and ``still`` are then stories in which it is not known, from the start and
    after ``fires``.
    """

    rule: str
    fires: tuple[Moment, ...]
    clears: tuple[Moment, ...]
    blind: tuple[tuple[str, ...], ...] = ()
    silent: tuple[tuple[str, ...], ...] = ()
    unseen: tuple[Moment, ...] = ()
    still: tuple[Moment, ...] = ()
    begin: Callable[[], Story] = field(default=serving)
    drains: bool = False


def told(story: Story, moment: Moment, missing: Iterable[str] = ()) -> Story:
    """``story`` a moment later, of whose readings the samples ``missing`` are left out."""
    match moment:
        case Reading():
            story.read(without(moment, *missing))
        case _ if callable(moment):
            moment(story)
        case _:
            story.take(moment)
    return story


def without(one: Reading, *missing: str) -> Reading:
    """The reading without these samples, whatever their labels."""

    def lacks(sample: Sampled) -> bool:
        name = views.name_of(one.probe, sample)
        return any(name == left or name.startswith(f"{left}.") for left in missing)

    return replace(one, samples=tuple(sample for sample in one.samples if not lacks(sample)))


def fires(story: Story, rule: str) -> bool:
    """Whether the rule fires about anything."""
    return any(name == rule for (name, _), _ in firing(story.state))


def times(first: Seconds, last: Seconds, step: Seconds = 5.0) -> Iterator[Seconds]:
    """Moments from ``first`` to ``last``, both included when steps fit."""
    at = first
    while at <= last:
        yield at
        at += step


def served_again(story: Story) -> Story:
    """The restart in flight ends well."""
    return story.restarted((story.state.at or 0.0) + 1.0, NEXT)


def _starts(story: Story) -> None:
    """A start runs and nothing lives yet: what is wanted is not known before its outcome."""
    stopped = replace(story.engine, process=ProcessState.STOPPED, in_flight="start_engine")
    story.state = story.state.with_engine(stopped)


def _restart(story: Story) -> None:
    story.command(Verb.RESTART, (story.state.at or 0.0) + 1.0)


def _driver(at: Seconds, name: str, *, value: Value) -> Reading:
    """What ``driver`` reads of an engine."""
    subject = engine_subject(NAME)
    return Reading("driver", at, 0.0, (Sampled(subject, name, value, (("engine", NAME),)),))


def _port(at: Seconds, foreign: str) -> Reading:
    """What ``engine_port`` reads of an engine."""
    sample = Sampled(engine_subject(NAME), "foreign", foreign, (("engine", NAME),))
    return Reading("engine_port", at, 0.0, (sample,))


def _attached() -> Story:
    """An engine that somebody else starts, and has not started yet."""
    return Story(State({NAME: EngineState(EngineSettings(NAME, attach=Attach.REPORT))}))


ENGINE_TALES = (
    Tale(
        "engine-absent",
        begin=_attached,
        fires=tuple(Tick(at) for at in times(0.0, 300.0, 1.0)),
        clears=(EngineSpawned(301.0, NAME, NEXT, 7, Cause.UNKNOWN, adopted=True),),
        unseen=(Tick(0.0), Tick(299.0)),
        still=(Tick(301.0), Tick(900.0)),
    ),
    Tale(
        "engine-down",
        begin=Story,
        fires=(Tick(1.0),),
        clears=(Tick(2.0),),
        unseen=(_starts, Tick(1.0), Tick(2.0)),
        still=(_starts, Tick(2.0), Tick(3.0)),
    ),
    Tale(
        "engine-unkillable",
        begin=restarting,
        fires=(lambda story: story.finished(50.0, "restart_engine", ok=False, unkillable=True),),
        clears=(_restart, served_again),
        unseen=(lambda story: story.tick(900.0),),
        still=(_restart, lambda story: story.spawned(60.0, NEXT), lambda story: story.tick(90.0)),
    ),
    Tale(
        "engine-dead",
        fires=(Tick(9.0), lambda story: story.exited(10.0)),
        clears=(
            lambda story: story.spawned(11.0, NEXT),
            lambda story: story.finished(12.0, "restart_engine"),
            lambda story: story.serve(20.0, NEXT),
        ),
        unseen=(
            lambda story: story.command(Verb.RESTART, 1.0),
            lambda story: story.exited(2.0, Cause.SIGNAL),
            lambda story: story.spawned(3.0, NEXT),
            lambda story: story.finished(4.0, "restart_engine"),
            lambda story: story.tick(600.0),
        ),
        still=(
            lambda story: story.tick(12.0),
            lambda story: story.spawned(13.0, NEXT),
            lambda story: story.finished(14.0, "restart_engine"),
            lambda story: story.tick(600.0),
        ),
    ),
    Tale(
        "engine-degraded",
        fires=tuple(http(at, canary="unauthorized", status=401) for at in times(5.0, 185.0)),
        clears=(http(190.0, canary="ok", status=200),),
        silent=(("engine_http.canary",),),
        still=(
            _restart,
            lambda story: story.spawned(188.0, NEXT),
            lambda story: story.finished(189.0, "restart_engine"),
            lambda story: story.tick(900.0),
        ),
    ),
    Tale(
        "engine-stalled",
        fires=(
            process(2.0, stopped_members=1),
            process(5.0, stopped_members=1),
            http(9.0, canary="timeout", took=4.0),
        ),
        clears=(
            lambda story: story.spawned(11.0, NEXT),
            lambda story: story.finished(12.0, "restart_engine"),
            lambda story: story.serve(20.0, NEXT),
        ),
        silent=(("engine_http.canary",), ("engine_process.stopped_members",)),
        still=(
            reading("engine_http", 10.0, error="cannot connect"),
            lambda story: story.tick(12.0),
            lambda story: story.spawned(13.0, NEXT),
            lambda story: story.finished(14.0, "restart_engine"),
            lambda story: story.tick(600.0),
        ),
    ),
    Tale(
        "engine-action-hung",
        begin=restarting,
        fires=tuple(Tick(at) for at in times(10.0, 910.0)),
        clears=(lambda story: story.finished(911.0, "restart_engine"),),
        unseen=(lambda story: story.asleep(1900.0), lambda story: story.tick(1960.0)),
        still=(lambda story: story.asleep(9000.0),),
    ),
    Tale(
        "engine-driver-replaced",
        fires=tuple(_driver(at, "stale_libraries", value=True) for at in times(1, 11)),
        clears=(_driver(20.0, "stale_libraries", value=False),),
        blind=(("driver.stale_libraries",),),
    ),
    Tale(
        "engine-driver-too-old",
        fires=tuple(_driver(at, "fits", value=False) for at in times(1, 11)),
        clears=(_driver(20.0, "fits", value=True),),
        blind=(("driver.fits",),),
    ),
    Tale(
        "foreign-manager",
        fires=(_port(1.0, ""), _port(2.0, "process 4242 (python3) …")),
        clears=tuple(_port(at, "") for at in times(10, 70)),
        blind=(("engine_port.foreign",),),
    ),
)
"""Of the rules about engines."""
