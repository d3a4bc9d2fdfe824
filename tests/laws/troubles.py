"""What goes wrong in a week, drawn from the world's own dice: faults, people, and ourselves."""

from __future__ import annotations

from collections.abc import Callable

from tests.laws.week import Patient, Week, needs_a_person
from tests.laws.world import Fate, Look
from watchdog.core.model import Cause, Verb

_LOOKS = (
    Look.TRAFFIC,
    Look.SATURATED,
    Look.QUIET,
    Look.STOPPED,
    Look.SPINNING,
    Look.COMPILING,
    Look.SLEEPING,
    Look.UNHEALTHY,
    Look.REFUSED,
    Look.CORE_GONE,
    Look.FAILING,
    Look.LOCKED,
    Look.BLIND,
    Look.SILENT,
)
_LASTS = (1.0, 9.0, 31.0, 100.0, 400.0, 2500.0)
_EXITS = (
    Cause.CRASH,
    Cause.CRASH,
    Cause.OOM_KILLED,
    Cause.CUDA_OOM,
    Cause.NCCL_FAILURE,
    Cause.BAD_ARGUMENTS,
)
_FATES = (Fate.CRASHES, Fate.REFUSED, Fate.INCURABLE, Fate.UNKILLABLE, Fate.RUNS)


def trouble(week: Week) -> None:
    """One trouble, or two at once."""
    week.stir()
    dice = week.random
    for _ in range(dice.choice((1, 1, 1, 2))):
        dice.choice(_KINDS)(week)
    for name in needs_a_person(week):
        week.at(dice.choice((60.0, 3000.0, 9000.0)), lambda name=name: _repair(week, name))  # type: ignore[misc]


def _one(week: Week) -> Patient:
    return week.bodies[week.random.choice(tuple(week.bodies))]


def _falls_ill(week: Week) -> None:
    body, dice = _one(week), week.random
    body.look, body.stubborn = dice.choice(_LOOKS), dice.random() < 0.3
    look = body.look

    def heals() -> None:
        week.stir()
        if body.look is look:
            body.look, body.stubborn = Look.IDLE, False

    week.at(dice.choice(_LASTS), heals)


def _crashes(week: Week) -> None:
    week.exits(_one(week), week.random.choice(_EXITS))


def _crashes_again_and_again(week: Week) -> None:
    body = _one(week)
    body.fate = Fate.CRASHES
    week.at(week.random.choice(_LASTS), lambda: _spare(body))
    week.exits(body, Cause.CRASH)


def _cannot_be_helped(week: Week) -> None:
    """Actions fail, hang, or cannot kill, for a while; and it needs one."""
    body = _one(week)
    body.fate = week.random.choice(_FATES)
    week.at(week.random.choice(_LASTS), lambda: _spare(body))
    if body.fate is Fate.UNKILLABLE:
        body.look, body.stubborn = Look.QUIET, False
    else:
        week.exits(body, Cause.CRASH)


def _spare(body: Patient) -> None:
    body.fate = Fate.DONE


def _boots_slowly(week: Week) -> None:
    _one(week).boots = week.random.choice((0.0, 1.0, 30.0, 200.0))


def _card(week: Week) -> None:
    """A card is lost or needs a reset, and its engine may die of it."""
    dice = week.random
    index = dice.choice((0, 1))
    week.box.ills[index] = dice.choice(("lost", "needs reset"))
    week.at(dice.choice(_LASTS), lambda: _card_heals(week, index))
    if dice.random() < 0.5:
        week.exits(week.bodies["ab"[index]], Cause.CRASH)


def _card_heals(week: Week, index: int) -> None:
    week.stir()
    week.box.ills.pop(index, None)


def _xid(week: Week) -> None:
    index = week.random.choice((0, 1))
    errors = week.box.errors[index]
    kind = week.random.choice(("reset", "application"))
    errors[kind] = errors.get(kind, 0) + 1
    if week.random.random() < 0.7:
        week.exits(week.bodies["ab"[index]], Cause.CRASH)


def _driver(week: Week) -> None:
    name = week.random.choice(("mismatch", "hung"))
    setattr(week.box, name, True)

    def heals() -> None:
        week.stir()
        setattr(week.box, name, False)

    week.at(week.random.choice(_LASTS), heals)
    if week.random.random() < 0.5:
        _crashes(week)


def _pauses(week: Week) -> None:
    lasts = week.random.choice(_LASTS)
    endless = week.random.random() < 0.3
    week.asks(Verb.PAUSE, until=None if endless else week.now + lasts)
    if endless:
        week.at(lasts, lambda: week.asks(Verb.RESUME))
    if week.random.random() < 0.6:
        _crashes(week)


def _stops(week: Week) -> None:
    name = _one(week).name
    week.asks(Verb.STOP, name)
    week.at(week.random.choice(_LASTS), lambda: week.asks(Verb.START, name))


def _restarts(week: Week) -> None:
    week.asks(Verb.RESTART, week.random.choice(("", "a", "b")))


def _repair(week: Week, name: str) -> None:
    _spare(week.bodies[name])
    week.asks(Verb.RESET_BREAKER, name)
    week.asks(Verb.RESTART, name)


def _nobody_looks(week: Week) -> None:
    """The machine sleeps: the watchdog sees nothing of what happens meanwhile."""
    lasts = week.random.choice((16.0, 60.0, 600.0, 4000.0))
    week.now += lasts
    week.stir()


def _watchdog_ends(week: Week) -> None:
    if week.watching:
        week.crash(week.random.choice((0.0, 1.0, 20.0, 600.0)))
        if week.random.random() < 0.4:
            body = _one(week)
            body.alive = False


_KINDS: tuple[Callable[[Week], None], ...] = (
    _falls_ill,
    _falls_ill,
    _falls_ill,
    _crashes,
    _crashes_again_and_again,
    _cannot_be_helped,
    _boots_slowly,
    _card,
    _xid,
    _driver,
    _pauses,
    _stops,
    _restarts,
    _nobody_looks,
    _watchdog_ends,
)
