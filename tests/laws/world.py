"""A closed loop around the core: engines in virtual time that obey its decisions and fall ill.

Each drawn moment says how long nothing happens, what an operator asks for, how each engine looks
and how a running action ends. What follows is fed back as the real world would feed it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hypothesis import strategies as st

from tests.support.core import Of, http, metrics, process, reading
from tests.support.rules import DEFAULT_RULES
from watchdog.core import clearing, rule_set
from watchdog.core.engine import step
from watchdog.core.lifecycle import LIFE
from watchdog.core.model import (
    ActionFinished,
    Cause,
    Commanded,
    Decision,
    EngineExited,
    EngineSpawned,
    Event,
    Mode,
    Outcome,
    Reading,
    ReadingTaken,
    Record,
    Seconds,
    Tick,
    Verb,
    engine_subject,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.state import EngineSettings, EngineState, PolicySettings, State, Step

SETTINGS = PolicySettings()
RULES = rule_set.of(DEFAULT_RULES)
_CANARY: Seconds = 4.0
_FRESH: Seconds = 10.0
_SURE = 2


class Look(StrEnum):
    """How an engine looks for a moment."""

    IDLE = "idle"
    TRAFFIC = "traffic"
    SATURATED = "saturated"
    QUIET = "quiet"
    STOPPED = "stopped"
    SPINNING = "spinning"
    COMPILING = "compiling"
    SLEEPING = "sleeping"
    UNHEALTHY = "unhealthy"
    REFUSED = "refused"
    CORE_GONE = "core_gone"
    FAILING = "failing"
    LOCKED = "locked"
    BLIND = "blind"
    SILENT = "silent"
    LOADING = "loading"
    EXITS = "exits"
    MISCONFIGURED = "misconfigured"


class Fate(StrEnum):
    """How a running action goes on."""

    RUNS = "runs"
    DONE = "done"
    CRASHES = "crashes"
    REFUSED = "refused"
    INCURABLE = "incurable"
    UNKILLABLE = "unkillable"


@dataclass(frozen=True, slots=True)
class Moment:
    """One drawn tick of the world."""

    gap: Seconds
    looks: tuple[Look, ...]
    fates: tuple[Fate, ...]
    times: int = 1
    verb: Verb | None = None
    lasts: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One step: the event, the state before, and what came of it.

    ``flows`` are the engines that provably have requests and generate tokens at that moment.
    """

    event: Event
    before: State
    done: Step
    flows: frozenset[str] = frozenset()


@dataclass
class Body:
    """What really is of one engine."""

    name: str
    generation: str = ""
    serial: int = 0
    alive: bool = False
    tokens: float = 0.0
    cpu: float = 0.0
    log: int = 0
    order: Decision | None = None
    aside: Decision | None = None
    moved: int = 0
    moved_at: Seconds = 0.0

    def shows(self, look: Look, at: Seconds) -> None:
        """What is known of its traffic after ``look`` was seen at ``at``."""
        fresh = at - self.moved_at <= _FRESH
        self.moved = (self.moved if fresh else 0) + 1 if look in _MOVING else 0
        self.moved_at = at

    def flows(self, at: Seconds) -> bool:
        """Whether three looks in a row, the last just now, saw it generate tokens for others."""
        return self.alive and self.moved > _SURE and at - self.moved_at <= _FRESH


