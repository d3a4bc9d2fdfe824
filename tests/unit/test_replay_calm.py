"""The way around the core in a replay: after every event the state is the one of the core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from tests.support.core import GENERATION, Story, http, metrics, process
from tests.support.rules import DEFAULT_RULES, Declaration, when
from watchdog.core import rule_set
from watchdog.core.model import (
    ActionFinished,
    Cause,
    Commanded,
    Decision,
    EngineExited,
    EngineSpawned,
    Event,
    Outcome,
    Reading,
    ReadingTaken,
    Sampled,
    Seconds,
    Severity,
    Subject,
    SubjectKind,
    Tick,
    Verb,
    engine_subject,
)
from watchdog.core.rule_set import RuleSet
from watchdog.core.rules import Rule
from watchdog.core.state import EngineSettings, EngineState, PolicySettings, State, Step
from watchdog.recorder import Start, Told
from watchdog.replay import replay
from watchdog.replay.calm import Calm

CARDS = tuple(Subject(SubjectKind.GPU, f"GPU-{number}") for number in (1, 2))
ENGINES = ("one", "two")
LABELS = {card: (("gpu", str(index)), ("uuid", card.name)) for index, card in enumerate(CARDS)}


def user(
    name: str,
    text: str,
    kind: SubjectKind = SubjectKind.ENGINE,
    *actions: str,
    hold: Seconds = 0.0,
    clear: Seconds = 0.0,
    cooldown: Seconds = 0.0,
    **samples: Declaration,
) -> Rule:
    """A rule of a user's."""
    found = when(text, kind, **samples)
    return Rule(name, kind, found, Severity.WARNING, name, hold, clear, cooldown, actions)


GPU, ENGINE, HOST = SubjectKind.GPU, SubjectKind.ENGINE, SubjectKind.HOST
RULES = rule_set.of(
    (
        *DEFAULT_RULES,
        user("hot", "it.heat > 80.0", GPU, hold=30.0, clear=10.0, heat=float),
        user("bad", "it.bad", GPU, hold=45.0, bad=bool),
        user("errors", 'increase(it.errors, "1m") > 3', GPU, errors=int),
        user("warm", 'avg_over(it.heat, "2m") > 60.0', GPU, hold=7.0, heat=float),
        user("moves", 'changes(it.bad, "3m") > 1', GPU, bad=bool),
        user("wanted", "engines.waiting > 5.0 && it.heat > 40.0", GPU, heat=float),
        user("odd", "it.odd > 5 && engine.members > 2", ENGINE, odd=int),
        user("queue", "engine.requests_waiting > 5.0", ENGINE, "restart_engine", hold=20.0),
        user("small", "engine.members < 3", ENGINE, "restart_engine", hold=5.0, cooldown=60.0),
        user("blind", 'watchdog.failing_probes != ""', HOST, hold=15.0, clear=15.0),
    )
)


def box(at: Seconds, chance: Random, memory: dict[str, int]) -> Reading:
    """A look at both cards, and at the number that a probe of the box knows of each engine."""
    if chance.random() < 0.02:
        return Reading("it", at, 0.0, (), error="cannot look")
    samples: list[Sampled] = []
    for card in CARDS:
        calm = chance.random() < 0.9
        heat = memory.setdefault(f"heat {card}", 50) if calm else chance.choice([30, 50, 70, 90])
        memory[f"heat {card}"] = heat
        memory[f"bad {card}"] = memory.get(f"bad {card}", 0) ^ (chance.random() < 0.02)
        memory[f"errors {card}"] = memory.get(f"errors {card}", 0) + (chance.random() < 0.03) * 3
        labels = LABELS[card]
        samples.append(Sampled(card, "heat", float(heat), labels))
        if chance.random() < 0.97:
            samples.append(Sampled(card, "bad", bool(memory[f"bad {card}"]), labels))
        samples.append(Sampled(card, "errors", memory[f"errors {card}"], labels))
    for name in ENGINES:
        odd = memory.get(f"odd {name}", 0) if chance.random() < 0.9 else chance.randint(0, 9)
        memory[f"odd {name}"] = odd
        samples.append(Sampled(engine_subject(name), "odd", odd, (("engine", name),)))
    return Reading("it", at, 0.0, tuple(samples))


def looks(at: Seconds, name: str, chance: Random, generation: str) -> Iterator[Reading]:
    """What the probes of an engine tell now: it works, has a queue, hangs for a moment."""
    members = 3 if chance.random() < 0.95 else 2
    one = process(at, cpu_seconds=at, members=members, name=name, generation=generation)
    yield replace(one, error="cannot look") if chance.random() < 0.02 else one
    if chance.random() < 0.9:
        waiting = float(chance.choice([0, 0, 0, 0, 3, 9]))
        running = 0.0 if chance.random() < 0.8 else 9.0 - waiting
        progress = at if chance.random() < 0.7 else 0.0
        yield metrics(
            at, progress, running=running, waiting=waiting, name=name, generation=generation
        )
    canary = "ok" if chance.random() < 0.97 else chance.choice(["timeout", "failed"])
    status = 200 if canary == "ok" else 0
    yield http(at, canary=canary, status=status, name=name, generation=generation)


