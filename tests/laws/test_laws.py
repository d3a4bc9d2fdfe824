"""What holds whatever happens: laws of the core over drawn worlds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.lawful import lawful
from tests.laws.world import (
    GAPS,
    RULES,
    SETTINGS,
    Fate,
    Look,
    Moment,
    Seen,
    World,
    about,
    acts,
    born,
    moments,
    own_acts,
    records,
)
from tests.support.core import Story, http, metrics, process, reading, serving
from watchdog.core.engine import firing, step
from watchdog.core.lifecycle import TRANSITIONS
from watchdog.core.model import (
    ActionFinished,
    Cause,
    Commanded,
    Decision,
    EngineSpawned,
    Mode,
    ProcessState,
    Verb,
    Verdict,
)
from watchdog.core.state import EngineState, State, Step

FIRST = Moment(0.0, (Look.IDLE,), (Fate.DONE,))


def lived(story: Sequence[Moment]) -> list[Seen]:
    """The trace of one engine's life."""
    return World().live(story).trace


def _engine(seen: Seen, name: str = "a") -> EngineState:
    return seen.done.state.engines[name]


def _is_reset(seen: Seen) -> bool:
    return isinstance(seen.event, Commanded) and seen.event.verb is Verb.RESET_BREAKER


def _own_restarts(seen: Seen) -> list[Decision]:
    return [d for d in own_acts([seen]) if d.action == "restart_engine"]


@lawful
@given(moments())
def test_restart_budget_is_kept_in_every_window(story: list[Moment]) -> None:
    """No hour holds more than five restarts of our own, unless a person reset the account."""
    times: list[float] = []
    for seen in lived(story):
        if _is_reset(seen):
            times.clear()
        for act in _own_restarts(seen):
            times.append(act.at)
            budget = SETTINGS.restart_budget
            assert sum(act.at - at < budget.window for at in times) <= budget.count


@lawful
@given(moments())
def test_boot_budget_is_kept_in_every_window(story: list[Moment]) -> None:
    """No hour holds more than three restarts of our own after starts that never got ready."""
    times: list[float] = []
    ready = False
    for seen in lived(story):
        if _is_reset(seen):
            times.clear()
        failed = isinstance(seen.event, ActionFinished) and not seen.event.outcome.ok
        if isinstance(seen.event, EngineSpawned) or failed:
            ready = False
        if records([seen], "engine.ready") or records([seen], "engine.unproven"):
            ready = True
        times += [act.at for act in _own_restarts(seen) if not ready]
        budget = SETTINGS.boot_budget
        assert sum(seen.event.at - at < budget.window for at in times) <= budget.count


@lawful
@given(moments())
def test_backoff_is_kept(story: list[Moment]) -> None:
    """The n-th failure in a row waits 2 ** (n - 2) s or longer; ten ready minutes end the row."""
    row = 0
    for seen in lived(story):
        if _is_reset(seen):
            row = 0
        engine = _engine(seen)
        if engine.failed_at is not None and engine.ready_at is not None:
            ready_for = engine.failed_at - engine.ready_at
            row = 0 if ready_for >= SETTINGS.reset_after_ready else row
        for act in _own_restarts(seen):
            assert engine.failed_at is not None
            wait = min(2.0 ** (row - 1), SETTINGS.backoff_max) if row else 0.0
            assert act.at - engine.failed_at >= wait
            row += 1


@lawful
@given(moments(2))
def test_one_action_in_flight(story: list[Moment]) -> None:
    """Between an act on an engine and its outcome there is no other act on that engine."""
    running: set[str] = set()
    for seen in World(("a", "b")).live(story).trace:
        if isinstance(seen.event, ActionFinished):
            running.discard(seen.event.outcome.target.name)
        for act in acts([seen]):
            assert act.target.name not in running
            running.add(act.target.name)


@lawful
@given(st.lists(st.tuples(GAPS, st.sampled_from([Look.BLIND, Look.SILENT])), max_size=30))
def test_unknown_never_acts(gaps: list[tuple[float, Look]]) -> None:
    """A serving engine of which nothing can be read is left alone, for as long as it takes."""
    world = World().live([FIRST])
    assert world.state.engines["a"].verdict is Verdict.READY
    before = len(world.trace)
    world.live([Moment(gap, (look,), (Fate.DONE,)) for gap, look in gaps])
    assert not acts(world.trace[before:])


@lawful
@given(moments())
def test_paused_never_acts_by_itself(story: list[Moment]) -> None:
    """While a pause lasts every act is an operator's."""
    for seen in lived(story):
        if seen.done.state.pause is not None:
            assert not own_acts([seen])