@dataclass
class World:
    """Engines, their watchdog, and the trace of every step."""

    names: tuple[str, ...] = ("a",)
    mode: Mode = Mode.ACT
    rules: RuleSet = field(default_factory=lambda: RULES)
    now: Seconds = 1000.0
    trace: list[Seen] = field(default_factory=list)
    bodies: list[Body] = field(init=False)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = [Body(name) for name in self.names]
        self.state = born(self.names, self.mode)
        self.take(Tick(self.now))

    def take(self, event: Event) -> None:
        """Step once and hand on what was decided."""
        done = step(self.state, event, self.rules, SETTINGS)
        flows = frozenset(body.name for body in self.bodies if body.flows(event.at))
        self.trace.append(Seen(event, self.state, done, flows))
        self.state = done.state
        for decision in done.decisions:
            if decision.hold is None:
                body = next(b for b in self.bodies if b.name == decision.target.name)
                if decision.action in LIFE:
                    body.order = decision
                else:
                    body.aside = decision

    def live(self, moments: Sequence[Moment]) -> World:
        """Let ``moments`` happen."""
        for moment in moments:
            self._live(moment)
        return self

    def _live(self, moment: Moment) -> None:
        self.now += moment.gap
        self.take(Tick(self.now))
        if moment.verb is not None:
            until = None if moment.lasts is None else self.now + moment.lasts
            self.take(Commanded(self.now, moment.verb, reason="why", owner="me", until=until))
        for body, fate in zip(self.bodies, moment.fates, strict=True):
            self._end_all(body, fate)
        for _ in range(moment.times):
            for body, look in zip(self.bodies, moment.looks, strict=True):
                self._show(body, look)
            self.now += _CANARY

    def _end_all(self, body: Body, fate: Fate) -> None:
        if body.aside is not None and fate is not Fate.RUNS:
            order, body.aside = body.aside, None
            outcome = Outcome(order.action, order.target, fate is Fate.DONE, 0.1, "done")
            self.take(ActionFinished(self.now, outcome))
        if body.order is not None:
            self._finish(body, body.order, fate)

    def _finish(self, body: Body, order: Decision, fate: Fate) -> None:
        if fate is Fate.RUNS:
            return
        stops = order.action != "start_engine"
        if stops and fate is Fate.UNKILLABLE:
            self._end(body, order, ok=False, unkillable=True)
            return
        if stops:
            self._exit(body, Cause.SIGNAL)
        if order.action == "stop_engine":
            self._end(body, order, ok=fate is not Fate.REFUSED)
        elif fate in {Fate.REFUSED, Fate.INCURABLE}:
            cause = Cause.PRE_START_FAILED if fate is Fate.REFUSED else Cause.MODEL_MISSING
            self._end(body, order, ok=False, cause=cause)
        else:
            self._spawn(body, order)
            if fate is Fate.CRASHES:
                self._exit(body, Cause.CRASH)
            self._end(body, order, ok=True)

    def _end(
        self,
        body: Body,
        order: Decision,
        *,
        ok: bool,
        cause: Cause = Cause.UNKNOWN,
        unkillable: bool = False,
    ) -> None:
        body.order = None
        told = "" if ok else f"cannot {order.action}"
        outcome = Outcome(order.action, order.target, ok, 0.1, told, cause, unkillable)
        self.take(ActionFinished(self.now, outcome))

    def _spawn(self, body: Body, order: Decision) -> None:
        body.serial += 1
        body.generation, body.alive = f"{body.serial:08x}", True
        body.tokens = body.cpu = 0.0
        body.log = body.moved = 0
        self.take(EngineSpawned(self.now, body.name, body.generation, body.serial, order.cause))

    def _exit(self, body: Body, cause: Cause) -> None:
        if body.alive:
            body.alive = False
            self.take(EngineExited(self.now, body.name, body.generation, 1, None, cause, "gone"))

    def _show(self, body: Body, look: Look) -> None:
        if not body.alive:
            return
        if look is Look.EXITS:
            self._exit(body, Cause.CRASH)
        elif look is Look.MISCONFIGURED:
            self._exit(body, Cause.BAD_ARGUMENTS)
        else:
            body.moved = body.moved if look in _MOVING else 0
            for one in readings_of(body, look, self.now):
                self.take(ReadingTaken(one.at, one))
            body.shows(look, self.now)

    def late(self, body: Body, look: Look) -> Iterator[ReadingTaken]:
        """What a probe of the generation before would bring back now."""
        old = Body(body.name, generation=f"{body.serial - 1:08x}", tokens=1e9)
        for one in readings_of(old, look, self.now):
            yield ReadingTaken(one.at, one)


def born(names: Sequence[str], mode: Mode = Mode.ACT) -> State:
    """The state of a watchdog that has just started."""
    return State({name: EngineState(EngineSettings(name)) for name in names}, mode=mode)


_MOVING = frozenset({Look.TRAFFIC, Look.SATURATED})
_COMPUTING = _MOVING | {Look.SPINNING, Look.COMPILING, Look.LOADING}
_LOADED = _COMPUTING | {Look.UNHEALTHY}
_HEALTH = {
    Look.SATURATED: "timeout",
    Look.UNHEALTHY: "status",
    Look.REFUSED: "refused",
    Look.LOADING: "refused",
}
_CANARIES = {
    Look.IDLE: ("ok", 200, 0.0),
    Look.FAILING: ("failed", 500, 0.0),
    Look.LOCKED: ("unauthorized", 401, 0.0),
} | dict.fromkeys(
    (Look.SATURATED, Look.QUIET, Look.STOPPED, Look.SPINNING, Look.COMPILING),
    ("timeout", 0, _CANARY),
)