@dataclass
class World:
    """Two engines and two cards for some time, by turns quiet and not; what is decided is done."""

    seed: int
    rules: RuleSet | Sequence[Rule]
    seconds: int = 1200
    story: Story = field(init=False)
    generations: dict[str, str] = field(default_factory=lambda: dict.fromkeys(ENGINES, GENERATION))

    def __post_init__(self) -> None:
        """Begin."""
        self.chance = Random(self.seed)  # noqa: S311
        self.story = Story(beginning(), self.rules)

    def lives(self) -> Iterator[tuple[State, Event, Step]]:
        """Every event, with the state before it and what it led to."""
        due: list[Event] = [Tick(0.0)]
        for event in self._events():
            due.append(event)
            while due:
                now, before = due.pop(0), self.story.state
                done = self.story.take(now)
                yield before, now, done
                acts = [one for one in done.decisions if one.hold is None]
                due[:0] = [what for act in acts for what in self._done(act)]

    def _done(self, act: Decision) -> Iterator[Event]:
        name = act.target.name
        generation = self.generations[name] = f"{self.chance.getrandbits(32):08x}"
        if act.action != "stop_engine":
            yield EngineSpawned(act.at, name, generation, 1, act.cause)
        yield ActionFinished(act.at, Outcome(act.action, act.target, True, 0.1))  # noqa: FBT003

    def _events(self) -> Iterator[Event]:
        chance, memory = self.chance, dict[str, int]()
        at = 0.0
        while at < self.seconds:
            at += chance.choice([1.0, 1.0, 1.0, 2.0])
            stormy = at % 400 > 250
            if stormy:
                yield from self._troubles(at)
                at = max(at, self.story.state.at or 0.0)
            luck = chance if stormy else _Quiet()
            yield ReadingTaken(at, box(at, luck, memory))
            for name in ENGINES:
                for one in looks(at, name, luck, self.generations[name]):
                    yield ReadingTaken(at, one)
            yield Tick(at)

    def _troubles(self, at: Seconds) -> Iterator[Event]:
        luck = self.chance.random()
        if luck < 0.01:
            asleep = self.chance.choice([16.0, 40.0])
            yield Tick(at + asleep)
        elif luck < 0.02:
            yield Commanded(at, Verb.PAUSE, reason="r", owner="o", until=at + 40.0)
        elif luck < 0.03:
            yield Commanded(at, Verb.RESUME, reason="r", owner="o")
        elif luck < 0.04:
            name = self.chance.choice(ENGINES)
            yield EngineExited(at, name, self.generations[name], 1, None, Cause.CRASH, "crash")


class _Quiet(Random):
    """Nothing unusual ever happens."""

    def random(self) -> float:
        """Below all that is usual, above all that is rare."""
        return 0.5

    def choice(self, seq: Any) -> Any:  # noqa: ANN401 - as in Random
        """The first."""
        return seq[0]


def beginning() -> State:
    """Two engines, each with a card of its own."""
    return State(
        engines={
            name: EngineState(EngineSettings(name, gpus=(str(index),)))
            for index, name in enumerate(ENGINES)
        }
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_state_is_at_every_moment_that_of_the_core(seed: int) -> None:
    """FACT: where the core is not asked, state and next look are those of its step."""
    settings = PolicySettings()
    calm, around, looked = Calm(RULES, settings), 0, 0
    for before, event, done in World(seed, RULES).lives():
        looked += isinstance(event, ReadingTaken)
        found = calm.around(before, event) if isinstance(event, ReadingTaken) else None
        if found is not None:
            around += 1
            assert (done.decisions, done.findings, done.records) == ((), (), ())
            assert found == (done.state, done.wake_at)
    assert around > looked / 10, "some of the way is gone without the core"


def tape(rules: RuleSet | Sequence[Rule], seed: int) -> list[Start | Told]:
    """A recording of a world that was judged by ``rules``."""
    entries: list[Start | Told] = [Start(0.0, beginning(), fresh=True, offset=0.0)]
    for before, event, done in World(seed, rules).lives():
        gap = done.state.gap_at != before.gap_at
        entries.append(Told(event, done.decisions, 0.0, before.at if gap else None))
    return entries


@pytest.mark.parametrize("seed", range(100, 106))
def test_two_engines_and_two_cards_replay_alike(seed: int) -> None:
    """FACT: rows and findings of a replay are those of one that asks the core each time."""
    recording = tape(DEFAULT_RULES, seed)
    quick = replay(recording, RULES, PolicySettings())
    exact = replay(recording, RULES, PolicySettings(), every_step=True)
    assert (quick.rows, quick.findings) == (exact.rows, exact.findings)
    assert {found.rule for found in exact.findings} & {"hot", "errors", "warm", "odd", "wanted"}
    assert quick.bugs == 0