@lawful
@given(moments())
def test_observe_never_acts_at_all(story: list[Moment]) -> None:
    """In observe mode nothing is started, stopped or signalled, whoever asks."""
    world = World(mode=Mode.OBSERVE)
    body = world.bodies[0]
    body.generation, body.alive = "00000001", True
    world.take(EngineSpawned(world.now, "a", "00000001", 1, Cause.OPERATOR, adopted=True))
    world.live(story)
    assert not acts(world.trace)


@lawful
@given(moments(2))
def test_every_firing_finding_has_one_decision(story: list[Moment]) -> None:
    """A finding that asks for an action is acted upon or held for a reason that can be named."""
    for seen in World(("a", "b")).live(story).trace:
        acted = [d for d in seen.done.decisions if d.hold is None]
        for key, finding in firing(seen.done.state):
            own = [d for d in seen.done.decisions if (d.rule, d.target) == key]
            assert len(own) <= 1
            held = seen.done.state.watches[key].held
            if finding.actions:
                assert (held is not None) != (bool(own) and own[0] in acted)
            else:
                assert not own


@lawful
@given(moments(2))
def test_engines_are_independent(story: list[Moment]) -> None:
    """What happens to one engine changes nothing about the other: its trace is as if alone."""
    names = ("a", "b")
    together = World(names).live(story).trace
    alone = born(("b",))
    for seen in together:
        done = step(alone, about(seen.event, "b"), RULES, SETTINGS)
        alone = done.state
        assert alone.engines["b"] == _engine(seen, "b")
        assert _told(done, "b") == _told(seen.done, "b")


def _told(done: Step, name: str) -> list[tuple[object, ...]]:
    """Decisions about ``name``, without the ids of incidents: their numbers are shared."""
    return [
        (d.at, d.rule, d.action, d.cause, d.hold, d.detail)
        for d in done.decisions
        if d.target.name == name
    ]


@lawful
@given(moments(2))
def test_replay_gives_the_same_story(story: list[Moment]) -> None:
    """The same events from the same state give the same states, decisions and journal."""
    trace = World(("a", "b")).live(story).trace
    state = born(("a", "b"))
    for seen in trace:
        done = step(state, seen.event, RULES, SETTINGS)
        assert done == seen.done
        state = done.state


FAULTS = [
    Look.EXITS,
    Look.QUIET,
    Look.STOPPED,
    Look.SPINNING,
    Look.UNHEALTHY,
    Look.REFUSED,
    Look.CORE_GONE,
    Look.FAILING,
]


@pytest.mark.parametrize("fault", FAULTS)
@settings(lawful, max_examples=2)
@given(moments(verbs=False))
def test_a_persistent_fault_ends(fault: Look, story: list[Moment]) -> None:
    """A fault that comes back is acted upon until exactly one breaker opens, which ends it."""
    world = World().live(story)
    sick = Moment(1.0, (fault,), (Fate.DONE,), times=40)
    for _ in range(12):
        world.live([Moment(60.0, (Look.IDLE,), (Fate.DONE,)), sick])
    engine, opened = _engine(world.trace[-1]), records(world.trace, "breaker.opened")
    history = engine.history
    unkillable = engine.process is ProcessState.UNKILLABLE
    assert len(opened) == (1 if history.breaker_open else 0)
    assert history.breaker_open or history.given_up is not None or unkillable
    count = len(world.trace)
    world.live([sick] * 3)
    assert not own_acts(world.trace[count:])


@lawful
@given(moments())
def test_breaker_opens_once_and_stays_open(story: list[Moment]) -> None:
    """Only a person closes the breaker; while it is open nothing is started by itself."""
    is_open = False
    for seen in lived(story):
        assert not (is_open and own_acts([seen]) and not _is_reset(seen))
        if _is_reset(seen):
            is_open = False
        opened = len(records([seen], "breaker.opened"))
        assert opened <= (0 if is_open else 1)
        is_open = is_open or bool(opened)
        assert _engine(seen).history.breaker_open is is_open


@lawful
@given(moments())
def test_a_stop_is_sticky(story: list[Moment]) -> None:
    """After an operator's stop nothing starts the engine but an operator's start or restart."""
    stopped = False
    for seen in lived(story):
        if isinstance(seen.event, Commanded):
            stopped = seen.event.verb is Verb.STOP or (
                stopped and seen.event.verb not in {Verb.START, Verb.RESTART}
            )
        starts = [d for d in acts([seen]) if d.action != "stop_engine"]
        assert not (stopped and starts), starts