def readings_of(body: Body, look: Look, at: Seconds, *, whole: bool = True) -> Iterator[Reading]:
    """What the three probes bring back at ``at``; counters move on as the look says.

    Not ``whole`` is the completion alone.
    """
    of = Of(generation=body.generation, name=body.name)
    if look is Look.SILENT:
        return
    if look is Look.BLIND:
        for probe in ("engine_process", "engine_http", "engine_metrics"):
            yield reading(probe, at, error="cannot read", **of)
        return
    body.cpu += 100.0 if look in _COMPUTING else 0.0
    body.log += 10 if look is Look.LOADING else 0
    body.tokens += 10.0 if look in _MOVING | {Look.IDLE} else 0.0
    canary, status, took = _CANARIES.get(look, ("skipped", 0, 0.0))
    answer = http(at, _HEALTH.get(look, "ok"), canary, status, took=took, **of)
    if not whole:
        yield answer
        return
    yield process(
        at,
        cores=0 if look is Look.CORE_GONE else 1,
        stopped_members=2 if look is Look.STOPPED else 0,
        compilers=2 if look is Look.COMPILING else 0,
        cpu_seconds=body.cpu,
        log_bytes=body.log,
        **of,
    )
    yield answer
    if look not in {Look.REFUSED, Look.LOADING}:
        load = 9.0 if look in _LOADED else 0.0
        yield metrics(at, body.tokens, running=load, sleeping=look is Look.SLEEPING, **of)


CLOSE = st.sampled_from([1.0, 2.0, 5.0, 10.0])
"""Between two looks of a daemon that runs well: most of them, or nothing is ever seen to last."""

GAPS = st.sampled_from(
    [
        0.0,
        0.5,
        1.0,
        1.1,
        2.0,
        4.0,
        5.0,
        9.9,
        10.0,
        15.0,
        16.0,
        44.9,
        45.0,
        59.9,
        60.0,
        61.0,
        120.0,
        300.0,
        599.0,
        600.0,
        601.0,
        1799.9,
        1800.0,
        3599.9,
        3600.0,
        3601.0,
    ]
)
"""On and around every duration of the verdict and of the policy."""

LOOKS = st.one_of(st.just(Look.IDLE), st.just(Look.EXITS), st.sampled_from(list(Look)))
FATES = st.one_of(st.just(Fate.DONE), st.just(Fate.DONE), st.sampled_from(list(Fate)))
VERBS = st.sampled_from(
    [Verb.START, Verb.STOP, Verb.RESTART, Verb.PAUSE, Verb.RESUME, Verb.RESET_BREAKER]
)


def moments(engines: int = 1, *, verbs: bool = True) -> st.SearchStrategy[list[Moment]]:
    """Some hours in the life of ``engines`` engines."""
    asked = st.one_of(st.none(), st.none(), st.none(), VERBS) if verbs else st.none()
    moment = st.builds(
        Moment,
        gap=st.one_of(CLOSE, CLOSE, CLOSE, GAPS),
        looks=st.tuples(*[LOOKS] * engines),
        fates=st.tuples(*[FATES] * engines),
        times=st.sampled_from([1, 1, 1, 3, 4]),
        verb=asked,
        lasts=st.one_of(st.none(), GAPS),
    )
    return st.lists(moment, min_size=10, max_size=40)


def acts(trace: Sequence[Seen]) -> list[Decision]:
    """Every decision to do something, in order."""
    return [d for seen in trace for d in seen.done.decisions if d.hold is None]


def own_acts(trace: Sequence[Seen]) -> list[Decision]:
    """Every act that a rule led to."""
    return [one for one in acts(trace) if one.rule not in {"operator", clearing.RULE}]


def records(trace: Sequence[Seen], event: str) -> list[Record]:
    """Every journal line with ``event``."""
    return [r for seen in trace for r in seen.done.records if r.event == event]


def about(event: Event, name: str) -> Event:
    """``event`` as seen by who knows only the engine ``name``: time passes."""
    match event:
        case ReadingTaken(reading=Reading(subject=subject)):
            return event if subject == engine_subject(name) else Tick(event.at)
        case EngineSpawned() | EngineExited():
            return event if event.engine == name else Tick(event.at)
        case ActionFinished():
            return event if event.outcome.target.name == name else Tick(event.at)
        case _:
            return event