@settings(lawful, max_examples=150)
@given(moments(2))
def test_only_the_transitions_of_the_table_happen(story: list[Moment]) -> None:
    """No step takes an engine from one process state to another that the table does not allow."""
    for seen in World(("a", "b")).live(story).trace:
        for name, before in seen.before.engines.items():
            after = _engine(seen, name).process
            assert after is before.process or after in TRANSITIONS[before.process]


@lawful
@given(moments(), st.sampled_from(list(Look)))
def test_a_late_reading_changes_nothing(story: list[Moment], look: Look) -> None:
    """A reading of a dead generation changes no engine, no view, no watch and no incident."""
    world = World().live(story)
    for late in world.late(world.bodies[0], look):
        asleep = step(world.state, late, RULES, SETTINGS)
        ticked = step(world.state, about(late, "nobody"), RULES, SETTINGS)
        assert _known(asleep.state) == _known(ticked.state)
        assert asleep.decisions == ticked.decisions


def _known(state: State) -> tuple[object, ...]:
    return state.engines, state.views, state.watches, state.incidents


@lawful
@given(moments(2))
def test_an_incident_lasts_until_the_trouble_is_over(story: list[Moment]) -> None:
    """An incident is not closed while its engine is down, being restarted, or cannot be killed."""
    for seen in World(("a", "b")).live(story).trace:
        for record in records([seen], "incident.resolved"):
            engine = _engine(seen, str(dict(record.keys)["engine"]))
            assert engine.process in {ProcessState.RUNNING, ProcessState.STOPPED}


@st.composite
def busy_days(draw: st.DrawFn) -> list[tuple[float, str]]:
    """Gaps below five seconds, after each of which something is seen; tokens flow in between."""
    noise = ["canary", "health", "stopped", "compilers", "blind", "error", "idle cpu"]
    return draw(
        st.lists(
            st.tuples(st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.sampled_from(noise)),
            min_size=1,
            max_size=60,
        )
    )


@lawful
@given(busy_days())
def test_a_busy_engine_is_never_restarted(day: list[tuple[float, str]]) -> None:
    """While tokens flow every few seconds nothing else that is seen leads to a restart."""
    story, at = serving(), 0.0
    for tokens, (gap, noise) in enumerate(day, 1):
        at += gap
        _make_noise(story, noise, at)
        story.read(metrics(at + 0.1, 10.0 * tokens, running=200.0))
    assert not story.acts


def _make_noise(story: Story, noise: str, at: float) -> None:
    match noise:
        case "canary":
            story.read(http(at, "timeout", "timeout", took=4.0))
        case "health":
            story.read(http(at, "timeout"))
        case "stopped":
            story.read(process(at, stopped_members=1))
        case "compilers":
            story.read(process(at, compilers=2))
        case "idle cpu":
            story.read(process(at))
        case "error":
            story.read(http(at, canary="failed", status=500))
        case _:
            story.read(reading("engine_process", at, error="cannot read"))


def _reached(trace: Sequence[Seen]) -> set[str]:
    """Names of the remarkable things that happened in ``trace``."""
    signs: dict[str, Callable[[Seen], bool]] = {
        "restart": lambda s: bool(_own_restarts(s)),
        "breaker": lambda s: bool(records([s], "breaker.opened")),
        "pause": lambda s: s.done.state.pause is not None,
        "incurable": lambda s: _engine(s).history.given_up is not None,
        "pending": lambda s: _engine(s).pending is not None,
    }
    found = {name for name, sign in signs.items() if any(sign(seen) for seen in trace)}
    found |= {_engine(seen).verdict.value for seen in trace}
    return found | {d.hold.value for s in trace for d in s.done.decisions if d.hold is not None}


def test_the_laws_are_not_vacuous() -> None:
    """The drawn worlds restart, stall, pause, give up, open breakers and hold for every reason."""
    reached: Counter[str] = Counter()

    @settings(lawful, max_examples=300)
    @given(moments())
    def draw(story: list[Moment]) -> None:
        reached.update(_reached(lived(story)))

    draw()
    verdicts = {verdict.value for verdict in Verdict} - {Verdict.GPU_FAULT.value}
    holds = {"backoff", "breaker_open", "budget", "in_flight", "paused", "blocked", "unkillable"}
    events = {"restart", "breaker", "pause", "incurable", "pending"}
    assert (verdicts | holds | events) - set(reached) == set()
